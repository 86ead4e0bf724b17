"""How much of a hit to load: only what is predicted to be there sooner than it could be computed."""

from bisect import bisect_right
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import final

from dualpath_scheduler.policy.read_times import reading_s
from dualpath_scheduler.policy.snapshot import ReadPlan, ReadSnapshot


@final
@dataclass(frozen=True)
class ComputeState:
    """The prefill engine of a request: seconds of work that wait there, and how fast it computes what is not loaded."""

    queue_s: float
    new_tokens_per_s: float


Plan = Callable[[ReadSnapshot], ReadPlan]


def blocks_to_load(snapshot: ReadSnapshot, plan: Plan, compute: ComputeState) -> int:
    """How many of the hit blocks, from the front, are loaded; the rest of the prompt is computed.

    A block more is worth loading where it delays the start of computing by less than computing it takes. Computing
    starts when the engine is free, so that reads cost nothing until then; apart from that they begin with a wait in
    queues and go on at even rates. So the best, to a block, is one of these: everything; what is read while the engine
    has other work, or that and the block that outlasts it; what lies in the prefill side's memory; nothing. Of equals,
    the one that loads most.
    """
    hit = snapshot.hit_blocks
    free = bisect_right(range(1, hit + 1), compute.queue_s, key=lambda blocks: _read_s(snapshot, plan, blocks))
    candidates = sorted({hit, free, min(hit, free + 1), min(hit, snapshot.prefill_resident_blocks), 0}, reverse=True)

    def there_s(blocks: int) -> float:
        computed_tokens = (hit - blocks) * snapshot.block_tokens
        return max(compute.queue_s, _read_s(snapshot, plan, blocks)) + computed_tokens / compute.new_tokens_per_s

    return min(candidates, key=there_s)


def shortened(snapshot: ReadSnapshot, blocks: int) -> ReadSnapshot:
    """The same request, had it no more than so many hit blocks."""
    cut = snapshot.hit_blocks - blocks
    return replace(
        snapshot,
        hit_blocks=blocks,
        prefill_resident_blocks=min(blocks, snapshot.prefill_resident_blocks),
        decode_resident_blocks=max(0, snapshot.decode_resident_blocks - cut),
    )


def _read_s(snapshot: ReadSnapshot, plan: Plan, blocks: int) -> float:
    part = shortened(snapshot, blocks)
    return reading_s(part, plan(part))
