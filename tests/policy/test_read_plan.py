"""Read plans: who reads which blocks."""

from dataclasses import replace
from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dualpath_configs import MODES, ModeSpec, SchedulingSpec
from dualpath_scheduler.policy import READ_PLANS, ReadPlan, ReadSnapshot, read_plan_for

SNAPSHOTS = st.builds(
    ReadSnapshot, st.integers(0, 100), st.integers(0, 10_000), st.integers(0, 10_000), st.integers(0, 1000)
)


@pytest.mark.parametrize(
    ("prefill_queue", "decode_queue", "expected"),
    [
        (0, 0, ReadPlan(7, 0)),  # a tie is the prefill side's
        (64, 0, ReadPlan(0, 7)),
        (0, 64, ReadPlan(7, 0)),
        (64, 63, ReadPlan(0, 7)),
        (64, 64, ReadPlan(7, 0)),
    ],
)
def test_the_shorter_queue_reads_everything(prefill_queue: int, decode_queue: int, expected: ReadPlan) -> None:
    assert READ_PLANS["shorter-queue"](ReadSnapshot(7, prefill_queue, decode_queue)) == expected


def test_alternate_takes_turns_whatever_the_queues() -> None:
    plans = [READ_PLANS["alternate"](ReadSnapshot(3, 9, 0, ordinal)) for ordinal in range(4)]
    assert plans == [ReadPlan(3, 0), ReadPlan(0, 3), ReadPlan(3, 0), ReadPlan(0, 3)]


@pytest.mark.parametrize("name", READ_PLANS)
@given(snapshot=SNAPSHOTS)
def test_every_plan_covers_the_hit_blocks_exactly(name: str, snapshot: ReadSnapshot) -> None:
    plan = READ_PLANS[name](snapshot)
    assert plan.prefill_side_blocks + plan.decode_side_blocks == snapshot.hit_blocks
    assert min(plan.prefill_side_blocks, plan.decode_side_blocks) >= 0


@pytest.mark.parametrize(
    ("mode", "read_plan", "name"),
    [
        (MODES["basic"], "paper", "prefill-only"),
        (MODES["dualpath"], "paper", "shorter-queue"),
        (MODES["oracle"], "paper", "shorter-queue"),
        (ModeSpec(dual_path=False), "paper", "prefill-only"),
        (ModeSpec(scheduling=False), "paper", "alternate"),
        (MODES["dualpath"], "split", "split"),
        (MODES["dualpath"], "prefill-only", "prefill-only"),
        (ModeSpec(scheduling=False), "split", "split"),
        (MODES["basic"], "split", "prefill-only"),  # there is one path, whatever is asked for
    ],
)
def test_the_spec_chooses_the_policy(mode: ModeSpec, read_plan: str, name: str) -> None:
    scheduling = SchedulingSpec.model_validate({"read_plan": read_plan})
    assert read_plan_for(mode, scheduling) is READ_PLANS[name]


def test_every_policy_has_a_name_in_the_spec() -> None:
    names = get_args(SchedulingSpec.model_fields["read_plan"].annotation)
    assert set(names) == {"paper", *READ_PLANS}


@pytest.mark.parametrize(
    ("prefill_resident", "decode_resident", "prefill_is_shorter", "decode_is_shorter"),
    [
        (0, 0, ReadPlan(7, 0), ReadPlan(0, 7)),  # the paper's policy
        (3, 0, ReadPlan(7, 0), ReadPlan(3, 4)),
        (0, 3, ReadPlan(4, 3), ReadPlan(0, 7)),
        (2, 3, ReadPlan(4, 3), ReadPlan(2, 5)),  # the two blocks between are the shorter queue's
        (7, 0, ReadPlan(7, 0), ReadPlan(7, 0)),
        (0, 7, ReadPlan(0, 7), ReadPlan(0, 7)),
        (4, 3, ReadPlan(4, 3), ReadPlan(4, 3)),
        (5, 5, ReadPlan(5, 2), ReadPlan(5, 2)),  # what both have comes the shorter way
        (7, 7, ReadPlan(7, 0), ReadPlan(7, 0)),
    ],
)
def test_blocks_in_memory_are_read_where_they_lie(
    prefill_resident: int, decode_resident: int, prefill_is_shorter: ReadPlan, decode_is_shorter: ReadPlan
) -> None:
    for queue, expected in ((64, prefill_is_shorter), (0, decode_is_shorter)):
        snapshot = ReadSnapshot(
            7, 32, queue, prefill_resident_blocks=prefill_resident, decode_resident_blocks=decode_resident
        )
        assert READ_PLANS["shorter-queue"](snapshot) == expected


@pytest.mark.parametrize("name", ["shorter-queue", "split"])
@given(snapshot=SNAPSHOTS, resident=st.tuples(st.integers(0, 100), st.integers(0, 100)))
def test_storage_is_asked_for_what_is_in_no_memory(
    name: str, snapshot: ReadSnapshot, resident: tuple[int, int]
) -> None:
    prefill, decode = (min(blocks, snapshot.hit_blocks) for blocks in resident)
    snapshot = replace(snapshot, prefill_resident_blocks=prefill, decode_resident_blocks=decode)
    plan = READ_PLANS[name](snapshot)
    assert plan.prefill_side_blocks + plan.decode_side_blocks == snapshot.hit_blocks
    assert min(plan.prefill_side_blocks, plan.decode_side_blocks) >= 0
    from_storage = max(0, plan.prefill_side_blocks - prefill) + max(0, plan.decode_side_blocks - decode)
    assert from_storage == max(0, snapshot.hit_blocks - prefill - decode)
