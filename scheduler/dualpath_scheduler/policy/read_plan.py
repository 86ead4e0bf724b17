"""The read plan: which side reads how many of a request's hit blocks (paper, scheduling)."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import final

from dualpath_configs import ModeSpec


@final
@dataclass(frozen=True)
class ReadPlan:
    """The prefill side reads the first `prefill_side_blocks` hit blocks, the decode side those after them."""

    prefill_side_blocks: int
    decode_side_blocks: int


@final
@dataclass(frozen=True)
class ReadSnapshot:
    """What is known when both engines of a request are: its stored blocks and the two nodes' read queues.

    `ordinal` counts the plans that were fixed before this one. Of the hit blocks, the first `prefill_resident_blocks`
    lie in the prefill node's memory and the last `decode_resident_blocks` in the decode node's: each of the two sides
    may take those without asking storage.
    """

    hit_blocks: int
    prefill_read_q_tokens: int
    decode_read_q_tokens: int
    ordinal: int = 0
    prefill_resident_blocks: int = 0
    decode_resident_blocks: int = 0


ReadPlanPolicy = Callable[[ReadSnapshot], ReadPlan]


def shorter_queue(snapshot: ReadSnapshot) -> ReadPlan:
    """The side with the shorter read queue reads the whole request (the paper's policy); a tie is the prefill side's.

    The prefill side has the shorter way: what the decode side reads still has to cross the compute network. Blocks in
    a side's memory are that side's, both sides' the prefill side's; then the rest is what the shorter queue reads.
    """
    hit, prefill = snapshot.hit_blocks, snapshot.prefill_resident_blocks
    decode = min(snapshot.decode_resident_blocks, hit - prefill)
    if snapshot.decode_read_q_tokens < snapshot.prefill_read_q_tokens:
        return ReadPlan(prefill, hit - prefill)
    return ReadPlan(hit - decode, decode)


def prefill_only(snapshot: ReadSnapshot) -> ReadPlan:
    """The prefill side reads everything: one path, as in systems before DualPath."""
    return ReadPlan(snapshot.hit_blocks, 0)


def alternate(snapshot: ReadSnapshot) -> ReadPlan:
    """The sides read whole requests in turn, the prefill side first: both paths, without looking at queues."""
    if snapshot.ordinal % 2:
        return ReadPlan(0, snapshot.hit_blocks)
    return ReadPlan(snapshot.hit_blocks, 0)


READ_PLANS: Mapping[str, ReadPlanPolicy] = MappingProxyType(
    {"shorter-queue": shorter_queue, "prefill-only": prefill_only, "alternate": alternate}
)


def read_plan_for(mode: ModeSpec) -> ReadPlanPolicy:
    """The policy of a mode: one path without `dual_path`, and queues are looked at only with `scheduling`."""
    if not mode.dual_path:
        return prefill_only
    return shorter_queue if mode.scheduling else alternate
