"""The slow, obvious oracle: the whole sequence at once, no cache, plain softmax over the full causal matrix.

KV is rounded where the cache would round it. Everything else is what the definition says, in the expanded form.
"""

from collections.abc import Sequence
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np

from dualpath_jax.models.decoder import Decoder, DecoderLayer
from dualpath_jax.models.feed_forward import MoE
from dualpath_jax.models.kv import round_kv
from dualpath_jax.models.mla import MLA
from dualpath_jax.models.parameters import Structure, flatten
from dualpath_jax.models.router import routing_margin

QUERIES_AT_A_TIME = 128
"""Rows of the causal matrix held at once, so that it fits in memory; each row is complete."""


def reference_logits(model: Decoder, tokens: Sequence[int] | np.ndarray) -> np.ndarray:
    """Logits after each token, float32 `[T, vocab]`."""
    return _run(model, tokens)[0]


def reference_logprobs(model: Decoder, tokens: Sequence[int] | np.ndarray) -> np.ndarray:
    """Log-probabilities of each next token, float32 `[T, vocab]`."""
    logits = reference_logits(model, tokens).astype(np.float64)
    shifted = logits - logits.max(axis=-1, keepdims=True)
    return (shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True))).astype(np.float32)


def reference_routing_margins(model: Decoder, tokens: Sequence[int] | np.ndarray) -> np.ndarray:
    """How near each token is to other experts in some layer (`routing_margin`), float32 `[T]`.

    Below the noise of two runs (`agreement.ROUTING_NOISE`) they may choose differently, and then differ by more than
    the agreement epsilon at that token and at whatever attends to it.
    """
    return _run(model, tokens)[1]


def _run(model: Decoder, tokens: Sequence[int] | np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    ids = np.asarray(tokens, np.int32)
    padded = np.zeros(bucket_tokens(ids.size), np.int32)
    padded[: ids.size] = ids
    with jax.default_matmul_precision("highest"):
        logits, margins = _forward(*flatten(model), padded)
    return np.asarray(logits)[: ids.size], np.asarray(margins)[: ids.size]


def bucket_tokens(tokens: int) -> int:
    """The length that `tokens` is padded to, so that many lengths share a compilation; causality hides the padding."""
    if tokens <= 1024:
        return max(QUERIES_AT_A_TIME, 1 << (tokens - 1).bit_length())
    return -(-tokens // 1024) * 1024


@partial(jax.jit, static_argnames="structure")
def _forward(structure: Structure, leaves: tuple[jax.Array, ...], tokens_T: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Logits `[T, vocab]` and routing margins `[T]` of a padded sequence."""
    model: Decoder = structure.build(leaves)
    x_TD = model.embed(tokens_T)
    nearest_T = jnp.full(tokens_T.shape[0], jnp.inf, jnp.float32)
    for stack in model.stacks:
        layer_structure, layer_leaves = flatten(stack)

        def run(
            x_TD: jax.Array, layer: tuple[jax.Array, ...], of: Structure = layer_structure
        ) -> tuple[jax.Array, jax.Array]:
            return _layer(of.build(layer), x_TD)

        x_TD, margins_LT = jax.lax.scan(run, x_TD, layer_leaves)
        nearest_T = jnp.minimum(nearest_T, jnp.min(margins_LT, axis=0))
    return model.logits(x_TD), nearest_T


def _layer(layer: DecoderLayer, x_TD: jax.Array) -> tuple[jax.Array, jax.Array]:
    x_TD = x_TD + layer.attention.project(_attend(layer.attention, layer.input_norm(x_TD)))
    normed_TD, ffn = layer.post_norm(x_TD), layer.ffn
    if isinstance(ffn, MoE):
        margins_T = routing_margin(ffn.router_logits(normed_TD), ffn.router_bias[...], ffn.spec)
    else:
        margins_T = jnp.full(x_TD.shape[0], jnp.inf, jnp.float32)
    return x_TD + ffn(normed_TD, None), margins_T


def _attend(mla: MLA, x_TD: jax.Array) -> jax.Array:
    """Causal attention of a whole sequence, `o_THV`."""
    tokens = x_TD.shape[0]
    positions = jnp.arange(tokens)
    queries = mla.queries(x_TD, positions)
    latent, rope = (round_kv(field, mla.spec).astype(x_TD.dtype) for field in mla.kv(x_TD, positions))
    key, value = mla.expand(latent)

    def rows(some: tuple[jax.Array, jax.Array, jax.Array]) -> jax.Array:
        q_nope, q_rope, at = some
        scores = jnp.einsum("qhn,shn->hqs", q_nope, key) + jnp.einsum("qhr,sr->hqs", q_rope, rope)
        visible = (positions[None, :] <= at[:, None])[None, :, :]
        scores = jnp.where(visible, scores.astype(jnp.float32) * mla.scale, -jnp.inf)
        return jnp.einsum("hqs,shv->qhv", jax.nn.softmax(scores, axis=-1).astype(value.dtype), value)

    chunks = (a.reshape(-1, QUERIES_AT_A_TIME, *a.shape[1:]) for a in (*queries, positions))
    return jax.lax.map(rows, tuple(chunks)).reshape(tokens, *value.shape[1:])
