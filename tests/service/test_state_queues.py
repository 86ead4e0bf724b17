"""Which engine gets what: reports, promises that no report has counted yet, and the policies on top of both."""

from collections import Counter

import pytest

from dualpath_configs import MODES, ModeSpec
from dualpath_scheduler.service import scheduler_pb2 as pb
from tests.service.support import BLOCK, CONTEXT, World, make_spec, prompt, publish, tokens


def queues(*engines: tuple[int, int, int], seen: int = 0, read_q: int = 0) -> pb.QueueReport:
    """A report of engines given as (seq, tok, free)."""
    return pb.QueueReport(
        seen=seen,
        read_q_tokens=read_q,
        engines=[pb.EngineReport(seq=seq, tok=tok, free_tokens=free) for seq, tok, free in engines],
    )


def test_promises_count_before_a_report_does() -> None:
    """Two requests in one go, and a third before any report: the engines take turns."""
    world = World()
    for count in (10, 4, 4):
        world.submit(prompt(count))
    world.poll("prefill-0")
    world.poll("decode-0")
    assert [a.prefill_engine for a in world.collect("prefill-0").assignments] == [0, 1, 1]
    world.collect("decode-0")
    world.submit(prompt(4))
    world.poll("prefill-0", queues=queues((0, 0, 0), (0, 0, 0)))
    world.poll("decode-0")
    assert [a.prefill_engine for a in world.collect("prefill-0").assignments] == [1], "10 tokens against 8"


def test_a_report_that_has_seen_an_assignment_replaces_the_promise() -> None:
    world = World()
    _, assignment = world.start(prompt(10))
    assert assignment.prefill_engine == 0
    world.report("prefill-0", queues=queues((1, 3, 0), (0, 0, 0), seen=assignment.serial - 1))
    world.report("prefill-0", queues=queues((1, 3, 0), (1, 4, 0), seen=assignment.serial))
    _, assignment = world.start(prompt(2))
    assert assignment.prefill_engine == 0, "3 tokens are left there, and the promise of 10 is no more"


def test_a_report_that_was_overtaken_is_ignored() -> None:
    world = World()
    _, assignment = world.start(prompt(10))
    world.report("prefill-0", queues=queues((1, 10, 0), (0, 0, 0), seen=assignment.serial))
    world.report("prefill-0", queues=queues((0, 0, 0), (0, 50, 0), seen=assignment.serial - 1))
    _, assignment = world.start(prompt(2))
    assert assignment.prefill_engine == 1


def test_nobody_above_beta_receives() -> None:
    world = World(make_spec(beta_tokens=15))
    for _ in range(5):
        world.submit(prompt(16))
    world.poll("prefill-0")
    world.poll("decode-0")
    assert len(world.collect("prefill-0").assignments) == 2
    world.poll("prefill-0")
    assert not world.collect("prefill-0").assignments
    world.poll("prefill-0", queues=queues((0, 0, 0), (1, 16, 0), seen=world.received["prefill-0"]))
    assert len(world.collect("prefill-0").assignments) == 1


def test_beta_comes_from_the_fitted_speed_where_it_is_not_given() -> None:
    world = World(make_spec(beta_tokens=None, beta_s=2.0), nodes=["decode-0"])
    world.register("prefill-0", tokens_per_s=4.0, engines=1)
    for _ in range(4):
        world.submit(prompt(5))
    world.poll("prefill-0")
    world.poll("decode-0")
    assert len(world.collect("prefill-0").assignments) == 2, "5 ≤ 8 tokens, 10 > 8"


def test_the_node_whose_card_would_run_dry_comes_first() -> None:
    world = World(make_spec(alpha_s=2.0), nodes=["decode-0"])
    for name in ("prefill-0", "prefill-1"):
        world.register(name, snic_tokens_per_s=50.0)
    world.poll("prefill-0", queues=queues((0, 0, 0), (0, 0, 0), read_q=101))
    world.poll("prefill-1", queues=queues((9, 90, 0), (9, 90, 0), read_q=100))
    world.poll("decode-0")
    world.submit()
    assert world.polls["prefill-1"].answered
    assert not world.polls["prefill-0"].answered


def test_decode_room_is_prompt_and_generation_in_whole_blocks() -> None:
    world = World(nodes=["prefill-0"])
    world.register("decode-0", engines=1, decode_tokens=CONTEXT)
    world.start(prompt(41, max_tokens=4))
    world.submit(prompt(13, max_tokens=4))
    world.poll("prefill-0")
    world.poll("decode-0")
    assert not world.collect("decode-0").assignments, "48 of 64 are taken, and 17 take 20"
    world.submit(prompt(1, max_tokens=1))
    assert not world.fetch("decode-0").assignments, "nobody overtakes the head"
    world.poll("decode-0", queues=queues((0, 0, 64), seen=world.received["decode-0"]))
    assert len(world.collect("decode-0").assignments) == 2


def test_the_request_that_has_finished_frees_its_promise() -> None:
    world = World(nodes=["prefill-0"])
    world.register("decode-0", engines=1, decode_tokens=CONTEXT)
    _, assignment = world.start(prompt(60, max_tokens=2))
    world.say("prefill-0", assignment, 1)
    world.say("decode-0", assignment, 2, finished=True)
    world.start(prompt(60, max_tokens=2))


def test_phase_1_drains_to_all_groups_and_phase_2_serves_those_that_fetch() -> None:
    world = World(nodes=["prefill-0", "decode-0", "decode-1"])
    for _ in range(4):
        world.submit(prompt(8))
    world.poll("prefill-0")
    world.poll("decode-0")
    assert len(world.collect("decode-0").assignments) == 2
    assert len(world.fetch("decode-1").assignments) == 2


@pytest.mark.parametrize(
    ("prefill_queue", "decode_queue", "expected"), [(0, 0, (2, 0)), (9, 8, (0, 2)), (8, 9, (2, 0))]
)
def test_the_side_with_the_shorter_queue_reads(prefill_queue: int, decode_queue: int, expected: tuple) -> None:
    world = World()
    publish(world, tokens(8))
    world.report("prefill-0", queues=queues(read_q=prefill_queue))
    world.report("decode-0", queues=queues(read_q=decode_queue))
    _, assignment = world.start(prompt(10))
    assert (assignment.prefill_side_blocks, assignment.decode_side_blocks) == expected


def test_planned_reads_count_in_the_queues_until_they_are_seen() -> None:
    world = World()
    publish(world, tokens(8))
    sides = []
    for _ in range(4):
        _, assignment = world.start(prompt(10))
        sides.append(assignment.prefill_side_blocks)
    assert sides == [2, 0, 2, 0]
    seen = {name: world.received[name] for name in ("prefill-0", "decode-0")}
    world.report("prefill-0", queues=queues(seen=seen["prefill-0"], read_q=0))
    world.report("decode-0", queues=queues(seen=seen["decode-0"], read_q=2 * BLOCK))
    assert [world.start(prompt(10))[1].prefill_side_blocks for _ in range(2)] == [2, 2], "0 and 8 against 8"


@pytest.mark.parametrize(
    ("mode", "expected"),
    [
        (MODES["basic"], [2, 2, 2, 2]),
        (ModeSpec(dual_path=False), [2, 2, 2, 2]),
        (ModeSpec(scheduling=False), [2, 0, 2, 0]),
    ],
)
def test_the_switches_choose_who_reads(mode: ModeSpec, expected: list[int]) -> None:
    world = World(make_spec(mode=mode))
    publish(world, tokens(8))
    plans = [world.start(prompt(10))[1] for _ in range(4)]
    assert [plan.prefill_side_blocks for plan in plans] == expected
    assert all(plan.prefill_side_blocks + plan.decode_side_blocks == 2 for plan in plans)


def test_without_scheduling_requests_are_dealt_in_turn() -> None:
    world = World(make_spec(mode=MODES["basic"]), nodes=["prefill-0", "prefill-1", "decode-0", "decode-1"])
    for count in (40, 1, 40, 1, 40, 1, 40, 1):
        world.submit(prompt(count, max_tokens=1))
    got = Counter()
    for name in ("prefill-0", "prefill-1"):
        for assignment in world.fetch(name).assignments:
            got[assignment.prefill_node, assignment.prefill_engine, len(assignment.tokens)] += 1
    assert got == {
        ("prefill-0", 0, 40): 2,
        ("prefill-0", 1, 1): 2,
        ("prefill-1", 0, 40): 2,
        ("prefill-1", 1, 1): 2,
    }


def test_without_scheduling_decode_room_is_still_respected() -> None:
    world = World(make_spec(mode=MODES["basic"]), nodes=["prefill-0"])
    world.register("decode-0", engines=2, decode_tokens=CONTEXT)
    for _ in range(3):
        world.submit(prompt(40, max_tokens=1))
    assert [a.decode_engine for a in world.fetch("decode-0").assignments] == [0, 1]
    seen = world.received["decode-0"]
    world.poll("decode-0", queues=queues((0, 0, 64), (1, 41, 20), seen=seen))
    assert [a.decode_engine for a in world.collect("decode-0").assignments] == [0]
