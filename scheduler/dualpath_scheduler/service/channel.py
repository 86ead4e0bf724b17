"""How both ends of the protocol talk gRPC: sizes, reconnection, and errors in words."""

import grpc

from dualpath_scheduler.service import scheduler_pb2 as pb
from dualpath_scheduler.service.errors import InvalidRequest, RequestFailed, SchedulerUnavailable

# A prompt of 100,000 tokens is 0.3 MB, and a reply carries many of them.
_MESSAGE_BYTES = 256 * 1024 * 1024

_SIZES = (("grpc.max_send_message_length", _MESSAGE_BYTES), ("grpc.max_receive_message_length", _MESSAGE_BYTES))

# Without so_reuseport = 0 two schedulers may listen on one port, and each gets some of the calls.
SERVER_OPTIONS = (*_SIZES, ("grpc.so_reuseport", 0))

# A scheduler that has restarted is found again within a second. A channel of its own for each client, since gRPC
# shares connections (and their backoff) between channels otherwise.
CLIENT_OPTIONS = (
    *_SIZES,
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 1000),
    ("grpc.use_local_subchannel_pool", 1),
)


def is_lost(error: grpc.aio.AioRpcError) -> bool:
    """Whether the scheduler could not be reached, or went away during the call."""
    return error.code() in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED)


def in_words(error: grpc.aio.AioRpcError, address: str) -> Exception:
    """The exception to raise for a call that failed."""
    code, details = error.code(), error.details() or ""
    if is_lost(error):
        return SchedulerUnavailable(f"no scheduler answers at {address}: {details or code.name}")
    if code is grpc.StatusCode.DEADLINE_EXCEEDED:
        return SchedulerUnavailable(f"the scheduler at {address} did not answer in time")
    if code is grpc.StatusCode.INVALID_ARGUMENT:
        return InvalidRequest(details)
    text = f"the scheduler at {address} answered {code.name}: {details}"
    return RequestFailed(text, pb.Finished(error=text))
