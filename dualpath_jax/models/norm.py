"""Root-mean-square normalisation."""

from typing import final

import jax
import jax.numpy as jnp
from flax import nnx

from dualpath_jax.models.parameters import Declare


@final
class RMSNorm(nnx.Module):
    """Scales the last axis to a root mean square of 1, then by a learned weight; statistics in float32."""

    def __init__(self, declare: Declare, axis: str, size: int, *, eps: float) -> None:
        self.eps = eps
        self.weight = declare.norm(axis, size)

    def __call__(self, x: jax.Array) -> jax.Array:
        """`[..., size]` in, the same shape and dtype out."""
        wide = x.astype(jnp.float32)
        mean_square = jnp.mean(wide * wide, axis=-1, keepdims=True)
        weight = jnp.expand_dims(self.weight[...], range(x.ndim - 1))
        return weight * (wide * jax.lax.rsqrt(mean_square + self.eps)).astype(x.dtype)
