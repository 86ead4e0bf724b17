"""What of a model decides its KV: the layout of the cached fields and the digest of the computation."""

import hashlib
import json

import jax
import jax.numpy as jnp

from dualpath_configs.model import ModelSpec
from dualpath_storage.layout import KVLayout

COMPUTATION = "dualpath-decoder-1"
"""Changed when the code comes to compute other KV from the same spec and weights."""

LIMITS = frozenset({"max_position_embeddings"})
"""Fields that bound what may be asked and change no number."""


def kv_layout(spec: ModelSpec, block_tokens: int) -> KVLayout:
    """The cached fields: the latent, and the rope key beside it."""
    return KVLayout.mla(
        layers=spec.num_hidden_layers,
        latent=spec.kv_lora_rank,
        rope=spec.qk_rope_head_dim,
        dtype=spec.kv_dtype,
        block_tokens=block_tokens,
    )


def model_digest(spec: ModelSpec) -> str:
    """64 hex digits that two specs share only if they compute the same from the same weights."""
    fields = spec.model_dump(mode="json", exclude=set(LIMITS))
    canonical = json.dumps({"computation": COMPUTATION, "spec": fields}, separators=(",", ":"), sort_keys=True)
    return hashlib.sha256(canonical.encode()).hexdigest()


def round_kv(x: jax.Array, spec: ModelSpec) -> jax.Array:
    """A latent or rope key as it is cached: in the KV dtype. Attention uses the rounded value for new tokens too."""
    return x.astype(jnp.dtype(spec.kv_dtype))
