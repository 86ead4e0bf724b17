"""Prefill assignment (paper, Algorithm 1): who computes a prompt."""

import heapq
from collections.abc import Iterable, Sequence

from dualpath_scheduler.policy.snapshot import NodeState, Placement, WaitingRequest


def assign_prefill(waiting: Iterable[WaitingRequest], nodes: Sequence[NodeState]) -> list[Placement]:
    """Places requests, first in first out, on the engines of the prefill groups that fetch at the moment.

    An engine is *overloaded* where tok > β, and gets nothing. Of the others, those of a node with read_q ≤ α are the
    *short queue*: they come first, else their SNIC would run dry. Those with read_q > α are the *long queue*. The head
    request goes to the engine with the least tok of the short queue, else of the long queue, and its tokens count
    there from then on; where every engine is overloaded, it and all behind it keep waiting.

    `waiting` is in order of arrival and is consumed only as far as requests are placed, plus one. Ties go to the
    first node id, then to the first engine.
    """
    beta = {node.node_id: node.beta_tokens for node in nodes}
    short = _least_loaded(node for node in nodes if node.read_q_tokens <= node.alpha_tokens)
    long = _least_loaded(node for node in nodes if node.read_q_tokens > node.alpha_tokens)
    placements: list[Placement] = []
    if not short and not long:
        return placements
    for request in waiting:
        category = short or long
        if not category:
            break
        tok, node, engine = category[0]
        tok += request.tokens
        if tok <= beta[node]:
            heapq.heapreplace(category, (tok, node, engine))
        else:
            heapq.heappop(category)
        placements.append(Placement(request.id, node, engine))
    return placements


def _least_loaded(nodes: Iterable[NodeState]) -> list[tuple[int, str, int]]:
    """A heap of the engines that are not overloaded, as (tok, node, engine)."""
    found = [engine for node in nodes for engine in node.ready]
    heapq.heapify(found)
    return found
