"""Decode assignment, phase 1, with affinity: a session returns to the group that holds its KV, where that pays."""

import heapq
from collections.abc import Iterable, Mapping, Sequence

from dualpath_scheduler.policy.snapshot import NodeState, WaitingRequest

Held = Mapping[str, Mapping[str, int]]
"""By request id and node id: tokens of the stored prefix that lie in the node's memory. What is absent is 0."""


def drain_with_affinity(
    waiting: Iterable[WaitingRequest], nodes: Sequence[NodeState], held: Held, *, worth: float
) -> list[tuple[str, str]]:
    """As `drain_to_groups`, but KV that a group holds makes its queue count as shorter: `worth` tokens for each of it.

    So a request goes to the group where tokens in all, less what its KV there is worth, are least. At a worth of 1,
    groups differ by at most about a request more than they would in balance, since no request has more KV than tokens.
    KV counts only in a group that has an engine with room for the request: elsewhere it would wait for others to end,
    which takes longer than any read. Ties go to the group with the least tokens, then to the first node id.
    """
    totals = {node.node_id: node.tok + node.queued_tokens for node in nodes}
    room = {node.node_id: node.widest_room - node.queued_tokens for node in nodes}
    least = [(total, node_id) for node_id, total in totals.items()]
    heapq.heapify(least)
    drained: list[tuple[str, str]] = []
    for request in waiting if least else ():
        while least[0][0] != totals[least[0][1]]:  # its group has got something since
            heapq.heapreplace(least, (totals[least[0][1]], least[0][1]))
        kept = held.get(request.id, {})
        here = {node: tokens for node, tokens in kept.items() if room.get(node, -1) >= request.tokens}
        choices = {least[0][1], *here}
        chosen = min((totals[node] - worth * here.get(node, 0), totals[node], node) for node in choices)[2]
        totals[chosen] += request.tokens
        room[chosen] -= request.tokens
        drained.append((request.id, chosen))
    return drained
