"""The prefill core against plain softmax, one chunk at a time."""

from dataclasses import dataclass
from functools import cache, partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from dualpath_jax.models.attention import WORDS, KVView, QueryTiles, expanded_view, latent_view, prefill_attention

PACKED, STAGE, TILE, SHARD = 48, 64, 8, 16


@dataclass(frozen=True)
class Sizes:
    heads: int
    latent: int
    rope: int
    nope: int
    value: int


SIZES = [Sizes(1, 8, 4, 6, 5), Sizes(4, 24, 8, 16, 16), Sizes(3, 16, 2, 4, 12)]


@dataclass(frozen=True)
class Chunk:
    """`new` tokens at `offset` of the packed ones, after `prefix` tokens at `stage` of the staged ones."""

    offset: int
    new: int
    stage: int
    prefix: int


MIXES = {
    "alone": [Chunk(0, 20, 0, 32)],
    "no prefix": [Chunk(0, 48, 0, 0)],
    "one token": [Chunk(0, 1, 0, 64)],
    "prefix of no whole shard": [Chunk(0, 9, 0, 24), Chunk(9, 8, 24, 40)],
    "many": [Chunk(0, 3, 0, 8), Chunk(3, 17, 8, 0), Chunk(20, 1, 8, 40), Chunk(21, 27, 48, 16)],
    "nothing": [],
}


def random(seed: int, *shape: int) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


def words(x: np.ndarray, dtype: str) -> jax.Array:
    return lax.bitcast_convert_type(jnp.asarray(x).astype(dtype), WORDS[dtype])


def tiles_of(chunks: list[Chunk]) -> QueryTiles:
    rows = [(start, c.offset, c.stage, c.prefix) for c in chunks for start in range(c.offset, c.offset + c.new, TILE)]
    table = np.zeros((PACKED, 4), np.int32)
    table[: len(rows)] = np.array(rows, np.int32).reshape(-1, 4)
    return QueryTiles(jnp.int32(len(rows)), *(jnp.asarray(column) for column in table.T))


@partial(jax.jit, static_argnames="view")
def core(q: jax.Array, prefix: jax.Array, new: jax.Array, tiles: QueryTiles, view: KVView) -> jax.Array:
    return prefill_attention(q, prefix, new, tiles=tiles, view=view, tile_tokens=TILE, shard_tokens=SHARD)


def oracle(queries: np.ndarray, keys: np.ndarray, values: np.ndarray, cached: int) -> np.ndarray:
    """`[T, H, K]`, `[S, H, K]`, `[S, H, V]`: a causal softmax in float64."""
    scores = np.einsum("thk,shk->hts", queries.astype(np.float64), keys.astype(np.float64))
    visible = np.arange(keys.shape[0])[None, :] <= cached + np.arange(queries.shape[0])[:, None]
    weights = np.exp(np.where(visible, scores - scores.max(), -np.inf))
    return np.einsum("hts,shv->thv", weights / weights.sum(-1, keepdims=True), values.astype(np.float64))


@dataclass(frozen=True)
class Case:
    """Random parameters of one attention layer, and KV in the precision of the cache."""

    sizes: Sizes
    dtype: str

    @property
    def width(self) -> int:
        return self.sizes.latent + self.sizes.rope

    def kv(self, seed: int, rows: int) -> np.ndarray:
        return np.array(jnp.asarray(random(seed, rows, self.width)).astype(self.dtype).astype(jnp.float32))

    def up(self) -> tuple[np.ndarray, np.ndarray]:
        s = self.sizes
        return random(1, s.latent, s.heads, s.nope) / 3, random(2, s.latent, s.heads, s.value) / 3

    def expand(self, latent: jax.Array) -> tuple[jax.Array, jax.Array]:
        key_up, value_up = self.up()
        return jnp.einsum("sc,chn->shn", latent, key_up), jnp.einsum("sc,chv->shv", latent, value_up)

    def expanded(self, kv: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        key, value = (np.array(x) for x in self.expand(jnp.asarray(kv[:, : self.sizes.latent])))
        rope = np.broadcast_to(kv[:, None, self.sizes.latent :], (*key.shape[:2], self.sizes.rope))
        return np.concatenate([key, rope], -1), value


@cache
def view_of(case: Case, absorbed: bool) -> KVView:
    """One object for equal cases, so that they share a compilation."""
    s = case.sizes
    return latent_view(case.dtype, s.latent) if absorbed else expanded_view(case.dtype, s.latent, s.value, case.expand)


def check(case: Case, chunks: list[Chunk], absorbed: bool) -> None:
    """Run the core on poisoned storage and compare each chunk with the oracle."""
    s = case.sizes
    nope, rope = random(3, PACKED, s.heads, s.nope), random(4, PACKED, s.heads, s.rope)
    new, stage = case.kv(5, PACKED), np.full((STAGE, case.width), np.nan, np.float32)
    for i, chunk in enumerate(chunks):
        stage[chunk.stage : chunk.stage + chunk.prefix] = case.kv(10 + i, chunk.prefix)
    key_up, value_up = case.up()
    queries, view = np.einsum("thn,chn->thc", nope, key_up) if absorbed else nope, view_of(case, absorbed)
    joined = jnp.asarray(np.concatenate([queries, rope], -1))
    got = np.array(core(joined, words(stage, case.dtype), words(new, case.dtype), tiles_of(chunks), view))
    assert np.isfinite(got).all()
    if absorbed:
        got = np.einsum("thc,chv->thv", got, value_up)
    for chunk in chunks:
        rows = slice(chunk.offset, chunk.offset + chunk.new)
        kv = np.concatenate([stage[chunk.stage : chunk.stage + chunk.prefix], new[rows]])
        wanted = oracle(np.concatenate([nope, rope], -1)[rows], *case.expanded(kv), chunk.prefix)
        np.testing.assert_allclose(got[rows], wanted, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("mix", MIXES)
@pytest.mark.parametrize("absorbed", [True, False], ids=["absorbed", "expanded"])
def test_mixed_chunks_agree_with_softmax(mix: str, absorbed: bool) -> None:
    check(Case(SIZES[1], "float32"), MIXES[mix], absorbed)


@pytest.mark.parametrize("sizes", [SIZES[0], SIZES[2]])
@pytest.mark.parametrize("absorbed", [True, False], ids=["absorbed", "expanded"])
def test_head_and_rank_counts(sizes: Sizes, absorbed: bool) -> None:
    check(Case(sizes, "float32"), MIXES["many"], absorbed)


@pytest.mark.parametrize("absorbed", [True, False], ids=["absorbed", "expanded"])
def test_bfloat16_kv_is_read_exactly(absorbed: bool) -> None:
    check(Case(SIZES[1], "bfloat16"), MIXES["many"], absorbed)


def test_scores_of_any_size() -> None:
    """Large scores overflow no exponential, and the shard with the largest may come last."""
    kv = np.zeros((PACKED, 4), np.float32)
    kv[:20, 0] = np.linspace(-300, 300, 20)
    q = np.ones((PACKED, 1, 4), np.float32)
    view = latent_view("float32", 4)
    got = core(
        jnp.asarray(q), jnp.zeros((STAGE, 4), jnp.uint32), words(kv, "float32"), tiles_of([Chunk(0, 20, 0, 0)]), view
    )
    np.testing.assert_allclose(np.array(got)[:20, 0, 0], np.linspace(-300, 300, 20), rtol=1e-5)


def test_work_follows_the_true_lengths() -> None:
    """Context beyond a chunk's prefix is never visited: even the scores of it would be NaN times zero."""
    case = Case(SIZES[1], "float32")
    chunks = [Chunk(0, 8, 0, SHARD)]
    stage = np.full((STAGE, case.width), np.nan, np.float32)
    stage[:SHARD] = case.kv(1, SHARD)
    visits: list[int] = []

    def counted(kv: jax.Array) -> tuple[jax.Array, jax.Array]:
        jax.debug.callback(lambda rows: visits.append(int(rows)), kv.shape[0])
        return kv, kv[:, : case.sizes.latent]

    view = KVView("float32", counted, case.sizes.latent, per_head=False)
    q = jnp.asarray(random(3, PACKED, case.sizes.heads, case.width))
    core(q, words(stage, "float32"), words(case.kv(2, PACKED), "float32"), tiles_of(chunks), view).block_until_ready()
    jax.effects_barrier()
    assert sorted(visits) == [TILE, SHARD]
