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
    short = _heads(node for node in nodes if node.read_q_tokens <= node.alpha_tokens)
    long = _heads(node for node in nodes if node.read_q_tokens > node.alpha_tokens)
    placements: list[Placement] = []
    if not short and not long:
        return placements
    for request in waiting:
        category = short or long
        if not category:
            break
        tok, node, engine, behind, at = heapq.heappop(category)
        placements.append(Placement(request.id, node, engine))
        if at < len(behind):
            heapq.heappush(category, (*behind[at], behind, at + 1))
        if tok + request.tokens <= beta[node]:
            heapq.heappush(category, (tok + request.tokens, node, engine, (), 0))
    return placements


_Head = tuple[int, str, int, tuple[tuple[int, str, int], ...], int]
"""An engine as (tok, node, engine), its node's engines that are ready, and which of those comes after it."""


def _heads(nodes: Iterable[NodeState]) -> list[_Head]:
    """A heap of each node's least loaded engine, so that the others are not looked at before their turn comes."""
    found: list[_Head] = [(*node.ready[0], node.ready, 1) for node in nodes if node.ready]
    heapq.heapify(found)
    return found
