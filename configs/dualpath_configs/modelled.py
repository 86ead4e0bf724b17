"""From the spec of a real cluster to the one that the simulator takes."""

from dualpath_configs.cluster import ClusterSpec
from dualpath_configs.measured import MeasuredSpec
from dualpath_configs.model import ModelSpec
from dualpath_configs.simulated import CalibrationSpec, HardwareSpec, SimulatedModelSpec, SimulatedSpec

_NO_LIMIT = 1e12
"""Bytes a second that stand for no limit: far above everything else in a cluster that has none."""

_ITEM_BYTES = {"float32": 4, "bfloat16": 2}
_LEAST_S = 1e-15
"""Stands for no time at all where a rate is one over it."""


def simulated_cluster(spec: ClusterSpec, measured: MeasuredSpec, *, turn_s: float = 0.0) -> SimulatedSpec:
    """The same cluster for the simulator, its computing as it was timed on the machine.

    Emulated cards let through what their token buckets say, so all efficiencies are 1, and storage is as fast as its
    cards. `turn_s` is what a turn costs beside all that is modelled: client, router, scheduler, processes that wake up.
    The rates of `hardware` that computing would follow from, `flops_per_s` and `hbm_bytes_per_s`, are those that
    attention reached while it was timed.
    """
    model = _model(spec)
    block_bytes = spec.block_tokens * model.kv_bytes_per_token
    network, scheduling = spec.network, spec.scheduling
    snic = network.snic_bytes_per_s or _NO_LIMIT
    hardware = HardwareSpec(
        flops_per_s=model.attention_flops_per_pair / max(measured.pair_s, _LEAST_S),
        hbm_bytes=model.decode_weights_bytes + spec.engine.decode_pages * block_bytes,
        hbm_bytes_per_s=model.kv_bytes_per_token / max(measured.step_token_s, _LEAST_S),
        snic_bytes_per_s=snic,
        cnic_bytes_per_s=network.cnic_bytes_per_s or _NO_LIMIT,
        memory_bytes_per_s=snic + _NO_LIMIT,
        buffer_bytes=spec.host_buffer_blocks * block_bytes,
        burst_bytes=network.burst_bytes if network.emulated else 0,
        dram_tier_bytes=spec.storage.dram_bytes,
    )
    beta_tokens = scheduling.beta_tokens or max(1, round(scheduling.beta_s * measured.tokens_per_s))
    return SimulatedSpec(
        model=model,
        hardware=hardware,
        calibration=_nothing_fitted(turn_s),
        measured=measured,
        prefill_nodes=spec.prefill_nodes,
        decode_nodes=spec.decode_nodes,
        engines_per_node=spec.engines_per_node,
        block_tokens=spec.block_tokens,
        batch_tokens=max(spec.engine.prefill_token_buckets),
        prefix_tokens=max(spec.engine.prefix_token_buckets),
        prefix_unit_tokens=spec.engine.shard_tokens,
        decode_slots=spec.engine.decode_slots,
        scheduling=scheduling.model_copy(update={"beta_tokens": beta_tokens}),
        mode=spec.mode,
    )


def _nothing_fitted(turn_s: float) -> CalibrationSpec:
    return CalibrationSpec(
        prefill_efficiency=1.0,
        decode_efficiency=1.0,
        hbm_efficiency=1.0,
        hbm_share=1.0,
        snic_efficiency=1.0,
        cnic_efficiency=1.0,
        read_bytes_per_s=_NO_LIMIT,
        layer_s=0.0,
        exchange_s=0.0,
        request_layer_s=0.0,
        block_copy_s=0.0,
        round_s=0.0,
        turn_s=turn_s,
    )


def _model(spec: ClusterSpec) -> SimulatedModelSpec:
    """Operations are twice the weights that a token meets; a pair is counted in attention's absorbed form."""
    model = spec.model
    layers, latent, rope = model.num_hidden_layers, model.kv_lora_rank, model.qk_rope_head_dim
    dense, sparse = model.first_k_dense_replace, layers - model.first_k_dense_replace
    attention = layers * _attention_weights(model)
    dense_ffn, expert = (
        3 * model.hidden_size * model.intermediate_size,
        3 * model.hidden_size * model.moe_intermediate_size,
    )
    router = model.hidden_size * model.n_routed_experts
    met = dense * dense_ffn + sparse * (router + (model.num_experts_per_tok + model.n_shared_experts) * expert)
    experts = model.n_routed_experts // spec.engines_per_node + model.n_shared_experts
    vocabulary = model.vocab_size * model.hidden_size * (1 if model.tie_word_embeddings else 2)
    held = attention + dense * dense_ffn + sparse * (router + experts * expert) + vocabulary
    weights_bytes = held * _ITEM_BYTES[model.compute_dtype]
    return SimulatedModelSpec(
        layers=layers,
        kv_bytes_per_token=layers * (latent + rope) * _ITEM_BYTES[model.kv_dtype],
        projection_flops_per_token=2.0 * attention,
        ffn_flops_per_token=2.0 * met,
        attention_flops_per_pair=layers * model.num_attention_heads * 2.0 * (2 * latent + rope),
        prefill_weights_bytes=weights_bytes,
        decode_weights_bytes=weights_bytes,
    )


def _attention_weights(model: ModelSpec) -> int:
    """Of one layer: queries, the compressed KV, what expands it, and the output."""
    heads, latent, rope = model.num_attention_heads, model.kv_lora_rank, model.qk_rope_head_dim
    query_in = model.q_lora_rank or model.hidden_size
    queries = query_in * heads * (model.qk_nope_head_dim + rope)
    if model.q_lora_rank:
        queries += model.hidden_size * model.q_lora_rank
    expansion = latent * heads * (model.qk_nope_head_dim + model.v_head_dim)
    return queries + model.hidden_size * (latent + rope) + expansion + heads * model.v_head_dim * model.hidden_size
