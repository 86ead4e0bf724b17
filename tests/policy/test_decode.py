"""The two decode phases: hand-worked cases, and what must hold for every snapshot."""

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dualpath_scheduler.policy import (
    EngineState,
    NodeState,
    Placement,
    WaitingRequest,
    assign_decode,
    drain_to_groups,
)


def node(*engines: tuple[int, int, int], name: str = "d", queued: int = 0) -> NodeState:
    """A group of engines given as (seq, tok, free)."""
    states = tuple(EngineState(name, index, *engine) for index, engine in enumerate(engines))
    return NodeState(name, 0, states, queued_tokens=queued)


def requests(*tokens: int) -> list[WaitingRequest]:
    return [WaitingRequest(f"r{index}", count, 0, index) for index, count in enumerate(tokens)]


DRAIN_CASES = {
    "no groups": (requests(5), [], []),
    "to the least tokens in all, which grow": (
        requests(10, 10, 10),
        [node((1, 15, 0), name="a"), node((9, 0, 0), name="b")],
        ["b", "b", "a"],
    ),
    "a group's queue counts": (requests(1), [node((0, 0, 9), name="a", queued=4), node((0, 3, 9), name="b")], ["b"]),
    "tokens of all engines count": (
        requests(1),
        [node((0, 2, 9), (0, 2, 9), name="a"), node((0, 3, 9), name="b")],
        ["b"],
    ),
    "ties go to the first node id": (
        requests(4, 4, 4),
        [node((0, 0, 9), name="b"), node((0, 0, 9), name="a")],
        ["a", "b", "a"],
    ),
}


@pytest.mark.parametrize("case", DRAIN_CASES)
def test_phase_1_hand_worked(case: str) -> None:
    waiting, nodes, expected = DRAIN_CASES[case]
    assert drain_to_groups(waiting, nodes) == [(f"r{index}", name) for index, name in enumerate(expected)]


ASSIGN_CASES = {
    "nothing waits": ([], node((0, 0, 100)), []),
    "no room at all": (requests(10), node((0, 0, 9), (0, 0, 9)), []),
    # R = all, Z = 1.05 · (20 + 100) / 2 = 63: engine 0 would stand at 10, engine 1 at 110; least seq within Z is 0.
    "least seq within Z": (requests(10, 10), node((5, 0, 100), (0, 100, 100)), [0, 0]),
    # R = r0, Z = 1.05 · (20 + 223) / 3 = 85.05: engines 0 and 1 stay within, 1 has the lesser seq though more tokens.
    "seq before tok": (requests(20), node((3, 10, 99), (2, 13, 99), (0, 200, 99)), [1]),
    # Z = 1.05 · (20 + 80) / 2 = 52.5: 40 + 20 and 40 + 20 exceed it, so the least tok of all candidates.
    "none within Z: least tok": (requests(20), node((1, 41, 99), (7, 39, 99)), [1]),
    "none within Z and equal tok: least seq": (requests(20), node((4, 40, 99), (3, 40, 99)), [1]),
    # Z = 1.05 · (20 + 20) / 2 = 21 exactly: 1 + 20 = 21 stays within, so seq decides.
    "exactly Z is within": (requests(20), node((0, 1, 99), (1, 19, 99)), [0]),
    # Total room 30: R = r0, r1. r0 fits only engine 0, r1 then only engine 1.
    "candidates have room": (requests(20, 10), node((9, 90, 20), (0, 0, 10)), [0, 1]),
    "the head without room blocks those behind": (requests(30, 1), node((0, 0, 20), (0, 0, 20)), []),
    "room shrinks as requests are placed": (requests(10, 10, 10), node((0, 0, 25)), [0, 0]),
    "ties go to the first engine": (requests(5, 5), node((0, 0, 99), (0, 0, 99)), [0, 1]),
}


@pytest.mark.parametrize("case", ASSIGN_CASES)
def test_phase_2_hand_worked(case: str) -> None:
    queue, group, expected = ASSIGN_CASES[case]
    assert assign_decode(queue, group) == [Placement(f"r{index}", "d", engine) for index, engine in enumerate(expected)]


ENGINE = st.tuples(st.integers(0, 5), st.integers(0, 80), st.integers(0, 80))
GROUP = st.lists(ENGINE, min_size=1, max_size=4).map(lambda engines: node(*engines))
QUEUE = st.lists(st.integers(1, 60), max_size=10).map(lambda tokens: requests(*tokens))


@given(QUEUE, GROUP)
def test_no_engine_is_given_what_does_not_fit_and_order_is_kept(queue, group) -> None:
    placements = assign_decode(queue, group)
    assert [p.request_id for p in placements] == [r.id for r in queue[: len(placements)]]
    given_to = Counter()
    for request, placement in zip(queue, placements, strict=False):
        given_to[placement.engine] += request.tokens
    assert all(given_to[e.engine] <= e.free_tokens for e in group.engines)


@given(QUEUE, GROUP)
def test_work_conserving(queue, group) -> None:
    placements = assign_decode(queue, group)
    free = {e.engine: e.free_tokens for e in group.engines}
    for request, placement in zip(queue, placements, strict=False):
        free[placement.engine] -= request.tokens
    assert len(placements) == len(queue) or max(free.values()) < queue[len(placements)].tokens


@given(QUEUE, GROUP, st.randoms(use_true_random=False))
def test_the_order_of_engines_does_not_matter(queue, group, random) -> None:
    shuffled = NodeState("d", 0, tuple(random.sample(group.engines, len(group.engines))))
    assert assign_decode(queue, shuffled) == assign_decode(queue, group)


@given(QUEUE, st.lists(GROUP, min_size=1, max_size=4))
def test_the_global_queue_is_drained_whole_and_to_the_least_loaded(queue, groups) -> None:
    groups = [NodeState(f"n{index}", 0, group.engines) for index, group in enumerate(groups)]
    drained = drain_to_groups(queue, groups)
    assert [request_id for request_id, _ in drained] == [r.id for r in queue]
    totals = {group.node_id: sum(e.tok for e in group.engines) for group in groups}
    for request, (_, name) in zip(queue, drained, strict=True):
        assert totals[name] == min(totals.values())
        totals[name] += request.tokens
    assert drain_to_groups(queue, groups[::-1]) == drained
