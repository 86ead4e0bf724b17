"""The split: both sides finish together."""

import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dualpath_scheduler.policy import READ_PLANS, ReadPlan, ReadSnapshot
from dualpath_scheduler.policy.read_times import decode_side_s, prefill_side_s

split = READ_PLANS["split"]

RATES = st.floats(100.0, 1e6)
SNAPSHOTS = st.builds(
    ReadSnapshot,
    hit_blocks=st.integers(0, 300),
    prefill_read_q_tokens=st.integers(0, 20_000),
    decode_read_q_tokens=st.integers(0, 20_000),
    prefill_resident_blocks=st.just(0),
    decode_resident_blocks=st.just(0),
    prefill_read_tokens_per_s=RATES,
    decode_read_tokens_per_s=RATES,
    hop_tokens_per_s=st.one_of(RATES, st.just(math.inf)),
)


def snapshot(hit: int, prefill_q: int = 0, decode_q: int = 0, **fields: float) -> ReadSnapshot:
    """Both cards read a block a second, and the hop takes no time."""
    rates = {"prefill_read_tokens_per_s": 64.0, "decode_read_tokens_per_s": 64.0, **fields}
    return ReadSnapshot(hit, prefill_q, decode_q, **rates)


@pytest.mark.parametrize(
    ("state", "expected"),
    [
        (snapshot(8), ReadPlan(4, 4)),
        (snapshot(7), ReadPlan(4, 3)),  # 4 s either way: the prefill side takes the odd one
        (snapshot(1), ReadPlan(1, 0)),
        (snapshot(0), ReadPlan(0, 0)),
        # The prefill side's card is busy for 3 s: 3 + 2 blocks there, 5 here.
        (snapshot(7, prefill_q=3 * 64), ReadPlan(2, 5)),
        (snapshot(7, decode_q=3 * 64), ReadPlan(5, 2)),
        # It is busy for longer than the other one needs for everything.
        (snapshot(7, prefill_q=7 * 64), ReadPlan(0, 7)),
        (snapshot(7, decode_q=7 * 64), ReadPlan(7, 0)),
        # 6 + 1 blocks there and 6 here, or 7 here: 7 s either way.
        (snapshot(7, prefill_q=6 * 64), ReadPlan(1, 6)),
        (snapshot(7, prefill_q=3 * 64, decode_q=3 * 64), ReadPlan(4, 3)),
        # Three times the rate, three times the blocks.
        (snapshot(8, prefill_read_tokens_per_s=192.0), ReadPlan(6, 2)),
        (snapshot(8, decode_read_tokens_per_s=192.0), ReadPlan(2, 6)),
        # A hop at the rate of the card: a block takes the decode side 2 s.
        (snapshot(9, hop_tokens_per_s=64.0), ReadPlan(6, 3)),
        # Four blocks lie here, so eight are shared; then with three there as well, five.
        (snapshot(12, prefill_resident_blocks=4), ReadPlan(8, 4)),
        (snapshot(12, prefill_resident_blocks=4, decode_resident_blocks=3), ReadPlan(7, 5)),
        (snapshot(12, decode_resident_blocks=12), ReadPlan(0, 12)),
        (snapshot(12, prefill_resident_blocks=12, decode_resident_blocks=12), ReadPlan(12, 0)),
        # What lies in memory waits for no queue: here all of it comes from there, there nothing does.
        (snapshot(12, prefill_q=640, prefill_resident_blocks=4), ReadPlan(4, 8)),
        # Memory there is behind a slow hop: two blocks are read and five cross in 7 s; seven are read here.
        (snapshot(12, decode_resident_blocks=3, hop_tokens_per_s=64.0), ReadPlan(7, 5)),
        # No limits are known: the queues alone say something.
        (ReadSnapshot(7, 3 * 64, 0), ReadPlan(2, 5)),
        # One card has no limit.
        (snapshot(7, prefill_read_tokens_per_s=math.inf), ReadPlan(7, 0)),
        (snapshot(7, decode_read_tokens_per_s=math.inf), ReadPlan(0, 7)),
    ],
)
def test_worked_by_hand(state: ReadSnapshot, expected: ReadPlan) -> None:
    assert split(state) == expected


@given(state=SNAPSHOTS)
def test_both_sides_finish_within_a_block_of_each_other(state: ReadSnapshot) -> None:
    plan = split(state)
    prefill_s = prefill_side_s(state, plan.prefill_side_blocks)
    decode_s = decode_side_s(state, plan.decode_side_blocks)
    if 0 in (plan.prefill_side_blocks, plan.decode_side_blocks):
        return
    block_s = max(
        state.block_tokens / state.prefill_read_tokens_per_s,
        state.block_tokens / state.decode_read_tokens_per_s + state.block_tokens / state.hop_tokens_per_s,
    )
    assert abs(prefill_s - decode_s) <= block_s * (1 + 1e-9) + 1e-9 * prefill_s


@given(state=SNAPSHOTS, resident=st.tuples(st.integers(0, 300), st.integers(0, 300)))
def test_no_other_cut_is_done_earlier(state: ReadSnapshot, resident: tuple[int, int]) -> None:
    here, there = (min(blocks, state.hit_blocks) for blocks in resident)
    state = replace(state, prefill_resident_blocks=here, decode_resident_blocks=there)

    def done_s(prefill_blocks: int) -> float:
        decode_blocks = state.hit_blocks - prefill_blocks
        return max(prefill_side_s(state, prefill_blocks), decode_side_s(state, decode_blocks))

    assert done_s(split(state).prefill_side_blocks) == min(done_s(cut) for cut in range(state.hit_blocks + 1))


@given(state=SNAPSHOTS, more=st.integers(0, 20_000))
def test_a_longer_queue_never_gets_more(state: ReadSnapshot, more: int) -> None:
    plan = split(state)
    busier_here = replace(state, prefill_read_q_tokens=state.prefill_read_q_tokens + more)
    busier_there = replace(state, decode_read_q_tokens=state.decode_read_q_tokens + more)
    assert split(busier_here).prefill_side_blocks <= plan.prefill_side_blocks
    assert split(busier_there).decode_side_blocks <= plan.decode_side_blocks


@given(hit=st.integers(0, 10_000), rate=RATES)
def test_equal_sides_share_evenly(hit: int, rate: float) -> None:
    state = snapshot(hit, prefill_read_tokens_per_s=rate, decode_read_tokens_per_s=rate)
    assert split(state) == ReadPlan(-(-hit // 2), hit // 2)
