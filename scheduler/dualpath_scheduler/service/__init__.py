"""The scheduler's service: the state machine, the gRPC server on top of it, and the clients of both sides."""

from dualpath_scheduler.service.client import SchedulerClient
from dualpath_scheduler.service.errors import (
    InvalidRequest,
    RegistrationRefused,
    RequestFailed,
    SchedulerUnavailable,
    UnknownIncarnation,
)
from dualpath_scheduler.service.kv_layout import layout_of
from dualpath_scheduler.service.node_client import NodeClient
from dualpath_scheduler.service.resume import remaining
from dualpath_scheduler.service.server import SchedulerServer
from dualpath_scheduler.service.state import SchedulerState

__all__ = [
    "InvalidRequest",
    "NodeClient",
    "RegistrationRefused",
    "RequestFailed",
    "SchedulerClient",
    "SchedulerServer",
    "SchedulerState",
    "SchedulerUnavailable",
    "UnknownIncarnation",
    "layout_of",
    "remaining",
]
