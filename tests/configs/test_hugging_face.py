"""Model specs from Hugging Face `config.json` files, alone and through a cluster's `checkpoint`."""

import json
from pathlib import Path

import pytest

from dualpath_configs import ModelSpec, SpecError, YarnSpec, load_cluster

V3 = {
    "architectures": ["DeepseekV3ForCausalLM"],
    "attention_bias": False,
    "attention_dropout": 0.0,
    "bos_token_id": 0,
    "ep_size": 1,
    "first_k_dense_replace": 3,
    "hidden_act": "silu",
    "hidden_size": 7168,
    "initializer_range": 0.02,
    "intermediate_size": 18432,
    "kv_lora_rank": 512,
    "max_position_embeddings": 163840,
    "model_type": "deepseek_v3",
    "moe_intermediate_size": 2048,
    "moe_layer_freq": 1,
    "n_group": 8,
    "n_routed_experts": 256,
    "n_shared_experts": 1,
    "norm_topk_prob": True,
    "num_attention_heads": 128,
    "num_experts_per_tok": 8,
    "num_hidden_layers": 61,
    "num_key_value_heads": 128,
    "num_nextn_predict_layers": 1,
    "q_lora_rank": 1536,
    "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64,
    "quantization_config": {"quant_method": "fp8", "weight_block_size": [128, 128]},
    "rms_norm_eps": 1e-06,
    "rope_scaling": {
        "beta_fast": 32,
        "beta_slow": 1,
        "factor": 40,
        "mscale": 1.0,
        "mscale_all_dim": 1.0,
        "original_max_position_embeddings": 4096,
        "type": "yarn",
    },
    "rope_theta": 10000,
    "routed_scaling_factor": 2.5,
    "scoring_func": "sigmoid",
    "tie_word_embeddings": False,
    "topk_group": 4,
    "topk_method": "noaux_tc",
    "torch_dtype": "bfloat16",
    "v_head_dim": 128,
    "vocab_size": 129280,
}
YARN = YarnSpec(factor=40, original_max_position_embeddings=4096, mscale_all_dim=1.0)


def without(*keys: str, **changed: object) -> dict[str, object]:
    return {key: value for key, value in (V3 | changed).items() if key not in keys}


def error_of(config: dict[str, object]) -> str:
    with pytest.raises(SpecError) as caught:
        ModelSpec.from_hugging_face(config)
    return str(caught.value)


def test_deepseek_v3() -> None:
    spec = ModelSpec.from_hugging_face(V3)
    assert (spec.num_hidden_layers, spec.q_lora_rank, spec.routed_scaling_factor) == (61, 1536, 2.5)
    assert spec.rope_scaling == YARN
    assert spec.rope_theta == 10000.0
    assert spec.rope_interleave


def test_transformers_5_writes_rope_parameters() -> None:
    scaling = {**V3["rope_scaling"], "rope_type": "yarn", "rope_theta": 50000.0}  # type: ignore[dict-item]
    spec = ModelSpec.from_hugging_face(without("rope_scaling", "rope_theta", rope_parameters=scaling))
    assert (spec.rope_theta, spec.rope_scaling) == (50000.0, YARN)
    plain = {"rope_theta": 50000.0, "rope_type": "default"}
    spec = ModelSpec.from_hugging_face(without("rope_scaling", "rope_theta", rope_parameters=plain))
    assert (spec.rope_theta, spec.rope_scaling) == (50000.0, None)


def test_null_means_absent() -> None:
    spec = ModelSpec.from_hugging_face(without(rope_scaling=None, q_lora_rank=None, n_shared_experts=None))
    assert (spec.rope_scaling, spec.q_lora_rank, spec.n_shared_experts) == (None, None, 0)


@pytest.mark.parametrize(
    ("changed", "expected"),
    [
        ({"model_type": "llama"}, "model_type = 'llama': expected 'deepseek_v3'"),
        ({"attention_bias": True}, "attention_bias = True: not supported: expected False"),
        ({"hidden_act": "gelu"}, "hidden_act = 'gelu': not supported: expected 'silu'"),
        ({"scoring_func": "softmax"}, "scoring_func = 'softmax': not supported: expected 'sigmoid'"),
        ({"topk_method": "greedy"}, "topk_method = 'greedy': not supported: expected 'noaux_tc'"),
        ({"moe_layer_freq": 2}, "moe_layer_freq = 2: not supported: expected 1"),
        ({"num_key_value_heads": 8}, "num_key_value_heads = 8: expected num_attention_heads (128), as latent attention "
         "has it"),
        ({"rope_scaling": {"type": "linear", "factor": 2}}, "rope_scaling.rope_type = 'linear': expected 'default' or "
         "'yarn'"),
        ({"rope_scaling": {"type": "yarn", "factr": 2}}, "rope_scaling.factr = 2: expected no such key; the closest "
         "valid key is factor"),
        ({"rope_scaling": {"type": "yarn", "truncate": False}}, "rope_scaling.truncate = False: not supported: "
         "expected True"),
        ({"rope_scaling": {"type": "yarn", "factor": 2}}, "config.json: "
         "rope_scaling.original_max_position_embeddings is missing: expected a value"),
        ({"rope_scaling": 4}, "rope_scaling = 4: expected a JSON object or null"),
        ({"vocab_size": "129280"}, "config.json: vocab_size = '129280': expected an integer"),
        ({"num_experts_per_tok": 256}, "config.json: num_experts_per_tok = 256: expected at most the 128 experts of "
         "topk_group (4) groups"),
    ],
)  # fmt: skip
def test_what_would_compute_something_else_is_refused(changed: dict[str, object], expected: str) -> None:
    assert error_of(V3 | changed) == expected


def test_missing_keys_are_not_guessed() -> None:
    assert error_of(without("routed_scaling_factor", "n_group")) == "n_group is missing: expected a value (and 1 more)"


def checkpoint(folder: Path, config: dict[str, object]) -> Path:
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def test_a_clusters_model_is_its_checkpoints(tmp_path: Path) -> None:
    folder = checkpoint(tmp_path / "weights", V3)
    spec = load_cluster("local_1p1d", {"checkpoint": str(folder), "model.rope_scaling.factor": 20.0})
    expected = ModelSpec.from_hugging_face(V3).model_dump()
    expected["rope_scaling"]["factor"] = 20.0
    # What a config.json does not say stays the preset's.
    assert spec.model == ModelSpec.model_validate(expected | {"kv_dtype": "float32"})
    assert spec.checkpoint == str(folder)


def test_a_relative_checkpoint_starts_from_the_file_that_names_it(tmp_path: Path) -> None:
    folder = checkpoint(tmp_path / "weights", V3)
    path = tmp_path / "cluster.toml"
    path.write_text('extends = "local_1p1d"\ncheckpoint = "weights"\n')
    spec = load_cluster(str(path))
    assert (spec.checkpoint, spec.model.vocab_size) == (str(folder), 129280)


def test_a_checkpoint_that_is_wrong(tmp_path: Path) -> None:
    missing = tmp_path / "missing"
    with pytest.raises(SpecError, match=r"^override: checkpoint = .*config.json cannot be read: No such file"):
        load_cluster("local_1p1d", {"checkpoint": str(missing)})
    folder = checkpoint(tmp_path / "weights", V3 | {"hidden_act": "gelu"})
    with pytest.raises(SpecError, match=r"^.*weights/config.json: hidden_act = 'gelu': not supported"):
        load_cluster("local_1p1d", {"checkpoint": str(folder)})
    (folder / "config.json").write_text("{")
    with pytest.raises(SpecError, match=r"^.*weights/config.json: not JSON: "):
        load_cluster("local_1p1d", {"checkpoint": str(folder)})
