"""The shape of a DeepSeek-V3-style decoder."""

from collections.abc import Mapping
from typing import Literal, Self

from pydantic import Field, PositiveFloat, PositiveInt, ValidationError, model_validator

from dualpath_configs.base import Spec
from dualpath_configs.errors import spec_error
from dualpath_configs.hugging_face import model_fields


class YarnSpec(Spec):
    """YaRN scaling of the rotary embedding (arXiv 2309.00071), with the names of a Hugging Face `rope_scaling`."""

    factor: PositiveFloat
    original_max_position_embeddings: PositiveInt
    beta_fast: PositiveFloat = 32.0
    beta_slow: PositiveFloat = 1.0
    mscale: float = 1.0
    mscale_all_dim: float = 0.0


class ModelSpec(Spec):
    """A DeepSeek-V3-style decoder: multi-head latent attention and a mixture of experts.

    The field names are those of a Hugging Face `config.json` of `model_type = "deepseek_v3"`, so that one reads as
    the other.
    """

    vocab_size: PositiveInt
    hidden_size: PositiveInt
    num_hidden_layers: PositiveInt
    first_k_dense_replace: int = Field(ge=0, description="Leading layers with a dense feed-forward network.")
    intermediate_size: PositiveInt
    num_attention_heads: PositiveInt
    q_lora_rank: PositiveInt | None = None
    kv_lora_rank: PositiveInt
    qk_nope_head_dim: PositiveInt
    qk_rope_head_dim: PositiveInt
    v_head_dim: PositiveInt
    n_routed_experts: PositiveInt
    num_experts_per_tok: PositiveInt
    n_group: PositiveInt = 1
    topk_group: PositiveInt = 1
    n_shared_experts: int = Field(default=1, ge=0)
    moe_intermediate_size: PositiveInt
    routed_scaling_factor: PositiveFloat = 1.0
    norm_topk_prob: bool = True
    rms_norm_eps: PositiveFloat = 1e-6
    rope_theta: PositiveFloat = 10000.0
    rope_scaling: YarnSpec | None = None
    rope_interleave: bool = True
    max_position_embeddings: PositiveInt
    tie_word_embeddings: bool = False
    kv_dtype: Literal["float32", "bfloat16"] = "bfloat16"
    compute_dtype: Literal["float32", "bfloat16"] = "float32"

    @classmethod
    def from_hugging_face(cls, config: Mapping[str, object]) -> Self:
        """The spec of a `config.json` of `model_type = "deepseek_v3"`, as transformers 4 and 5 write it.

        Keys that say nothing about the computation are ignored, as is `quantization_config`, which is the weights'
        matter. `kv_dtype` and `compute_dtype` are no part of it and keep their defaults.

        Raises:
            SpecError: for a key that is missing or wrong, or that asks for a computation that is not supported.
        """
        try:
            return cls.model_validate(model_fields(config))
        except ValidationError as error:
            raise spec_error(error, cls.model_fields, lambda key: "config.json") from error

    @model_validator(mode="after")
    def _check(self) -> Self:
        _require(
            self.first_k_dense_replace <= self.num_hidden_layers,
            "first_k_dense_replace",
            self.first_k_dense_replace,
            f"at most num_hidden_layers ({self.num_hidden_layers})",
        )
        _require(
            self.n_routed_experts % self.n_group == 0,
            "n_group",
            self.n_group,
            f"a divisor of n_routed_experts ({self.n_routed_experts})",
        )
        _require(self.topk_group <= self.n_group, "topk_group", self.topk_group, f"at most n_group ({self.n_group})")
        # The router scores a group by its two best experts (DeepSeek-V3, arXiv 2412.19437).
        _require(
            self.n_group == 1 or self.n_routed_experts // self.n_group >= 2,
            "n_group",
            self.n_group,
            f"at least two of n_routed_experts ({self.n_routed_experts}) in each group",
        )
        selectable = self.topk_group * (self.n_routed_experts // self.n_group)
        _require(
            self.num_experts_per_tok <= selectable,
            "num_experts_per_tok",
            self.num_experts_per_tok,
            f"at most the {selectable} experts of topk_group ({self.topk_group}) groups",
        )
        _require(self.qk_rope_head_dim % 2 == 0, "qk_rope_head_dim", self.qk_rope_head_dim, "an even number")
        return self


def _require(condition: bool, key: str, value: object, expected: str) -> None:
    if not condition:
        raise ValueError(f"{key} = {value!r}: expected {expected}")
