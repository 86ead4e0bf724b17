"""Scheduling policies: pure functions from frozen snapshots to decisions (paper, scheduling and Algorithm 1).

The scheduler's service, the prefill nodes and the simulator call the same functions. Nothing here keeps state, reads a
clock or draws a random number; every tie has a rule, so that equal snapshots give equal decisions.
"""

from dualpath_scheduler.policy.decode import assign_decode, drain_to_groups
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
    "EngineState",
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
    "drain_to_groups",
    "pack_prefill",
    "read_plan_for",
]
