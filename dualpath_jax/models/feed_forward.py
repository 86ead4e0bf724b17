"""Feed-forward networks: dense, and a mixture of experts sharded over a mesh axis."""

from typing import final

import jax
import jax.numpy as jnp
from flax import nnx

from dualpath_configs.model import ModelSpec
from dualpath_jax.models.experts import experts_dense, experts_grouped, prefers_dense
from dualpath_jax.models.parameters import Declare
from dualpath_jax.models.router import route


@final
class DenseFFN(nnx.Module):
    """`down(silu(gate(x)) * up(x))`."""

    def __init__(self, declare: Declare, hidden: int, width: int) -> None:
        self.gate = declare.weight({"hidden": hidden, "ffn": width}, fan_in=hidden)
        self.up = declare.weight({"hidden": hidden, "ffn": width}, fan_in=hidden)
        self.down = declare.weight({"ffn": width, "hidden": hidden}, fan_in=width)

    def __call__(self, x_TD: jax.Array, axis: str | None = None) -> jax.Array:
        """`[T, D]` in and out. `axis` changes nothing: every shard has the whole network for its own tokens."""
        return (jax.nn.silu(x_TD @ self.gate[...]) * (x_TD @ self.up[...])) @ self.down[...]


@final
class MoE(nnx.Module):
    """Routed experts, sharded over a mesh axis, and shared ones that every shard has."""

    def __init__(self, spec: ModelSpec, declare: Declare) -> None:
        hidden, experts, width = spec.hidden_size, spec.n_routed_experts, spec.moe_intermediate_size
        self.spec = spec
        self.router = declare.weight({"hidden": hidden, "router_experts": experts}, fan_in=hidden)
        self.router_bias = declare({"router_experts": experts}, std=0.05, dtype=jnp.dtype(jnp.float32))
        into = {"experts": experts, "hidden": hidden, "ffn": width}
        self.gate = declare.weight(into, fan_in=hidden)
        self.up = declare.weight(into, fan_in=hidden)
        self.down = declare.weight({"experts": experts, "ffn": width, "hidden": hidden}, fan_in=width)
        self.shared = DenseFFN(declare, hidden, spec.n_shared_experts * width) if spec.n_shared_experts else None

    def __call__(self, x_TD: jax.Array, axis: str | None, tips_T2: jax.Array | None = None) -> jax.Array:
        """`[T, D]` in and out, each token by itself, so padding changes no other token.

        With `axis`, inside `jax.shard_map`: each shard has its own tokens and its own experts; all shards' tokens are
        gathered, each shard adds up what its experts say, and the sums are scattered back. With None: no collective,
        and `tips_T2` may tip the router's choices (`router.route`).
        """
        if axis is None:
            routed = self._local_experts(x_TD, first=0, tips_T2=tips_T2)
        else:
            with jax.named_scope("moe_all_gather"):
                all_tokens = jax.lax.all_gather(x_TD, axis, tiled=True)
            partial = self._local_experts(all_tokens, first=jax.lax.axis_index(axis) * self.gate[...].shape[0])
            with jax.named_scope("moe_reduce_scatter"):
                routed = jax.lax.psum_scatter(partial, axis, scatter_dimension=0, tiled=True)
        return routed if self.shared is None else routed + self.shared(x_TD)

    def router_logits(self, x_TD: jax.Array) -> jax.Array:
        """Of normed inputs, float32 `[T, n_routed_experts]`."""
        return jnp.matmul(x_TD.astype(jnp.float32), self.router[...].astype(jnp.float32), precision="highest")

    def _local_experts(self, x_TD: jax.Array, first: jax.Array | int, tips_T2: jax.Array | None = None) -> jax.Array:
        """What experts `[first, first + local)` add to each token."""
        weights, chosen = route(self.router_logits(x_TD), self.router_bias[...], self.spec, tips_T2)
        arrays = self.gate[...], self.up[...], self.down[...]
        dense = prefers_dense(chosen=chosen.shape[1], experts=arrays[0].shape[0])
        return (experts_dense if dense else experts_grouped)(x_TD, weights, chosen - first, arrays)
