"""Round robin: one engine after the other, and decode engines only as far as they have room."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dualpath_scheduler.policy import EngineState, NodeState, WaitingRequest, assign_in_turn


def group(name: str, *free: int) -> NodeState:
    return NodeState(name, 0, tuple(EngineState(name, index, 0, 0, room) for index, room in enumerate(free)))


def requests(*tokens: int) -> list[WaitingRequest]:
    return [WaitingRequest(f"r{index}", count, 0, index) for index, count in enumerate(tokens)]


def engines(waiting, nodes, turn, *, needs_room) -> tuple[list[tuple[str, int]], int]:
    placements, turn = assign_in_turn(waiting, nodes, turn, needs_room=needs_room)
    assert [p.request_id for p in placements] == [r.id for r in waiting[: len(placements)]]
    return [(p.node, p.engine) for p in placements], turn


CASES = [
    # waiting, nodes, turn, needs_room, expected placements, expected turn
    (requests(1, 1, 1, 1), [group("b", 0), group("a", 0, 0)], 0, False, [("a", 0), ("a", 1), ("b", 0), ("a", 0)], 1),
    (requests(1), [group("a", 0, 0)], 1, False, [("a", 1)], 0),
    (requests(1), [group("a", 0, 0)], 7, False, [("a", 1)], 0),
    (requests(), [group("a", 0, 0)], 1, False, [], 1),
    (requests(1), [], 3, False, [], 3),
    (requests(5, 5), [group("a", 9, 4, 9)], 1, True, [("a", 2), ("a", 0)], 1),
    (requests(5, 1), [group("a", 4, 4)], 1, True, [], 1),
    (requests(5, 5, 5), [group("a", 5, 5)], 0, True, [("a", 0), ("a", 1)], 0),
]


@pytest.mark.parametrize(("waiting", "nodes", "turn", "needs_room", "expected", "then"), CASES)
def test_hand_worked(waiting, nodes, turn, needs_room, expected, then) -> None:
    assert engines(waiting, nodes, turn, needs_room=needs_room) == (expected, then)


@given(
    st.lists(st.integers(1, 9), max_size=10),
    st.lists(st.lists(st.integers(0, 20), min_size=1, max_size=3), min_size=1, max_size=3),
    st.integers(0, 20),
)
def test_room_is_respected_and_nothing_that_fits_waits(tokens, rooms, turn) -> None:
    nodes = [group(f"n{index}", *free) for index, free in enumerate(rooms)]
    waiting = requests(*tokens)
    placed, _ = engines(waiting, nodes, turn, needs_room=True)
    free = {(n.node_id, e.engine): e.free_tokens for n in nodes for e in n.engines}
    for request, at in zip(waiting, placed, strict=False):
        free[at] -= request.tokens
    assert min(free.values()) >= 0
    assert len(placed) == len(waiting) or max(free.values()) < waiting[len(placed)].tokens


@given(st.integers(0, 30), st.integers(1, 5), st.integers(0, 9))
def test_without_rooms_everybody_gets_an_equal_share(count, width, turn) -> None:
    placed, _ = engines(requests(*[1] * count), [group("a", *[0] * width)], turn, needs_room=False)
    shares = [placed.count(("a", engine)) for engine in range(width)]
    assert len(placed) == count
    assert max(shares) - min(shares) <= 1
