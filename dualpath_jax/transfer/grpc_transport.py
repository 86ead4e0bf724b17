"""The transport on gRPC byte streams: one connection for each peer and lane, marked with the lane's DSCP.

gRPC brings flow control, framing and the detection of a dead peer; `inbound` and `outbound` add batches, deadlines,
generations and bounded memory. Batches on one stream go out in the order of submission: whoever wants another order
submits small batches in that order (`traffic_manager`).
"""

from collections.abc import AsyncIterator, Mapping
from typing import final

import grpc

from dualpath_jax.transfer import wire
from dualpath_jax.transfer.base import InboundGate, Lane, RegionHandle
from dualpath_jax.transfer.endpoint import Endpoint, Send
from dualpath_jax.transfer.inbound import InboundStream
from dualpath_jax.transfer.outbound import OutboundStream
from dualpath_jax.transfer.regions import RegionTable
from dualpath_jax.transfer.stream_transport import StreamTransport


@final
class GrpcTransport(StreamTransport):
    """One endpoint of one-sided writes over gRPC; `bind`, `lane_dscp` and `server` as for `Endpoint`.

    `regions` are shared with another transport of the same memory; without `listen` the server is at `bind` already.
    """

    def __init__(
        self,
        *,
        bind: str = "127.0.0.1:0",
        lane_dscp: Mapping[Lane, int],
        gate: InboundGate | None = None,
        server: grpc.aio.Server | None = None,
        regions: RegionTable | None = None,
        listen: bool = True,
    ) -> None:
        endpoint = Endpoint(
            wire.PATH, self._serve, OutboundStream, bind=bind, lane_dscp=lane_dscp, server=server, listen=listen
        )
        super().__init__(endpoint, regions, gate)

    async def deregister(self, handle: RegionHandle) -> None:
        # Memory is written by code that does not yield, on this loop: whatever runs after this line is refused.
        self._regions.deregister(handle)

    async def _serve(self, messages: AsyncIterator[bytes], send: Send) -> None:
        await InboundStream(self._regions, self._gate).run(messages, send)
