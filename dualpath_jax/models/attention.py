"""The prefill attention core: packed chunks of many requests over their streamed KV, with an online softmax.

Work is a loop over query tiles (a few tokens of one chunk, all heads) and, inside, over a tile's context, a shard at a
time. Both counts are dynamic, so work follows the true lengths and mixing requests costs nothing.

Interval map, all offsets in tokens, K tokens a shard:

    packed new tokens   | chunk a | chunk b     |      tile of chunk b: [start, start + tile) (its end may lie in the
                        0         a             b      next chunk, whose own tile, being later, overwrites that part)
    prefix (the stage)  |   a's prefix   | b's |       shard j of b: [prefix_start + j·K, ... + K), cut at prefix_tokens

KV comes as words (`uint16` for bfloat16, `uint32` for float32). As floats, the compiler would widen the whole context
to float32 ahead of the loop; as words, only the visited shard is widened. Everything is computed in float32.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple, final

import jax
import jax.numpy as jnp
from jax import lax

MASKED = -1e30
"""A score that no exponential survives; finite, so that no difference of two is NaN."""

WORDS = {"bfloat16": jnp.uint16, "float32": jnp.uint32}


HostOrDevice = Any
"""A NumPy array where a host fills it in, a `jax.Array` inside a program."""


@final
class QueryTiles(NamedTuple):
    """Which queries are there: `tiles` (scalar) of them, int32 `[most tiles]` each, in order of `start`."""

    tiles: HostOrDevice
    start: HostOrDevice  # first packed token
    chunk_start: HostOrDevice  # first packed token of its chunk
    prefix_start: HostOrDevice  # where its chunk's prefix begins in the stage
    prefix_tokens: HostOrDevice  # how long that prefix is


@final
@dataclass(frozen=True)
class KVView:
    """How attention reads rows of KV, float32 `[S, W]` (the latent, the rope key beside it).

    `keys_values` gives keys and values shared by all heads (`[S, K]`, `[S, V]`) or, `per_head`, `[H, S, K]` and
    `[H, S, V]`; `value_size` is V.
    """

    dtype: str
    keys_values: Callable[[jax.Array], tuple[jax.Array, jax.Array]]
    value_size: int
    per_head: bool

    def load(self, words_SW: jax.Array) -> jax.Array:
        """Words to float32."""
        return lax.bitcast_convert_type(words_SW, jnp.dtype(self.dtype)).astype(jnp.float32)


def latent_view(dtype: str, latent: int) -> KVView:
    """The absorbed form: a row is a key as it is, its latent is the value."""
    return KVView(dtype, lambda kv_SW: (kv_SW, kv_SW[:, :latent]), latent, per_head=False)


def expanded_view(
    dtype: str, latent: int, value: int, expand: Callable[[jax.Array], tuple[jax.Array, jax.Array]]
) -> KVView:
    """The expanded form: `expand(latent_SC)` gives `k_nope_SHN` and `v_SHV`; the rope key is every head's."""

    def keys_values(kv_SW: jax.Array) -> tuple[jax.Array, jax.Array]:
        nope_SHN, value_SHV = (field.astype(jnp.float32) for field in expand(kv_SW[:, :latent]))
        rope_SHR = jnp.broadcast_to(kv_SW[:, None, latent:], (*nope_SHN.shape[:2], kv_SW.shape[1] - latent))
        return jnp.concatenate([nope_SHN, rope_SHR], axis=-1).swapaxes(0, 1), value_SHV.swapaxes(0, 1)

    return KVView(dtype, keys_values, value, per_head=True)


@final
class SoftmaxState(NamedTuple):
    """A softmax under way: the largest score, and relative to it the sum of weights and of weighted values."""

    largest: jax.Array  # [H, T]
    total: jax.Array  # [H, T]
    values: jax.Array  # [H, T, V]

    @classmethod
    def empty(cls, heads: int, tokens: int, value_size: int) -> "SoftmaxState":
        zeros = jnp.zeros((heads, tokens), jnp.float32)
        return cls(zeros + MASKED, zeros, jnp.zeros((heads, tokens, value_size), jnp.float32))

    def result(self) -> jax.Array:
        """The weighted mean of the values, `[H, T, V]`."""
        return self.values / self.total[:, :, None]


def visit(
    state: SoftmaxState, q_HTK: jax.Array, words_SW: jax.Array, visible_TS: jax.Array, view: KVView
) -> SoftmaxState:
    """Take some rows of KV into the softmax; every query must see one of them, or have seen one before.

    Rows that no query sees may hold anything, NaN included.
    """
    seen_S = jnp.any(visible_TS, axis=0)
    keys, values = view.keys_values(jnp.where(seen_S[:, None], view.load(words_SW), 0.0))
    into_scores, into_values = ("htk,hsk->hts", "hts,hsv->htv") if view.per_head else ("htk,sk->hts", "hts,sv->htv")
    scores_HTS = jnp.where(visible_TS[None], jnp.einsum(into_scores, q_HTK, keys), MASKED)
    largest_HT = jnp.maximum(state.largest, scores_HTS.max(axis=-1))
    weights_HTS = jnp.exp(scores_HTS - largest_HT[:, :, None])
    fade_HT = jnp.exp(state.largest - largest_HT)
    return SoftmaxState(
        largest_HT,
        state.total * fade_HT + weights_HTS.sum(axis=-1),
        state.values * fade_HT[:, :, None] + jnp.einsum(into_values, weights_HTS, values),
    )


def prefill_attention(
    q_THK: jax.Array,
    prefix_SW: jax.Array,
    new_TW: jax.Array,
    *,
    tiles: QueryTiles,
    view: KVView,
    tile_tokens: int,
    shard_tokens: int,
) -> jax.Array:
    """Causal attention of packed new tokens over their own prefixes and over each other, `o_THV` float32.

    `q_THK` is scaled already and matches the keys of `view`. Rows of tokens that no tile covers are undefined but
    finite. No collective: each engine may have another amount of work.
    """
    tokens, heads, _ = q_THK.shape
    padded_q = jnp.pad(q_THK.astype(jnp.float32), ((0, tile_tokens), (0, 0), (0, 0)))

    def one_tile(index: jax.Array, o_THV: jax.Array) -> jax.Array:
        start, chunk_start = tiles.start[index], tiles.chunk_start[index]
        q_HTK = lax.dynamic_slice_in_dim(padded_q, start, tile_tokens).swapaxes(0, 1)
        state = SoftmaxState.empty(heads, tile_tokens, view.value_size)
        everything = jnp.full((tile_tokens,), tiles.prefix_tokens[index])
        state = _walk(state, q_HTK, prefix_SW, tiles.prefix_start[index], everything, view, shard_tokens)
        causal = start - chunk_start + 1 + jnp.arange(tile_tokens, dtype=jnp.int32)
        state = _walk(state, q_HTK, new_TW, chunk_start, causal, view, tile_tokens)
        return lax.dynamic_update_slice_in_dim(o_THV, state.result().swapaxes(0, 1), start, axis=0)

    o_THV = jnp.zeros((tokens + tile_tokens, heads, view.value_size), jnp.float32)
    return lax.fori_loop(0, tiles.tiles, one_tile, o_THV)[:tokens]


def _walk(
    state: SoftmaxState,
    q_HTK: jax.Array,
    context_SW: jax.Array,
    start: jax.Array,
    limit_T: jax.Array,
    view: KVView,
    shard_tokens: int,
) -> SoftmaxState:
    """Visit `context[start, start + limit_T[-1])` shard by shard; query t sees the first `limit_T[t]` rows of it."""
    last_start = context_SW.shape[0] - shard_tokens

    def one_shard(index: jax.Array, state: SoftmaxState) -> SoftmaxState:
        # The last shard may not reach past the end: it begins earlier then, and what was visited before is masked.
        begin = jnp.minimum(start + index * shard_tokens, last_start)
        row_S = begin - start + jnp.arange(shard_tokens, dtype=jnp.int32)
        visible_TS = (row_S[None, :] >= index * shard_tokens) & (row_S[None, :] < limit_T[:, None])
        return visit(state, q_HTK, lax.dynamic_slice_in_dim(context_SW, begin, shard_tokens), visible_TS, view)

    return lax.fori_loop(0, -(-limit_T[-1] // shard_tokens), one_shard, state)
