"""Rotary position embedding with YaRN scaling (arXiv 2309.00071), as DeepSeek-V3 uses it; computed in float32."""

import math

import jax
import jax.numpy as jnp
import numpy as np

from dualpath_configs.model import ModelSpec, YarnSpec


def inverse_frequencies(spec: ModelSpec) -> np.ndarray:
    """Radians per position of each pair, float32 `[qk_rope_head_dim / 2]`."""
    size = spec.qk_rope_head_dim
    plain = spec.rope_theta ** (-np.arange(0, size, 2, dtype=np.float64) / size)
    if spec.rope_scaling is None:
        return plain.astype(np.float32)
    low, high = _ramp(spec.rope_scaling, size, spec.rope_theta)
    # 1 where a pair turns slowly (its positions are squeezed by the factor), 0 where it turns fast (kept).
    squeezed = np.clip((np.arange(size // 2) - low) / (high - low), 0.0, 1.0)
    return (plain / spec.rope_scaling.factor * squeezed + plain * (1.0 - squeezed)).astype(np.float32)


def _ramp(yarn: YarnSpec, size: int, theta: float) -> tuple[float, float]:
    """The pairs between which the frequencies go over from kept to squeezed."""

    def pair_with(rotations: float) -> float:
        context = yarn.original_max_position_embeddings
        return size * math.log(context / (rotations * 2 * math.pi)) / (2 * math.log(theta))

    low = max(math.floor(pair_with(yarn.beta_fast)), 0)
    high = min(math.ceil(pair_with(yarn.beta_slow)), size - 1)
    return low, high + 0.001 if low == high else high


def magnitude(factor: float, mscale: float) -> float:
    """YaRN's attention temperature for a context stretched by `factor`."""
    return 1.0 if factor <= 1 else 0.1 * mscale * math.log(factor) + 1.0


def rotation_scale(spec: ModelSpec) -> float:
    """What the rotated values are multiplied with. Follows transformers where either mscale is 0."""
    yarn = spec.rope_scaling
    if yarn is None:
        return 1.0
    if yarn.mscale and yarn.mscale_all_dim:
        return magnitude(yarn.factor, yarn.mscale) / magnitude(yarn.factor, yarn.mscale_all_dim)
    return magnitude(yarn.factor, 1.0)


def softmax_scale(spec: ModelSpec) -> float:
    """What attention scores are multiplied with, YaRN's temperature included."""
    yarn = spec.rope_scaling
    temperature = magnitude(yarn.factor, yarn.mscale_all_dim) if yarn and yarn.mscale_all_dim else 1.0
    return (spec.qk_nope_head_dim + spec.qk_rope_head_dim) ** -0.5 * temperature**2


def rotate(x: jax.Array, positions_T: jax.Array, spec: ModelSpec) -> jax.Array:
    """Rotate `x` `[T, ..., qk_rope_head_dim]` to its positions; the dtype stays.

    With `rope_interleave` pair i is (x[2i], x[2i+1]), else (x[i], x[i + half]). The result always has the first
    members of all pairs before the second ones: scores are the same, since queries and keys are permuted alike.
    """
    half = spec.qk_rope_head_dim // 2
    angles = positions_T.astype(jnp.float32)[:, None] * inverse_frequencies(spec)[None, :]
    angles = angles.reshape(angles.shape[0], *(1,) * (x.ndim - 2), half)
    cos, sin = (f(angles) * np.float32(rotation_scale(spec)) for f in (jnp.cos, jnp.sin))
    wide = x.astype(jnp.float32)
    a, b = (wide[..., 0::2], wide[..., 1::2]) if spec.rope_interleave else (wide[..., :half], wide[..., half:])
    return jnp.concatenate([a * cos - b * sin, b * cos + a * sin], axis=-1).astype(x.dtype)
