"""Loading only what is there sooner than it could be computed."""

import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dualpath_scheduler.policy import READ_PLANS, ComputeState, ReadSnapshot, blocks_to_load, shortened
from dualpath_scheduler.policy.read_times import reading_s

BLOCK_A_SECOND = {"prefill_read_tokens_per_s": 64.0, "decode_read_tokens_per_s": 64.0}


def state(hit: int, prefill_q: int = 0, decode_q: int = 0, **fields: int) -> ReadSnapshot:
    return ReadSnapshot(hit, prefill_q * 64, decode_q * 64, **BLOCK_A_SECOND, **fields)


@pytest.mark.parametrize(
    ("plan", "snapshot", "queue_s", "computed_per_s", "expected"),
    [
        # Ten blocks are read in 10 s; computed in 20 s, or in 5 s. A tie is loaded.
        ("prefill-only", state(10), 0.0, 0.5, 10),
        ("prefill-only", state(10), 0.0, 2.0, 0),
        ("prefill-only", state(10), 0.0, 1.0, 10),
        # Over both sides in 5 s.
        ("split", state(10), 0.0, 1.9, 10),
        ("split", state(10), 0.0, 2.1, 0),
        # A queue of 12 s in front of 10 s of reading, against 20 s of computing, or 25 s.
        ("prefill-only", state(10, prefill_q=12), 0.0, 0.5, 0),
        ("prefill-only", state(10, prefill_q=12), 0.0, 0.4, 10),
        ("shorter-queue", state(10, prefill_q=12), 0.0, 0.5, 10),  # the other side has none
        # The engine is busy for 10 s anyway.
        ("prefill-only", state(10), 10.0, 100.0, 10),
        ("prefill-only", state(10), 9.0, 100.0, 9),  # what is read until then
        ("prefill-only", state(10, prefill_q=9), 9.0, 100.0, 0),
        ("prefill-only", state(10), 9.0, 0.5, 10),
        # Four blocks lie in memory: six more are read in 6 s after 12 s of queue, or computed in 12 s.
        ("prefill-only", state(10, prefill_q=12, prefill_resident_blocks=4), 0.0, 0.5, 4),
        ("prefill-only", state(10, prefill_q=12, prefill_resident_blocks=10), 0.0, 100.0, 10),
        # The last four lie in the decode side's memory: without the six before them they are of no use.
        ("shorter-queue", state(10, prefill_q=3, decode_q=4, decode_resident_blocks=4), 0.0, 1.0, 10),
        ("shorter-queue", state(10, prefill_q=5, decode_q=5, decode_resident_blocks=4), 0.0, 1.0, 0),
        ("prefill-only", state(0), 0.0, 1.0, 0),
        # Computing takes no time, as far as anybody knows.
        ("prefill-only", state(10), 0.0, math.inf, 0),
    ],
)
def test_worked_by_hand(
    plan: str, snapshot: ReadSnapshot, queue_s: float, computed_per_s: float, expected: int
) -> None:
    compute = ComputeState(queue_s, computed_per_s * 64)
    assert blocks_to_load(snapshot, READ_PLANS[plan], compute) == expected


SNAPSHOTS = st.builds(
    ReadSnapshot,
    hit_blocks=st.integers(0, 40),
    prefill_read_q_tokens=st.integers(0, 5000),
    decode_read_q_tokens=st.integers(0, 5000),
    prefill_read_tokens_per_s=st.floats(100, 10_000),
    decode_read_tokens_per_s=st.floats(100, 10_000),
)
COMPUTE = st.builds(ComputeState, st.floats(0, 10), st.floats(100, 10_000))


@pytest.mark.parametrize("plan", ["shorter-queue", "split", "prefill-only"])
@given(snapshot=SNAPSHOTS, resident=st.tuples(st.integers(0, 40), st.integers(0, 40)), compute=COMPUTE)
def test_no_other_prefix_is_there_sooner(
    plan: str, snapshot: ReadSnapshot, resident: tuple[int, int], compute: ComputeState
) -> None:
    here, there = (min(blocks, snapshot.hit_blocks) for blocks in resident)
    snapshot = replace(snapshot, prefill_resident_blocks=here, decode_resident_blocks=there)

    def there_s(blocks: int) -> float:
        part = shortened(snapshot, blocks)
        computed_tokens = (snapshot.hit_blocks - blocks) * 64
        return (
            max(compute.queue_s, reading_s(part, READ_PLANS[plan](part))) + computed_tokens / compute.new_tokens_per_s
        )

    chosen = blocks_to_load(snapshot, READ_PLANS[plan], compute)
    best_s = min(there_s(blocks) for blocks in range(snapshot.hit_blocks + 1))
    # A split is even to a block: one block less may save reading one while the other side has nothing left to read.
    uneven_s = 64 / min(snapshot.prefill_read_tokens_per_s, snapshot.decode_read_tokens_per_s) if plan == "split" else 0
    assert there_s(chosen) <= best_s * (1 + 1e-9) + 1e-9 + uneven_s
