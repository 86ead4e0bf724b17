"""The decode attention core: one query per slot over its pages, in the absorbed form.

The cache is `[pages, layers, page tokens, W]`: a page is a Full Block, so that a block goes in and out as one piece.
"""

import jax
import jax.numpy as jnp
from jax import lax

from dualpath_jax.models.attention import KVView, SoftmaxState, visit

VISIT_TOKENS = 256
"""Context tokens that a slot visits at a time; measured best on CPU among 128 to 1024, for both KV dtypes."""


def pages_per_visit(page_tokens: int) -> int:
    """Pages that are read together."""
    return max(1, VISIT_TOKENS // page_tokens)


def table_pages(most_pages: int, page_tokens: int) -> int:
    """Length of a slot's page table: a whole number of visits, so that no visit reads past its end."""
    step = pages_per_visit(page_tokens)
    return -(-most_pages // step) * step


def paged_attention(
    q_NHK: jax.Array,
    own_NW: jax.Array,
    cache_PLtW: jax.Array,
    *,
    layer: jax.Array,
    table_NP: jax.Array,
    length_N: jax.Array,
    view: KVView,
) -> jax.Array:
    """Attention of each slot's token over the `length_N` tokens before it and over itself, `o_NHV` float32.

    `q_NHK` is scaled already; `own_NW` is the KV of the tokens themselves, which the cache need not hold yet. Entries
    of `table_NP` after the last page of a slot's length may be any page.
    """
    slots, heads, _ = q_NHK.shape
    page_tokens = cache_PLtW.shape[2]
    step = pages_per_visit(page_tokens)

    def one_slot(slot: jax.Array, o_NHV: jax.Array) -> jax.Array:
        q_HTK, length = q_NHK[slot].astype(jnp.float32)[:, None, :], length_N[slot]
        state = SoftmaxState.empty(heads, 1, view.value_size)
        state = visit(state, q_HTK, own_NW[slot][None], jnp.ones((1, 1), bool), view)

        def some_pages(index: jax.Array, state: SoftmaxState) -> SoftmaxState:
            pages = lax.dynamic_slice(table_NP, (slot, index * step), (1, step))[0]
            row_S = index * (step * page_tokens) + jnp.arange(step * page_tokens, dtype=jnp.int32)
            return visit(state, q_HTK, _read(cache_PLtW, layer, pages), (row_S < length)[None], view)

        state = lax.fori_loop(0, -(-length // (step * page_tokens)), some_pages, state)
        return lax.dynamic_update_slice_in_dim(o_NHV, state.result()[None, :, 0], slot, axis=0)

    return lax.fori_loop(0, slots, one_slot, jnp.zeros((slots, heads, view.value_size), jnp.float32))


def _read(cache_PLtW: jax.Array, layer: jax.Array, pages: jax.Array) -> jax.Array:
    """One layer of some pages, end to end: `[pages · page tokens, W]`."""
    _, _, page_tokens, width = cache_PLtW.shape
    parts = [
        lax.dynamic_slice(cache_PLtW, (pages[i], layer, 0, 0), (1, 1, page_tokens, width)).reshape(page_tokens, width)
        for i in range(pages.shape[0])
    ]
    return jnp.concatenate(parts)
