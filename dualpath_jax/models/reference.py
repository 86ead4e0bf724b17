"""The slow, obvious oracle: the whole sequence at once, no cache, plain softmax over the full causal matrix.

KV is rounded where the cache would round it. Everything else is what the definition says, in the expanded form.
"""

from collections.abc import Sequence
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np

from dualpath_jax.models.decoder import Decoder, DecoderLayer
from dualpath_jax.models.kv import round_kv
from dualpath_jax.models.mla import MLA
from dualpath_jax.models.parameters import Structure, flatten

QUERIES_AT_A_TIME = 128
"""Rows of the causal matrix held at once, so that it fits in memory; each row is complete."""


def reference_logits(model: Decoder, tokens: Sequence[int] | np.ndarray) -> np.ndarray:
    """Logits after each token, float32 `[T, vocab]`."""
    ids = np.asarray(tokens, np.int32)
    padded = np.zeros(bucket_tokens(ids.size), np.int32)
    padded[: ids.size] = ids
    with jax.default_matmul_precision("highest"):
        return np.asarray(_forward(*flatten(model), padded))[: ids.size]


def reference_logprobs(model: Decoder, tokens: Sequence[int] | np.ndarray) -> np.ndarray:
    """Log-probabilities of each next token, float32 `[T, vocab]`."""
    logits = reference_logits(model, tokens).astype(np.float64)
    shifted = logits - logits.max(axis=-1, keepdims=True)
    return (shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True))).astype(np.float32)


def bucket_tokens(tokens: int) -> int:
    """The length that `tokens` is padded to, so that many lengths share a compilation; causality hides the padding."""
    if tokens <= 1024:
        return max(QUERIES_AT_A_TIME, 1 << (tokens - 1).bit_length())
    return -(-tokens // 1024) * 1024


@partial(jax.jit, static_argnames="structure")
def _forward(structure: Structure, leaves: tuple[jax.Array, ...], tokens_T: jax.Array) -> jax.Array:
    model: Decoder = structure.build(leaves)
    x_TD = model.embed(tokens_T)
    for stack in model.stacks:
        layer_structure, layer_leaves = flatten(stack)

        def run(x_TD: jax.Array, layer: tuple[jax.Array, ...], of: Structure = layer_structure) -> tuple:
            return _layer(of.build(layer), x_TD), None

        x_TD, _ = jax.lax.scan(run, x_TD, layer_leaves)
    return model.logits(x_TD)


def _layer(layer: DecoderLayer, x_TD: jax.Array) -> jax.Array:
    x_TD = x_TD + layer.attention.project(_attend(layer.attention, layer.input_norm(x_TD)))
    return x_TD + layer.ffn(layer.post_norm(x_TD), None)


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
