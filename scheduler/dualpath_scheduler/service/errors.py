"""What the scheduler's service and its clients raise; the texts are meant for the person who reads them."""

from typing import final

# ruff: noqa: N818  (the names say what has happened)
from dualpath_scheduler.service import scheduler_pb2 as pb


@final
class InvalidRequest(ValueError):
    """A request that no cluster of these limits could serve; the text has the value and the limits."""


@final
class RequestFailed(RuntimeError):
    """A request that ended with an error; `finished` tells how far it came."""

    def __init__(self, text: str, finished: pb.Finished | None = None) -> None:
        super().__init__(text)
        self.finished = finished or pb.Finished(error=text)


@final
class SchedulerUnavailable(ConnectionError):
    """No scheduler answers at the address, or it shuts down."""


@final
class RegistrationRefused(ValueError):
    """A node that does not fit the cluster; the text lists what differs."""


@final
class UnknownIncarnation(LookupError):
    """A call of a node, or of a life of a node, that the scheduler does not know: it has to register (again)."""
