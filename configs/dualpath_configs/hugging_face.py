"""What a Hugging Face `config.json` of `model_type = "deepseek_v3"` says, in the fields of a model spec."""

from collections.abc import Mapping

from dualpath_configs.errors import SpecError, closest, shown

_REQUIRED = (
    "vocab_size",
    "hidden_size",
    "num_hidden_layers",
    "first_k_dense_replace",
    "intermediate_size",
    "num_attention_heads",
    "q_lora_rank",
    "kv_lora_rank",
    "qk_nope_head_dim",
    "qk_rope_head_dim",
    "v_head_dim",
    "n_routed_experts",
    "num_experts_per_tok",
    "n_group",
    "topk_group",
    "n_shared_experts",
    "moe_intermediate_size",
    "routed_scaling_factor",
    "norm_topk_prob",
    "rms_norm_eps",
    "max_position_embeddings",
)
_DEFAULTS: dict[str, object] = {"rope_interleave": True, "tie_word_embeddings": False}
"""Keys that older files lack, with the value that those models have."""

_SUPPORTED: dict[str, object] = {
    "attention_bias": False,
    "hidden_act": "silu",
    "scoring_func": "sigmoid",
    "topk_method": "noaux_tc",
    "moe_layer_freq": 1,
}
"""Keys that would change the computation, with the only value that is supported."""

_YARN_FIELDS = (
    "factor",
    "original_max_position_embeddings",
    "beta_fast",
    "beta_slow",
    "mscale",
    "mscale_all_dim",
)
_YARN_SUPPORTED: dict[str, object] = {"truncate": True, "attention_factor": None}
_ROPE_NAMES = ("type", "rope_type", "rope_theta")


def model_fields(config: Mapping[str, object]) -> dict[str, object]:
    """Fields of a model spec, not validated yet. Raises SpecError for what is missing or not supported."""
    if config.get("model_type") != "deepseek_v3":
        raise SpecError(f"model_type = {shown(config.get('model_type'))}: expected 'deepseek_v3'")
    _refuse_unsupported(config, _SUPPORTED, "")
    heads = config.get("num_attention_heads")
    if config.get("num_key_value_heads", heads) not in (heads, None):
        raise SpecError(
            f"num_key_value_heads = {shown(config['num_key_value_heads'])}: expected num_attention_heads "
            f"({shown(heads)}), as latent attention has it"
        )
    missing = [key for key in _REQUIRED if key not in config]
    if missing:
        more = f" (and {len(missing) - 1} more)" if len(missing) > 1 else ""
        raise SpecError(f"{missing[0]} is missing: expected a value{more}")
    fields = {key: config[key] for key in _REQUIRED}
    if fields["n_shared_experts"] is None:
        fields["n_shared_experts"] = 0
    fields.update({key: config.get(key, default) for key, default in _DEFAULTS.items()})
    return fields | _rope_fields(config)


def _rope_fields(config: Mapping[str, object]) -> dict[str, object]:
    """`rope_theta` and `rope_scaling`; transformers 5 writes both as `rope_parameters`."""
    both = config.get("rope_parameters")
    table, where = (both, "rope_parameters") if both is not None else (config.get("rope_scaling"), "rope_scaling")
    if table is None:
        table = {}
    if not isinstance(table, Mapping):
        raise SpecError(f"{where} = {shown(table)}: expected a JSON object or null")
    theta = table.get("rope_theta", config.get("rope_theta", 10000.0))
    kind = table.get("rope_type", table.get("type", "default"))
    if kind == "default":
        return {"rope_theta": theta, "rope_scaling": None}
    if kind != "yarn":
        raise SpecError(f"{where}.rope_type = {shown(kind)}: expected 'default' or 'yarn'")
    _refuse_unsupported(table, _YARN_SUPPORTED, f"{where}.")
    for key in table:
        if key not in (*_YARN_FIELDS, *_YARN_SUPPORTED, *_ROPE_NAMES):
            meant = closest(key, _YARN_FIELDS)
            hint = f"; the closest valid key is {meant}" if meant else ""
            raise SpecError(f"{where}.{key} = {shown(table[key])}: expected no such key{hint}")
    return {"rope_theta": theta, "rope_scaling": {key: table[key] for key in _YARN_FIELDS if key in table}}


def _refuse_unsupported(config: Mapping[str, object], supported: Mapping[str, object], prefix: str) -> None:
    for key, only in supported.items():
        if config.get(key, only) != only:
            raise SpecError(f"{prefix}{key} = {shown(config[key])}: not supported: expected {only!r}")
