"""The transport on gRPC byte streams: one connection for each peer and lane, marked with the lane's DSCP.

gRPC brings flow control, framing and the detection of a dead peer; `inbound` and `outbound` add batches, deadlines,
generations and bounded memory. Batches on one stream go out in the order of submission: whoever wants another order
submits small batches in that order (`traffic_manager`).
"""

from collections.abc import AsyncIterator, Mapping, Sequence
from typing import final

import grpc

from dualpath_jax.transfer import wire
from dualpath_jax.transfer.base import InboundGate, Lane, RegionHandle, RegionWrite, Transport
from dualpath_jax.transfer.endpoint import Endpoint, Send
from dualpath_jax.transfer.inbound import InboundStream
from dualpath_jax.transfer.outbound import OutboundStream
from dualpath_jax.transfer.regions import RegionTable


@final
class GrpcTransport(Transport):
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
        self._gate = gate
        self._regions = regions if regions is not None else RegionTable()
        self._endpoint = Endpoint(
            wire.PATH, self._serve, OutboundStream, bind=bind, lane_dscp=lane_dscp, server=server, listen=listen
        )

    @property
    def address(self) -> str:
        return self._endpoint.address

    def set_gate(self, gate: InboundGate) -> None:
        self._gate = gate

    async def start(self) -> None:
        await self._endpoint.start()

    async def close(self) -> None:
        self._regions.clear()
        await self._endpoint.close()

    def register(self, segments: Sequence[memoryview], *, engine: int = 0) -> RegionHandle:
        return self._regions.register(segments, engine)

    async def deregister(self, handle: RegionHandle) -> None:
        # Memory is written by code that does not yield, on this loop: whatever runs after this line is refused.
        self._regions.deregister(handle)

    async def write(self, peer: str, batch: Sequence[RegionWrite], *, lane: Lane, deadline_s: float) -> None:
        pieces = [write for write in batch if len(write.source)]
        if pieces:
            await self._endpoint.stream(peer, lane).write(pieces, deadline_s)

    async def _serve(self, messages: AsyncIterator[bytes], send: Send) -> None:
        await InboundStream(self._regions, self._gate).run(messages, send)
