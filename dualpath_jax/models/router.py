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


def routing_margin(logits_TE: jax.Array, bias_E: jax.Array, spec: ModelSpec) -> jax.Array:
    """How far each token is from other experts: by how much a biased score would have to move, float32 `[T]`.

    Infinite where no other choice exists.
    """
    biased = jax.nn.sigmoid(logits_TE.astype(jnp.float32)) + bias_E[None, :]
    among_experts = _gap(_only_best_groups(biased, spec), spec.num_experts_per_tok)
    return jnp.minimum(among_experts, _gap(_group_scores(biased, spec), spec.topk_group))


def _gap(scores_TN: jax.Array, kept: int) -> jax.Array:
    """Between the last score that is kept and the first that is not."""
    if kept == scores_TN.shape[-1]:
        return jnp.full(scores_TN.shape[0], jnp.inf)
    best = jax.lax.top_k(scores_TN, kept + 1)[0]
    return best[:, kept - 1] - best[:, kept]


def _group_scores(biased_TE: jax.Array, spec: ModelSpec) -> jax.Array:
    """Of each group the sum of its two best, `[T, n_group]`."""
    grouped = biased_TE.reshape(biased_TE.shape[0], spec.n_group, -1)
    return jnp.sum(jax.lax.top_k(grouped, min(2, grouped.shape[-1]))[0], axis=-1)


def _only_best_groups(biased_TE: jax.Array, spec: ModelSpec) -> jax.Array:
    """The scores of the best groups; the others are minus infinity (0 would beat a negative biased score)."""
    kept = jax.lax.top_k(_group_scores(biased_TE, spec), spec.topk_group)[1]
    keep_TG = jnp.any(kept[:, :, None] == jnp.arange(spec.n_group)[None, None, :], axis=1)
    keep_TE = jnp.repeat(keep_TG, spec.n_routed_experts // spec.n_group, axis=1)
    return jnp.where(keep_TE, biased_TE, -jnp.inf)
