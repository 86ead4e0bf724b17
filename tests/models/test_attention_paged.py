"""The decode core against plain softmax over each slot's own tokens."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from dualpath_jax.models.attention import WORDS, latent_view
from dualpath_jax.models.paged_attention import paged_attention, pages_per_visit, table_pages

PAGES, LAYERS, LATENT, ROPE = 40, 2, 12, 4
WIDTH = LATENT + ROPE


@partial(jax.jit, static_argnames="dtype")
def core(q: jax.Array, own: jax.Array, cache: jax.Array, table: jax.Array, length: jax.Array, dtype: str) -> jax.Array:
    view = latent_view(dtype, WIDTH)
    layer = jnp.int32(1)
    return paged_attention(q, own, cache, layer=layer, table_NP=table, length_N=length, view=view)


def oracle(q_HK: np.ndarray, kv_SW: np.ndarray) -> np.ndarray:
    scores = q_HK.astype(np.float64) @ kv_SW.T.astype(np.float64)
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    return (weights / weights.sum(-1, keepdims=True)) @ kv_SW


def rounded(x: np.ndarray, dtype: str) -> np.ndarray:
    return np.array(jnp.asarray(x, jnp.float32).astype(dtype).astype(jnp.float32))


def words(x: np.ndarray, dtype: str) -> jax.Array:
    return lax.bitcast_convert_type(jnp.asarray(x, jnp.float32).astype(dtype), WORDS[dtype])


@pytest.mark.parametrize("heads", [1, 4])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("lengths", [(0, 1, 700), (256, 255, 257), (0, 0, 0), (512, 3, 640)])
def test_slots_agree_with_softmax(heads: int, dtype: str, lengths: tuple[int, ...]) -> None:
    rng, page_tokens = np.random.default_rng(0), 64
    cache = np.full((PAGES, LAYERS, page_tokens, WIDTH), np.nan, np.float32)
    table = np.zeros((3, table_pages(12, page_tokens)), np.int32)
    own, q = rounded(rng.normal(size=(3, WIDTH)), dtype), rng.normal(size=(3, heads, WIDTH)).astype(np.float32)
    free, contexts = list(rng.permutation(PAGES)), []
    for slot, length in enumerate(lengths):
        context = rounded(rng.normal(size=(length, WIDTH)), dtype)
        for j in range(0, length, page_tokens):
            table[slot, j // page_tokens] = page = free.pop()
            cache[page, 1, : len(context[j : j + page_tokens])] = context[j : j + page_tokens]
        contexts.append(context)
    got = np.array(
        core(q, words(own, dtype), words(cache, dtype), jnp.asarray(table), jnp.asarray(lengths, jnp.int32), dtype)
    )
    for slot, context in enumerate(contexts):
        wanted = oracle(q[slot], np.concatenate([context, own[slot][None]]))
        np.testing.assert_allclose(got[slot], wanted, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize(("pages", "page_tokens"), [(1, 64), (8, 64), (9, 64), (5, 1024), (100, 8)])
def test_a_table_is_whole_visits(pages: int, page_tokens: int) -> None:
    assert table_pages(pages, page_tokens) >= pages
    assert table_pages(pages, page_tokens) % pages_per_visit(page_tokens) == 0
