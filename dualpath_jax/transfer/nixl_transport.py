"""The transport on NIXL: one-sided writes by UCX (InfiniBand, RoCE, TCP), and a gRPC stream that says when.

NIXL moves bytes and checks nothing: no generation, no bounds, no deadline. So each batch is granted by the owner of the
memory before it is posted, and the owner takes memory back only once nothing can arrive in it any more
(docs/decisions/0008).
"""

import contextlib
import ipaddress
import socket
import struct
import sys
from collections.abc import AsyncIterator, Callable, Mapping
from typing import final

import grpc

from dualpath_jax.transfer.base import InboundGate, Lane, RegionHandle
from dualpath_jax.transfer.endpoint import Endpoint, Send
from dualpath_jax.transfer.nixl_agent import INFINIBAND, NixlAgent
from dualpath_jax.transfer.nixl_grants import Grants
from dualpath_jax.transfer.nixl_inbound import NixlInbound
from dualpath_jax.transfer.nixl_lane import NixlLane
from dualpath_jax.transfer.nixl_outbound import PATH, NixlOutbound
from dualpath_jax.transfer.regions import RegionTable
from dualpath_jax.transfer.stream_transport import StreamTransport

SIOCGIFADDR = 0x8915
"""Linux: an interface's address."""

Options = Mapping[str, str]
"""UCX's, without `UCX_`. A value has no comma; variables of the environment go before them."""


@final
class NixlTransport(StreamTransport):
    """One endpoint of one-sided writes over NIXL; `bind`, `lane_dscp` and `server` as for `Endpoint`, `regions`
    as for `GrpcTransport`.

    Each lane has an agent of its own in each direction, with `options` and what marks the lane: its DSCP, and of
    InfiniBand its service level (0 where it is absent). Raises ImportError
    without NIXL and RuntimeError where UCX does not start with these options.
    """

    def __init__(
        self,
        *,
        bind: str = "127.0.0.1:0",
        lane_dscp: Mapping[Lane, int],
        service_levels: Mapping[Lane, int] | None = None,
        options: Options | None = None,
        gate: InboundGate | None = None,
        server: grpc.aio.Server | None = None,
        regions: RegionTable | None = None,
    ) -> None:
        self._options = {**default_options(bind), **(options or {})}
        self._lane_dscp, self._service_levels = dict(lane_dscp), dict(service_levels or {})
        self._grants = Grants(self._lane)
        self._sending: dict[Lane, NixlLane] = {}
        self._grants.lane(Lane.LOAD).agent([])  # says at once whether it works, and the first transfer is not late
        endpoint = Endpoint(PATH, self._serve, self._connect, bind=bind, lane_dscp=lane_dscp, server=server)
        super().__init__(endpoint, regions, gate)

    async def close(self) -> None:
        await super().close()
        self._grants.close()
        for lane in self._sending.values():
            lane.close()

    async def deregister(self, handle: RegionHandle) -> None:
        if self._regions.deregister(handle):
            await self._grants.take_back(handle.region_id)

    def _lane(self, lane: Lane, on_end: Callable[[NixlAgent], None] = lambda agent: None) -> NixlLane:
        marks = lane_options(self._lane_dscp.get(lane, 0), self._service_levels.get(lane, 0))
        return NixlLane({**self._options, **marks}, on_end)

    def _connect(self, peer: str, options: list[tuple[str, int]], lane: Lane) -> NixlOutbound:
        if lane not in self._sending:
            self._sending[lane] = self._lane(lane)
        return NixlOutbound(peer, options, lane, self._sending[lane])

    async def _serve(self, messages: AsyncIterator[bytes], send: Send) -> None:
        await NixlInbound(self._regions, self._grants, self._gate).run(messages, send)


def default_options(bind: str) -> dict[str, str]:
    """What UCX must not do, and where it must stay: on the loopback address, or on the card of `bind` for TCP.

    Shared memory is off: there a writer copies into its peer's memory itself, and the peer could not stop one that was
    frozen in the middle and wakes up later.
    """
    host = bind.rpartition(":")[0].strip("[]")
    try:
        local = ipaddress.ip_address(host).is_loopback
    except ValueError:
        local = host == "localhost"
    if local:
        return {"TLS": "tcp", "NET_DEVICES": "lo"}
    card = None if INFINIBAND.exists() else interface_of(host)
    return {"TLS": "^sm"} if card is None else {"TLS": "^sm", "NET_DEVICES": card}


def interface_of(host: str) -> str | None:
    """The network interface that has this IPv4 address; None where none has it, or this system does not tell."""
    if not sys.platform.startswith("linux"):
        return None
    import fcntl

    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asking:
        for _, name in socket.if_nameindex():
            request = struct.pack("256s", name.encode()[:15])
            with contextlib.suppress(OSError):  # an interface without an address
                reply = fcntl.ioctl(asking, SIOCGIFADDR, request)
                if socket.inet_ntoa(reply[20:24]) == host:
                    return name
    return None


def lane_options(dscp: int, service_level: int) -> dict[str, str]:
    """What puts a lane's agent on its service level of InfiniBand, and its traffic class of RoCE.

    Those that `dualpath-qos` prints. UCX does not mark TCP.
    """
    return {"IB_SL": str(service_level), "IB_TRAFFIC_CLASS": str(dscp << 2)}
