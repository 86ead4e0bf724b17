"""Affinity: a group's own KV counts against its longer queue."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dualpath_scheduler.policy import EngineState, NodeState, WaitingRequest, drain_to_groups, drain_with_affinity


def group(node_id: str, *tok: int, free: int = 1_000_000, queued: int = 0) -> NodeState:
    engines = tuple(EngineState(node_id, e, seq=1, tok=tokens, free_tokens=free) for e, tokens in enumerate(tok))
    return NodeState(node_id, 0, engines, queued_tokens=queued)


def request(name: str, tokens: int) -> WaitingRequest:
    return WaitingRequest(name, tokens, tokens, 0)


@pytest.mark.parametrize(
    ("here", "there", "held", "worth", "expected"),
    [
        # 900 tokens held are worth a queue that is 800 longer, and not one that is 1,000 longer.
        (group("a", 1000), group("b", 1800), {"b": 900}, 1.0, "b"),
        (group("a", 1000), group("b", 2000), {"b": 900}, 1.0, "a"),
        (group("a", 1000), group("b", 2000), {"b": 900}, 2.0, "b"),
        (group("a", 1000), group("b", 1800), {"b": 900}, 0.5, "a"),
        # A tie is the shorter queue's; of equal queues, the first group's.
        (group("a", 1000), group("b", 1900), {"b": 900}, 1.0, "a"),
        (group("a", 1000), group("b", 1000), {"a": 500, "b": 500}, 1.0, "a"),
        # What both hold cancels out, where queues do not.
        (group("a", 1000), group("b", 1400), {"a": 500, "b": 950}, 1.0, "b"),
        (group("a", 1000), group("b", 1600), {"a": 500, "b": 950}, 1.0, "a"),
        # All engines of a group count, and so does what waits in its queue.
        (group("a", 1000, 500), group("b", 1800), {"b": 400}, 1.0, "b"),
        (group("a", 1000), group("b", 900, queued=800), {"b": 600}, 1.0, "a"),
        # No engine there has room for 1,000 tokens: it would wait.
        (group("a", 1000), group("b", 1100, free=999), {"b": 900}, 1.0, "a"),
        (group("a", 1000), group("b", 1100, free=1000), {"b": 900}, 1.0, "b"),
        (group("a", 1000), group("b", 1100, free=1000, queued=1), {"b": 900}, 1.0, "a"),
        # Nobody that is here holds anything.
        (group("a", 1000), group("b", 1100), {"gone": 900}, 1.0, "a"),
    ],
)
def test_worked_by_hand(here: NodeState, there: NodeState, held: dict[str, int], worth: float, expected: str) -> None:
    drained = drain_with_affinity([request("r", 1000)], [here, there], {"r": held}, worth=worth)
    assert drained == [("r", expected)]


def test_what_was_drained_counts_for_those_behind() -> None:
    waiting = [request(name, 1000) for name in ("r", "s", "t")]
    held = {name: {"b": 1000} for name in ("r", "s", "t")}
    groups = [group("a", 0), group("b", 0)]
    # b: 0 - 1000 against 0; 1000 - 1000 against 0, a tie; then 1000 - 1000 against 1000.
    assert drain_with_affinity(waiting, groups, held, worth=1.0) == [("r", "b"), ("s", "a"), ("t", "b")]


def test_without_groups_nothing_moves() -> None:
    assert drain_with_affinity([request("r", 1)], [], {}, worth=1.0) == []


GROUPS = st.lists(st.integers(0, 5000), min_size=1, max_size=4).map(
    lambda toks: [group(f"n{i}", tok) for i, tok in enumerate(toks)]
)
SIZES = st.lists(st.integers(1, 2000), max_size=12)


@given(groups=GROUPS, sizes=SIZES)
def test_without_kv_it_is_balance(groups: list[NodeState], sizes: list[int]) -> None:
    waiting = [request(f"r{i}", size) for i, size in enumerate(sizes)]
    assert drain_with_affinity(waiting, groups, {}, worth=1.0) == drain_to_groups(waiting, groups)


@given(groups=GROUPS, sizes=SIZES, data=st.data())
def test_groups_differ_by_no_more_than_two_requests(groups: list[NodeState], sizes: list[int], data) -> None:
    """In balance, one: nobody is given a request while another has less, and KV is worth one at most."""
    waiting = [request(f"r{i}", size) for i, size in enumerate(sizes)]
    shares = st.dictionaries(st.sampled_from([node.node_id for node in groups]), st.floats(0, 1))
    held = {r.id: {node: int(share * r.tokens) for node, share in data.draw(shares).items()} for r in waiting}
    drained = drain_with_affinity(waiting, groups, held, worth=1.0)
    assert [name for name, _ in drained] == [r.id for r in waiting]
    totals = {node.node_id: node.tok for node in groups}
    for (_, node), size in zip(drained, sizes, strict=True):
        assert totals[node] <= min(totals.values()) + size
        totals[node] += size
