"""The layout of the cluster's KV blocks, from the spec alone: the scheduler rebuilds its index without a model."""

from dualpath_configs import ClusterSpec
from dualpath_storage.layout import KVLayout


def layout_of(spec: ClusterSpec) -> KVLayout:
    """The layout in which the nodes of this cluster store KV: MLA, the latent with the rope key beside it."""
    model = spec.model
    return KVLayout.mla(
        layers=model.num_hidden_layers,
        latent=model.kv_lora_rank,
        rope=model.qk_rope_head_dim,
        dtype=model.kv_dtype,
        block_tokens=spec.block_tokens,
    )
