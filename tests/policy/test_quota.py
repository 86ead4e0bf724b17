"""Compute-quota batching: hand-worked cases, and what must hold for every queue."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dualpath_scheduler.policy import PrefillLimits, pack_prefill

BLOCK = 4


def linear(cached: int, new: int) -> float:
    """A second a new token: what fits can be counted on one hand."""
    return float(new)


def attention(cached: int, new: int) -> float:
    """New tokens, each on all before it."""
    return new * cached + new * (new + 1) / 2


def limits(quota_s: float, *, new: int = 1000, prefix: int = 1000, unit: int = 1) -> PrefillLimits:
    return PrefillLimits(quota_s, new, prefix, BLOCK, unit)


CASES = {
    "nothing is pending": ([], linear, limits(9), []),
    "all fit": ([(0, 5), (8, 4)], linear, limits(9), [5, 4]),
    "the last one is cut at a block boundary": ([(0, 5), (8, 9)], linear, limits(13.5), [5, 8]),
    "a cut below one block leaves it out": ([(0, 5), (8, 9)], linear, limits(8.9), [5]),
    "nothing behind a cut one is taken": ([(0, 9), (0, 1)], linear, limits(8.5), [8]),
    "the head gets a block whatever the quota": ([(0, 9), (0, 1)], linear, limits(0.1), [4]),
    "or its rest, if that is less": ([(64, 3), (0, 1)], linear, limits(0.1), [3]),
    "a head's rest over the quota leaves nothing for others": ([(64, 3), (0, 1)], linear, limits(3.5), [3]),
    "exactly the quota fits": ([(0, 8), (0, 4)], linear, limits(12), [8, 4]),
    "the token limit cuts as the quota does": ([(0, 6), (0, 9)], linear, limits(99, new=14), [6, 8]),
    "a whole prompt that is whole blocks is not cut": ([(0, 8)], linear, limits(8), [8]),
    "the prefix limit ends the batch": ([(8, 2), (8, 2), (4, 2)], linear, limits(99, prefix=16), [2, 2]),
    "prefixes count in units": ([(4, 2), (4, 2)], linear, limits(99, prefix=15, unit=8), [2]),
    # 100 · 12 + 78 = 1278 > 1000, 100 · 8 + 36 = 836.
    "the longer the prefix, the shorter the chunk": ([(100, 30)], attention, limits(1000), [8]),
}


@pytest.mark.parametrize("case", CASES)
def test_hand_worked(case: str) -> None:
    pending, seconds, limit, expected = CASES[case]
    assert pack_prefill(pending, seconds, limit) == expected


PENDING = st.lists(st.tuples(st.integers(0, 10).map(lambda blocks: blocks * BLOCK), st.integers(1, 60)), max_size=8)
QUOTA = st.floats(0, 3000)


@given(PENDING, QUOTA, st.integers(BLOCK, 120), st.integers(40, 200))
def test_invariants(pending, quota_s, new, prefix) -> None:
    sizes = pack_prefill(pending, attention, limits(quota_s, new=new, prefix=prefix))
    assert bool(sizes) == bool(pending), "every call makes progress"
    assert sum(sizes) <= new
    assert sum(cached for cached, _ in pending[: len(sizes)]) <= prefix
    for size, (_, wanted) in zip(sizes[:-1], pending, strict=False):
        assert size == wanted, "only the last one is cut"
    for size, (_, wanted) in zip(sizes, pending, strict=False):
        assert size == wanted or (size % BLOCK == 0 and 0 < size < wanted)
    spent = sum(attention(cached, size) for (cached, _), size in zip(pending, sizes, strict=False))
    assert spent <= quota_s + 1e-9 or (len(sizes) == 1 and sizes[0] == min(BLOCK, pending[0][1]))


@given(PENDING.filter(bool), QUOTA)
def test_the_last_chunk_is_the_largest_that_fits(pending, quota_s) -> None:
    sizes = pack_prefill(pending, attention, limits(quota_s))
    at = len(sizes) - 1
    cached, wanted = pending[at]
    spent = sum(attention(c, s) for (c, _), s in zip(pending, sizes[:-1], strict=False))
    if sizes[at] < wanted:
        larger = min(sizes[at] + BLOCK, wanted)
        assert spent + attention(cached, larger) > quota_s - 1e-9
    elif len(sizes) < len(pending):
        cached, wanted = pending[len(sizes)]
        assert spent + attention(*pending[at]) + attention(cached, min(BLOCK, wanted)) > quota_s - 1e-9


def test_repeated_calls_finish_every_prompt() -> None:
    pending = [(0, 57), (40, 3), (8, 21)]
    calls = 0
    while pending:
        sizes = pack_prefill(pending, attention, limits(1, new=BLOCK))
        left = [(c + s, n - s) for (c, n), s in zip(pending, sizes, strict=False)] + pending[len(sizes) :]
        assert all(cached % BLOCK == 0 for cached, new in left if new)
        pending = [(cached, new) for cached, new in left if new]
        calls += 1
    assert calls == 15 + 1 + 6


def test_a_prefix_that_no_batch_holds_is_an_error() -> None:
    with pytest.raises(ValueError, match=r"1004 cached tokens: expected at most 1000, .*prefix_token_buckets"):
        pack_prefill([(1004, 1)], linear, limits(9))


def test_a_token_limit_below_a_block_is_an_error() -> None:
    with pytest.raises(ValueError, match=r"new_tokens = 3: expected at least block_tokens \(4\)"):
        limits(9, new=3)
