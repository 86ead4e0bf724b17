"""Prefill assignment: hand-worked cases of Algorithm 1, and what must hold for every snapshot."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dualpath_scheduler.policy import EngineState, NodeState, Placement, WaitingRequest, assign_prefill


def node(name: str, toks: list[int], *, read_q: int = 0, alpha: float = 100, beta: float = 50) -> NodeState:
    engines = tuple(EngineState(name, index, seq=0, tok=tok) for index, tok in enumerate(toks))
    return NodeState(name, read_q, engines, alpha, beta)


def requests(*tokens: int) -> list[WaitingRequest]:
    return [WaitingRequest(f"r{index}", count, 0, index) for index, count in enumerate(tokens)]


CASES = {
    "nothing waits": (requests(), [node("a", [0])], []),
    "no group fetches": (requests(5), [], []),
    "an idle group takes turns by tokens": (
        requests(30, 10, 10, 5),
        [node("a", [0, 0])],
        [("a", 0), ("a", 1), ("a", 1), ("a", 1)],
    ),
    "exactly β still receives, one more does not": (
        requests(10, 10, 10),
        [node("a", [50, 51])],
        [("a", 0)],
    ),
    "a request may carry an engine over β, once": (requests(500, 1), [node("a", [0])], [("a", 0)]),
    "short queue before long queue, whatever the tokens": (
        requests(10, 10),
        [node("a", [0], read_q=101), node("b", [40], read_q=100)],
        [("b", 0), ("b", 0)],
    ),
    "long queue when the short one is overloaded": (
        requests(11, 7, 7),
        [node("a", [3, 0], read_q=101), node("b", [40])],
        [("b", 0), ("a", 1), ("a", 0)],
    ),
    "all overloaded": (requests(1), [node("a", [51]), node("b", [99], read_q=500)], []),
    "the head is not overtaken by a smaller one": (requests(1000, 1), [node("a", [50])], [("a", 0)]),
    "ties: first node id, then first engine": (
        requests(1, 1, 1, 1),
        [node("b", [0, 0]), node("a", [0, 0])],
        [("a", 0), ("a", 1), ("b", 0), ("b", 1)],
    ),
    "each node has its own α and β": (
        requests(5, 5),
        [node("a", [20], beta=10), node("b", [20], read_q=9, alpha=8), node("c", [30], alpha=0)],
        [("c", 0), ("c", 0)],
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_hand_worked(case: str) -> None:
    waiting, nodes, expected = CASES[case]
    assert assign_prefill(waiting, nodes) == [
        Placement(f"r{index}", name, engine) for index, (name, engine) in enumerate(expected)
    ]


NODES = st.lists(
    st.tuples(st.lists(st.integers(0, 80), min_size=1, max_size=3), st.integers(0, 200)), min_size=0, max_size=4
).map(lambda shapes: [node(f"n{index}", toks, read_q=read_q) for index, (toks, read_q) in enumerate(shapes)])
WAITING = st.lists(st.integers(1, 60), max_size=12).map(lambda tokens: requests(*tokens))


def loads_before(waiting: list[WaitingRequest], nodes: list[NodeState], placements: list[Placement]):
    """Yields the tokens of every engine before each placement, and after the last."""
    load = {(n.node_id, e.engine): e.tok for n in nodes for e in n.engines}
    for request, placement in zip(waiting, placements, strict=False):
        yield dict(load)
        load[placement.node, placement.engine] += request.tokens
    yield load


@given(WAITING, NODES)
def test_first_in_first_out_and_nobody_above_beta_receives(waiting, nodes) -> None:
    placements = assign_prefill(waiting, nodes)
    assert [p.request_id for p in placements] == [r.id for r in waiting[: len(placements)]]
    for load, placement in zip(loads_before(waiting, nodes, placements), placements, strict=False):
        assert load[placement.node, placement.engine] <= 50


@given(WAITING, NODES)
def test_work_conserving(waiting, nodes) -> None:
    placements = assign_prefill(waiting, nodes)
    *_, load = loads_before(waiting, nodes, placements)
    assert len(placements) == len(waiting) or all(tok > 50 for tok in load.values())


@given(WAITING, NODES)
def test_a_long_queue_receives_only_when_every_short_one_is_overloaded(waiting, nodes) -> None:
    short = {n.node_id for n in nodes if n.read_q_tokens <= n.alpha_tokens}
    placements = assign_prefill(waiting, nodes)
    for load, placement in zip(loads_before(waiting, nodes, placements), placements, strict=False):
        if placement.node not in short:
            assert all(tok > 50 for (name, _), tok in load.items() if name in short)


@given(WAITING, NODES, st.randoms(use_true_random=False))
def test_the_order_of_nodes_and_engines_does_not_matter(waiting, nodes, random) -> None:
    shuffled = [
        NodeState(
            n.node_id,
            n.read_q_tokens,
            tuple(random.sample(n.engines, len(n.engines))),
            n.alpha_tokens,
            n.beta_tokens,
        )
        for n in random.sample(nodes, len(nodes))
    ]
    assert assign_prefill(waiting, shuffled) == assign_prefill(waiting, nodes)


def test_the_queue_is_consumed_only_as_far_as_needed() -> None:
    endless = (WaitingRequest(f"r{index}", 30, 0, index) for index in itertools.count())
    assert len(assign_prefill(endless, [node("a", [0, 0])])) == 4
    assert next(endless).order == 5
