"""Round robin over engines, for both roles: what stands in for the policies where scheduling is switched off."""

from collections.abc import Iterable, Sequence
from dataclasses import replace

from dualpath_scheduler.policy.snapshot import NodeState, Placement, WaitingRequest


def assign_in_turn(
    waiting: Iterable[WaitingRequest], nodes: Sequence[NodeState], turn: int, *, needs_room: bool
) -> tuple[list[Placement], int]:
    """Deals requests, first in first out, to one engine after the other; returns the placements and the next turn.

    Engine `turn` modulo the number of engines (all nodes', by node id, then engine) is first. Prefill engines take
    whatever their turn brings. Decode engines (`needs_room`) without room for the head request are passed over, and
    where none has room, it and all behind it keep waiting.
    """
    engines = sorted((e for node in nodes for e in node.engines), key=lambda e: (e.node, e.engine))
    placements: list[Placement] = []
    if not engines:
        return placements, turn
    for request in waiting:
        turns = range(turn, turn + len(engines)) if needs_room else (turn,)
        for at in turns:
            chosen = engines[at % len(engines)]
            if not needs_room or chosen.free_tokens >= request.tokens:
                break
        else:
            break
        engines[at % len(engines)] = replace(chosen, free_tokens=chosen.free_tokens - request.tokens)
        placements.append(Placement(request.id, chosen.node, chosen.engine))
        turn = (at + 1) % len(engines)
    return placements, turn
