"""Prefill assignment (paper, Algorithm 1): who computes a prompt."""

from collections.abc import Iterable, Sequence
from dataclasses import replace

from dualpath_scheduler.policy.snapshot import EngineState, NodeState, Placement, WaitingRequest


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
    short = [engine for node in nodes if node.read_q_tokens <= node.alpha_tokens for engine in node.engines]
    long = [engine for node in nodes if node.read_q_tokens > node.alpha_tokens for engine in node.engines]
    placements = []
    for request in waiting:
        for category in (short, long):
            ready = [engine for engine in category if engine.tok <= beta[engine.node]]
            if ready:
                break
        else:
            break
        chosen = min(ready, key=_load)
        category[category.index(chosen)] = replace(chosen, seq=chosen.seq + 1, tok=chosen.tok + request.tokens)
        placements.append(Placement(request.id, chosen.node, chosen.engine))
    return placements


def _load(engine: EngineState) -> tuple[int, str, int]:
    return engine.tok, engine.node, engine.engine
