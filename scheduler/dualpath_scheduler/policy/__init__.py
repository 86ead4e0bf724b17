"""Scheduling policies: pure functions from frozen snapshots to decisions (paper, scheduling and Algorithm 1).

The scheduler's service, the prefill nodes and the simulator call the same functions. Nothing here keeps state, reads a
clock or draws a random number; every tie has a rule, so that equal snapshots give equal decisions.
"""

from dualpath_scheduler.policy.affinity import Held, drain_with_affinity
from dualpath_scheduler.policy.decode import assign_decode, drain_to_groups
from dualpath_scheduler.policy.load_or_recompute import ComputeState, blocks_to_load, shortened
from dualpath_scheduler.policy.prefill import assign_prefill
from dualpath_scheduler.policy.quota import PrefillLimits, pack_prefill
from dualpath_scheduler.policy.read_plan import READ_PLANS, ReadPlanPolicy, read_plan_for
from dualpath_scheduler.policy.round_robin import assign_in_turn
from dualpath_scheduler.policy.snapshot import (
    EngineState,
    NodeState,
    Placement,
    ReadPlan,
    ReadSnapshot,
    WaitingRequest,
)

__all__ = [
    "READ_PLANS",
    "ComputeState",
    "EngineState",
    "Held",
    "NodeState",
    "Placement",
    "PrefillLimits",
    "ReadPlan",
    "ReadPlanPolicy",
    "ReadSnapshot",
    "WaitingRequest",
    "assign_decode",
    "assign_in_turn",
    "assign_prefill",
    "blocks_to_load",
    "drain_to_groups",
    "drain_with_affinity",
    "pack_prefill",
    "read_plan_for",
    "shortened",
]
