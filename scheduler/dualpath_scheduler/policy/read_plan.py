"""The read plan: which side reads how many of a request's hit blocks (paper, scheduling)."""

from collections.abc import Callable, Mapping
from types import MappingProxyType

from dualpath_configs import ModeSpec, SchedulingSpec
from dualpath_scheduler.policy.snapshot import ReadPlan, ReadSnapshot
from dualpath_scheduler.policy.split import split

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
    {"shorter-queue": shorter_queue, "split": split, "prefill-only": prefill_only, "alternate": alternate}
)
"""By the names that `scheduling.read_plan` takes, beside `paper`."""


def read_plan_for(mode: ModeSpec, scheduling: SchedulingSpec) -> ReadPlanPolicy:
    """The policy of a cluster: what `scheduling.read_plan` names; without `dual_path` one path, whatever it names.

    `paper` is what the switches of the paper's ablation say: queues are looked at only with `scheduling`.
    """
    if not mode.dual_path:
        return prefill_only
    if scheduling.read_plan != "paper":
        return READ_PLANS[scheduling.read_plan]
    return shorter_queue if mode.scheduling else alternate
