"""The transport on gRPC byte streams: one connection for each peer and lane, marked with the lane's DSCP.

gRPC brings flow control, framing and the detection of a dead peer; `inbound` and `outbound` add batches, deadlines,
generations and bounded memory. Batches on one stream go out in the order of submission: whoever wants another order
submits small batches in that order (`traffic_manager`).
"""

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import final

import grpc

from dualpath_jax.transfer import wire
from dualpath_jax.transfer.base import (
    Failure,
    InboundGate,
    Lane,
    RegionHandle,
    RegionWrite,
    TransferError,
    Transport,
)
from dualpath_jax.transfer.inbound import InboundStream
from dualpath_jax.transfer.outbound import OutboundStream
from dualpath_jax.transfer.regions import RegionTable

# Without so_reuseport=0 a second process could take the same port and a share of the connections.
SERVER_OPTIONS = (*wire.MESSAGE_OPTIONS, ("grpc.so_reuseport", 0))

Context = grpc.aio.ServicerContext[bytes, bytes]


@final
class GrpcTransport(Transport):
    """One endpoint of one-sided writes over gRPC.

    Without `server` it owns one, on `bind` from `start` on (port 0: any free one). With `server`, the service and the
    port are added to it at once, and its owner starts and stops it. Either raises OSError where the port is taken.
    A lane that `lane_dscp` lacks is unmarked; a DSCP outside 0–63 is a ValueError. `gate` may be set later, before the
    first write arrives: the traffic manager that offers it needs the transport.
    """

    def __init__(
        self,
        *,
        bind: str = "127.0.0.1:0",
        lane_dscp: Mapping[Lane, int],
        gate: InboundGate | None = None,
        server: grpc.aio.Server | None = None,
    ) -> None:
        for lane, dscp in lane_dscp.items():
            if not 0 <= dscp <= 63:
                raise ValueError(f"lane {lane.name} has DSCP {dscp}: expected 0 to 63")
        self.gate = gate
        self._lane_dscp = dict(lane_dscp)
        self._regions = RegionTable()
        self._streams: dict[tuple[str, Lane], OutboundStream] = {}  # the latest of each
        self._open: set[OutboundStream] = set()  # and those that are still winding down
        self._closing = asyncio.Event()
        self._inbound: set[asyncio.Task[None]] = set()
        self._owns_server = server is None
        self._own_server: grpc.aio.Server | None = None
        self.address = bind if server is None else self._join(server, bind)

    async def start(self) -> None:
        if not self._owns_server:
            return
        server = grpc.aio.server(options=SERVER_OPTIONS)
        try:
            self.address = self._join(server, self.address)
        except OSError:
            await server.stop(grace=None)
            raise
        self._own_server = server
        await server.start()

    async def close(self) -> None:
        self._closing.set()
        self._regions.clear()
        await asyncio.gather(*(stream.close(Failure.CLOSED, "this side is shutting down") for stream in [*self._open]))
        if self._inbound:
            await asyncio.wait(self._inbound)
        if self._own_server is not None:
            await self._own_server.stop(grace=None)

    def register(self, segments: Sequence[memoryview], *, engine: int = 0) -> RegionHandle:
        return self._regions.register(segments, engine)

    async def deregister(self, handle: RegionHandle) -> None:
        # Memory is written by code that does not yield, on this loop: whatever runs after this line is refused.
        self._regions.deregister(handle)

    async def write(self, peer: str, batch: Sequence[RegionWrite], *, lane: Lane, deadline_s: float) -> None:
        if self._closing.is_set():
            raise TransferError(Failure.CLOSED, peer, "this side is shutting down")
        pieces = [write for write in batch if len(write.source)]
        if pieces:
            await self._stream(peer, lane).write(pieces, deadline_s)

    def _stream(self, peer: str, lane: Lane) -> OutboundStream:
        stream = self._streams.get((peer, lane))
        if stream is None or stream.lost:
            stream = self._streams[peer, lane] = OutboundStream(peer, self._channel_options(lane))
            self._open = {other for other in self._open if not other.task.done()} | {stream}
        return stream

    def _channel_options(self, lane: Lane) -> list[tuple[str, int]]:
        return [
            *wire.MESSAGE_OPTIONS,
            ("grpc.dscp", self._lane_dscp.get(lane, 0)),
            # Channels to one address share a connection unless told otherwise, and so would the lanes' marks.
            ("grpc.use_local_subchannel_pool", 1),
            ("grpc.enable_http_proxy", 0),
        ]

    def _join(self, server: grpc.aio.Server, bind: str) -> str:
        method = grpc.stream_stream_rpc_method_handler(self._serve)
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(wire.SERVICE, {wire.METHOD: method}),))
        try:
            port = server.add_insecure_port(bind)
        except RuntimeError as error:
            raise OSError(f"cannot listen on {bind}: {error}; is the port taken?") from error
        return f"{bind.rpartition(':')[0]}:{port}"

    async def _serve(self, messages: AsyncIterator[bytes], context: Context) -> None:
        stream = InboundStream(self._regions, self.gate)
        reading = asyncio.create_task(stream.run(messages, context.write))
        self._inbound.add(reading)
        closing = asyncio.create_task(self._closing.wait())
        try:
            await asyncio.wait({reading, closing}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in (reading, closing):
                task.cancel()
            await asyncio.gather(reading, closing, return_exceptions=True)
            self._inbound.discard(reading)
        if not reading.cancelled() and isinstance(reading.exception(), ValueError):
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, str(reading.exception()))
        if self._closing.is_set():
            await context.abort(grpc.StatusCode.UNAVAILABLE, "this endpoint is shutting down")
