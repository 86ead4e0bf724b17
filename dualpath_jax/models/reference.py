"""The slow, obvious oracle: the whole sequence at once, no cache, plain softmax over the full causal matrix.

KV is rounded where the cache would round it. Everything else is what the definition says, in the expanded form.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from dualpath_configs.model import ModelSpec
from dualpath_jax.models.agreement import routing_noise
from dualpath_jax.models.decoder import Decoder, DecoderLayer
from dualpath_jax.models.feed_forward import MoE
from dualpath_jax.models.kv import round_kv
from dualpath_jax.models.mla import MLA
from dualpath_jax.models.parameters import Structure, flatten
from dualpath_jax.models.router import PLACES, routing_margins

QUERIES_AT_A_TIME = 128
"""Rows of the causal matrix held at once, so that it fits in memory; each row is complete."""


class Decision(NamedTuple):
    """One choice of one layer's router for one token; `place` is one of `router.PLACES`."""

    token: int
    layer: int
    place: str


@dataclass(frozen=True)
class ReferenceRun:
    """Logits after each token, float32 `[T, vocab]`, and the margins of each choice of a router, `[T, layers, 2]`."""

    logits: np.ndarray
    margins: np.ndarray

    def near_ties(self, spec: ModelSpec) -> dict[Decision, float]:
        """The choices that another correct run may make the other way, with their margins."""
        found = np.argwhere(self.margins < routing_noise(spec))
        return {
            Decision(int(token), int(layer), PLACES[place]): float(self.margins[token, layer, place])
            for token, layer, place in found
        }


def reference_logits(model: Decoder, tokens: Sequence[int] | np.ndarray) -> np.ndarray:
    """Logits after each token, float32 `[T, vocab]`."""
    return reference_run(model, tokens).logits


def reference_logprobs(model: Decoder, tokens: Sequence[int] | np.ndarray) -> np.ndarray:
    """Log-probabilities of each next token, float32 `[T, vocab]`."""
    return log_softmax(reference_logits(model, tokens))


def log_softmax(logits_TV: np.ndarray) -> np.ndarray:
    """In float64, rounded to float32 at the end."""
    logits = logits_TV.astype(np.float64)
    shifted = logits - logits.max(axis=-1, keepdims=True)
    return (shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True))).astype(np.float32)


def reference_run(
    model: Decoder, tokens: Sequence[int] | np.ndarray, tipped: Collection[Decision] = ()
) -> ReferenceRun:
    """The whole sequence with these choices of routers tipped: made the other way, whatever their margin."""
    ids = np.asarray(tokens, np.int32)
    padded = np.zeros(bucket_tokens(ids.size), np.int32)
    padded[: ids.size] = ids
    tips = np.zeros((padded.size, model.spec.num_hidden_layers, len(PLACES)), bool)
    for token, layer, place in tipped:
        tips[token, layer, PLACES.index(place)] = True
    with jax.default_matmul_precision("highest"):
        logits, margins = _forward(*flatten(model), padded, tips)
    return ReferenceRun(np.asarray(logits)[: ids.size], np.asarray(margins)[: ids.size])


def bucket_tokens(tokens: int) -> int:
    """The length that `tokens` is padded to, so that many lengths share a compilation; causality hides the padding."""
    if tokens <= 1024:
        return max(QUERIES_AT_A_TIME, 1 << (tokens - 1).bit_length())
    return -(-tokens // 1024) * 1024


@partial(jax.jit, static_argnames="structure")
def _forward(
    structure: Structure, leaves: tuple[jax.Array, ...], tokens_T: jax.Array, tips_TL2: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """Logits `[T, vocab]` and routing margins `[T, L, 2]` of a padded sequence."""
    model: Decoder = structure.build(leaves)
    x_TD = model.embed(tokens_T)
    tips_LT2 = jnp.swapaxes(tips_TL2, 0, 1)
    first, margins = 0, []
    for stack in model.stacks:
        layer_structure, layer_leaves = flatten(stack)
        last = first + layer_leaves[0].shape[0]

        def run(
            x_TD: jax.Array, layer: tuple[tuple[jax.Array, ...], jax.Array], of: Structure = layer_structure
        ) -> tuple[jax.Array, jax.Array]:
            return _layer(of.build(layer[0]), x_TD, layer[1])

        x_TD, margins_LT2 = jax.lax.scan(run, x_TD, (layer_leaves, tips_LT2[first:last]))
        margins.append(margins_LT2)
        first = last
    return model.logits(x_TD), jnp.swapaxes(jnp.concatenate(margins), 0, 1)


def _layer(layer: DecoderLayer, x_TD: jax.Array, tips_T2: jax.Array) -> tuple[jax.Array, jax.Array]:
    """The stream after a layer, and the router's margins `[T, 2]`."""
    x_TD = x_TD + layer.attention.project(_attend(layer.attention, layer.input_norm(x_TD)))
    normed_TD, ffn = layer.post_norm(x_TD), layer.ffn
    if isinstance(ffn, MoE):
        margins = routing_margins(ffn.router_logits(normed_TD), ffn.router_bias[...], ffn.spec, tips_T2)
        return x_TD + ffn(normed_TD, None, tips_T2), margins
    return x_TD + ffn(normed_TD), jnp.full(tips_T2.shape, jnp.inf, jnp.float32)


def _attend(mla: MLA, x_TD: jax.Array) -> jax.Array:
    """Causal attention of a whole sequence, `o_THV`."""
    tokens = x_TD.shape[0]
    positions = jnp.arange(tokens)
    latent, rope = (round_kv(field, mla.spec).astype(x_TD.dtype) for field in mla.kv(x_TD, positions))
    key_nope, value = mla.expand(latent)
    rope = jnp.broadcast_to(rope[:, None], (*key_nope.shape[:2], rope.shape[-1]))  # all heads share it
    key = jnp.concatenate([key_nope, rope], axis=-1)
    query = jnp.concatenate(mla.queries(x_TD, positions), axis=-1)

    def rows(some: tuple[jax.Array, jax.Array]) -> jax.Array:
        query, at = some
        visible = (positions[None, :] <= at[:, None])[None, :, :]
        scores = jnp.einsum("qhn,shn->hqs", query, key).astype(jnp.float32) * mla.scale
        scores = jnp.where(visible, scores, -jnp.inf)
        return jnp.einsum("hqs,shv->qhv", jax.nn.softmax(scores, axis=-1).astype(value.dtype), value)

    chunks = (a.reshape(-1, QUERIES_AT_A_TIME, *a.shape[1:]) for a in (query, positions))
    return jax.lax.map(rows, tuple(chunks)).reshape(tokens, *value.shape[1:])
