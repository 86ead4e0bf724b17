"""The router of DeepSeek-V3 (arXiv 2412.19437, section 2.1.2)."""

import jax
import jax.numpy as jnp

from dualpath_configs.model import ModelSpec

PLACES = ("groups", "experts")
"""Where a router chooses, in the order of the last axis of margins and of tips."""


def route(
    logits_TE: jax.Array, bias_E: jax.Array, spec: ModelSpec, tips_T2: jax.Array | None = None
) -> tuple[jax.Array, jax.Array]:
    """Choose `num_experts_per_tok` experts for each token: their weights `[T, K]` float32 and indices `[T, K]` int32.

    Scores are sigmoids. The bias takes part in choosing and in nothing else. The best `topk_group` groups are kept,
    a group counting its two best biased scores. Equal scores: the lower index wins.

    Where `tips_T2` (bool `[T, 2]`, see PLACES) is true, that choice falls the other way: the best one that is left out
    takes the place of the worst one that is kept. Scores and weights stay what they are.
    """
    scores = jax.nn.sigmoid(logits_TE.astype(jnp.float32))
    tip_groups, tip_experts = _columns(tips_T2)
    left = _only_best_groups(scores + bias_E[None, :], spec, tip_groups)
    chosen = _best(left, spec.num_experts_per_tok, tip_experts)
    weights = jnp.take_along_axis(scores, chosen, axis=-1)
    if spec.norm_topk_prob:
        weights = weights / (jnp.sum(weights, axis=-1, keepdims=True) + 1e-20)
    return weights * spec.routed_scaling_factor, chosen


def routing_margins(
    logits_TE: jax.Array, bias_E: jax.Array, spec: ModelSpec, tips_T2: jax.Array | None = None
) -> jax.Array:
    """How far each choice is from falling the other way: between the worst kept and the best left out, `[T, 2]`.

    Float32, in the order of PLACES; infinite where no other choice exists. The choice among experts is that in the
    groups that are kept, which `tips_T2` may change.
    """
    biased = jax.nn.sigmoid(logits_TE.astype(jnp.float32)) + bias_E[None, :]
    among_groups = _gap(_group_scores(biased, spec), spec.topk_group)
    left = _only_best_groups(biased, spec, _columns(tips_T2)[0])
    return jnp.stack([among_groups, _gap(left, spec.num_experts_per_tok)], axis=1)


def _columns(tips_T2: jax.Array | None) -> tuple[jax.Array | None, jax.Array | None]:
    return (None, None) if tips_T2 is None else (tips_T2[:, 0], tips_T2[:, 1])


def _best(scores_TN: jax.Array, kept: int, tip_T: jax.Array | None) -> jax.Array:
    """Indices of the `kept` best, `[T, kept]`; where tipped, the last of them gives way to the next."""
    if tip_T is None or kept == scores_TN.shape[-1]:
        return jax.lax.top_k(scores_TN, kept)[1]
    best = jax.lax.top_k(scores_TN, kept + 1)[1]
    last = jnp.where(tip_T, best[:, kept], best[:, kept - 1])
    return jnp.concatenate([best[:, : kept - 1], last[:, None]], axis=1)


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


def _only_best_groups(biased_TE: jax.Array, spec: ModelSpec, tip_T: jax.Array | None) -> jax.Array:
    """The scores of the best groups; the others are minus infinity (0 would beat a negative biased score)."""
    kept = _best(_group_scores(biased_TE, spec), spec.topk_group, tip_T)
    keep_TG = jnp.any(kept[:, :, None] == jnp.arange(spec.n_group)[None, None, :], axis=1)
    keep_TE = jnp.repeat(keep_TG, spec.n_routed_experts // spec.n_group, axis=1)
    return jnp.where(keep_TE, biased_TE, -jnp.inf)
