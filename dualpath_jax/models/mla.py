"""Multi-head latent attention (DeepSeek-V2, arXiv 2405.04434, section 2.1), without the attention core.

Arrays: T tokens, S context tokens, D hidden, H heads, C latent (`kv_lora_rank`), R rope, N nope, V value.
The core runs on either of two exact forms:

    expanded:  k, v = expand(latent);      scores = (q_nope · k + q_rope · rope) · scale;          project(o)
    absorbed:  q_latent = absorb(q_nope);  scores = (q_latent · latent + q_rope · rope) · scale;   project_latent(o)
"""

from typing import final

import jax
import jax.numpy as jnp
from flax import nnx

from dualpath_configs.model import ModelSpec
from dualpath_jax.models.norm import RMSNorm
from dualpath_jax.models.parameters import Declare
from dualpath_jax.models.rope import rotate, softmax_scale

LATENT_NORM_EPS = 1e-6
"""The norms of the compressed queries and keys do not follow `rms_norm_eps` in DeepSeek's reference."""

QUERY_GAIN = 2.0
"""Queries drawn from a seed: scores vary enough that attention picks a few tokens, however long the context."""


@final
class QueryDown(nnx.Module):
    """The compressed form of the queries, for models with a `q_lora_rank`."""

    def __init__(self, hidden: int, latent: int, declare: Declare) -> None:
        self.weight = declare.weight({"hidden": hidden, "query_in": latent}, fan_in=hidden)
        self.norm = RMSNorm(declare, "query_in", latent, eps=LATENT_NORM_EPS)

    def __call__(self, x_TD: jax.Array) -> jax.Array:
        return self.norm(x_TD @ self.weight[...])


@final
class MLA(nnx.Module):
    """The projections around attention. All methods work on one layer's arrays."""

    def __init__(self, spec: ModelSpec, declare: Declare) -> None:
        hidden, heads, latent = spec.hidden_size, spec.num_attention_heads, spec.kv_lora_rank
        nope, rope, value = spec.qk_nope_head_dim, spec.qk_rope_head_dim, spec.v_head_dim
        self.spec = spec
        self.scale = softmax_scale(spec)
        self.query_down = QueryDown(hidden, spec.q_lora_rank, declare) if spec.q_lora_rank else None
        query_in = spec.q_lora_rank or hidden
        query_sizes = {"query_in": query_in, "heads": heads, "query_head": nope + rope}
        self.query_up = declare.weight(query_sizes, fan_in=query_in, gain=QUERY_GAIN)
        self.kv_down = declare.weight({"hidden": hidden, "latent_rope": latent + rope}, fan_in=hidden)
        self.kv_norm = RMSNorm(declare, "latent", latent, eps=LATENT_NORM_EPS)
        self.key_up = declare.weight({"latent": latent, "heads": heads, "nope": nope}, fan_in=latent)
        self.value_up = declare.weight({"latent": latent, "heads": heads, "value": value}, fan_in=latent)
        self.out = declare.weight({"heads": heads, "value": value, "hidden": hidden}, fan_in=heads * value)

    def queries(self, x_TD: jax.Array, positions_T: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Of normed inputs: `q_nope_THN`, and `q_rope_THR` rotated to its position."""
        inner = x_TD if self.query_down is None else self.query_down(x_TD)
        query = jnp.einsum("td,dhq->thq", inner, self.query_up[...])
        nope, rope = jnp.split(query, [self.spec.qk_nope_head_dim], axis=-1)
        return nope, rotate(rope, positions_T, self.spec)

    def kv(self, x_TD: jax.Array, positions_T: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Of normed inputs: `latent_TC` after its norm and `rope_TR` after its rotation.

        After `round_kv` this is what is cached, and what attention must use for new tokens too.
        """
        latent, rope = jnp.split(x_TD @ self.kv_down[...], [self.spec.kv_lora_rank], axis=-1)
        return self.kv_norm(latent), rotate(rope, positions_T, self.spec)

    def absorb(self, q_nope_THN: jax.Array) -> jax.Array:
        """Queries that meet the latent itself: `q_latent_THC`."""
        return jnp.einsum("thn,chn->thc", q_nope_THN, self.key_up[...])

    def expand(self, latent_SC: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Keys and values per head of cached latents (any float dtype): `k_nope_SHN`, `v_SHV` in compute dtype."""
        latent = latent_SC.astype(self.key_up[...].dtype)
        key = jnp.einsum("sc,chn->shn", latent, self.key_up[...])
        return key, jnp.einsum("sc,chv->shv", latent, self.value_up[...])

    def project_latent(self, o_THC: jax.Array) -> jax.Array:
        """From attention over latents back to the residual stream: `[T, D]`."""
        return self.project(jnp.einsum("thc,chv->thv", o_THC, self.value_up[...]))

    def project(self, o_THV: jax.Array) -> jax.Array:
        """From attention over values back to the residual stream: `[T, D]`."""
        return jnp.einsum("thv,hvd->td", o_THV, self.out[...])
