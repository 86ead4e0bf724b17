"""Moving KV: the transport contract and its gRPC implementation, emulated cards, and the traffic manager."""

from dualpath_jax.transfer.allocator import keep_freed_memory
from dualpath_jax.transfer.base import (
    Failure,
    InboundGate,
    Lane,
    RegionHandle,
    RegionWrite,
    TransferError,
    Transport,
)
from dualpath_jax.transfer.choice import make_transport
from dualpath_jax.transfer.grpc_transport import GrpcTransport
from dualpath_jax.transfer.links import Link, NodeCards
from dualpath_jax.transfer.nixl_transport import NixlTransport
from dualpath_jax.transfer.traffic_manager import LaneTraffic, SnicSample, TrafficManager, TrafficStats

__all__ = [
    "Failure",
    "GrpcTransport",
    "InboundGate",
    "Lane",
    "LaneTraffic",
    "Link",
    "NixlTransport",
    "NodeCards",
    "RegionHandle",
    "RegionWrite",
    "SnicSample",
    "TrafficManager",
    "TrafficStats",
    "TransferError",
    "Transport",
    "keep_freed_memory",
    "make_transport",
]
