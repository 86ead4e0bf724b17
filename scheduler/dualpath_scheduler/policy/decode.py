"""Decode assignment in two phases (paper, scheduling): first a group, then an engine of it."""

import heapq
from collections.abc import Iterable, Sequence

from dualpath_scheduler.policy.snapshot import NodeState, Placement, WaitingRequest

# Z lets an engine exceed the mean by 5 %; kept as a ratio of integers, so that no rounding decides a tie.
_SLACK_NUMERATOR, _SLACK_DENOMINATOR = 105, 100


def drain_to_groups(waiting: Iterable[WaitingRequest], nodes: Sequence[NodeState]) -> list[tuple[str, str]]:
    """Phase 1, when any decode group fetches: the whole global queue goes to groups, as (request id, node id).

    Each request, in order of arrival, goes to the group with the least tokens in all: those of its engines and those
    queued in it. Ties go to the first node id. Without groups nothing moves.
    """
    totals = [(node.tok + node.queued_tokens, node.node_id) for node in nodes]
    if not totals:
        return []
    heapq.heapify(totals)
    drained = []
    for request in waiting:
        total, node_id = totals[0]
        heapq.heapreplace(totals, (total + request.tokens, node_id))
        drained.append((request.id, node_id))
    return drained


def assign_decode(queue: Iterable[WaitingRequest], node: NodeState) -> list[Placement]:
    """Phase 2, when a decode group fetches: requests of the group's own queue go to its engines.

    R is the longest run from the head that fits the group's free room, and Z = 1.05 · (Σ_R len + Σ_e tok_e) / |E|.
    For the head request the candidates are the engines with room for it. Of those that stay within Z the one with the
    least seq takes it (then the least tok); if there are none, the candidate with the least tok (then the least seq).
    Without a candidate, it and all behind it keep waiting. Last ties go to the first engine. `queue` is consumed only
    as far as it fits, plus one.
    """
    engines = node.engines
    run = _run_that_fits(queue, sum([engine.free_tokens for engine in engines]))
    if not run:
        return []
    seq, tok = [engine.seq for engine in engines], [engine.tok for engine in engines]
    free = [engine.free_tokens for engine in engines]
    # `tok + len ≤ Z` in whole numbers.
    z = _SLACK_NUMERATOR * (sum([r.tokens for r in run]) + node.tok) // (_SLACK_DENOMINATOR * len(engines))
    placements = []
    for request in run:
        tokens = request.tokens
        within, beyond = [], []
        for at, room in enumerate(free):
            if room < tokens:
                continue
            if tok[at] + tokens <= z:
                within.append((seq[at], tok[at], engines[at].engine, at))
            else:
                beyond.append((tok[at], seq[at], engines[at].engine, at))
        if not within and not beyond:
            break
        chosen = min(within or beyond)[3]
        seq[chosen] += 1
        tok[chosen] += tokens
        free[chosen] -= tokens
        placements.append(Placement(request.id, engines[chosen].node, engines[chosen].engine))
    return placements


def _run_that_fits(queue: Iterable[WaitingRequest], room_tokens: int) -> list[WaitingRequest]:
    run = []
    for request in queue:
        room_tokens -= request.tokens
        if room_tokens < 0:
            break
        run.append(request)
    return run
