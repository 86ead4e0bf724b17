"""The router of DeepSeek-V3 (arXiv 2412.19437, section 2.1.2)."""

import jax
import jax.numpy as jnp

from dualpath_configs.model import ModelSpec


def route(logits_TE: jax.Array, bias_E: jax.Array, spec: ModelSpec) -> tuple[jax.Array, jax.Array]:
    """Choose `num_experts_per_tok` experts for each token: their weights `[T, K]` float32 and indices `[T, K]` int32.

    Scores are sigmoids. The bias takes part in choosing and in nothing else. The best `topk_group` groups are kept,
    a group counting its two best biased scores. Equal scores: the lower index wins.
    """
    scores = jax.nn.sigmoid(logits_TE.astype(jnp.float32))
    chosen = jax.lax.top_k(_only_best_groups(scores + bias_E[None, :], spec), spec.num_experts_per_tok)[1]
    weights = jnp.take_along_axis(scores, chosen, axis=-1)
    if spec.norm_topk_prob:
        weights = weights / (jnp.sum(weights, axis=-1, keepdims=True) + 1e-20)
    return weights * spec.routed_scaling_factor, chosen


def _only_best_groups(biased_TE: jax.Array, spec: ModelSpec) -> jax.Array:
    """The scores of the best groups; the others are minus infinity (0 would beat a negative biased score)."""
    tokens, experts = biased_TE.shape
    grouped = biased_TE.reshape(tokens, spec.n_group, experts // spec.n_group)
    best_two = jax.lax.top_k(grouped, min(2, grouped.shape[-1]))[0]
    kept = jax.lax.top_k(jnp.sum(best_two, axis=-1), spec.topk_group)[1]
    keep = jnp.any(kept[:, :, None] == jnp.arange(spec.n_group)[None, None, :], axis=1)
    return jnp.where(keep[:, :, None], grouped, -jnp.inf).reshape(tokens, experts)
