"""One end of a transport's gRPC streams: the service that peers write to, and the streams to peers."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from functools import partial
from typing import Any, Generic, TypeVar, final

import grpc

from dualpath_jax.transfer import wire
from dualpath_jax.transfer.base import Failure, Lane, TransferError
from dualpath_jax.transfer.peer_stream import PeerStream

OWN_PORT = ("grpc.so_reuseport", 0)
"""Of a server: without it a second process could take the same port and a share of the connections."""

SERVER_OPTIONS = (*wire.MESSAGE_OPTIONS, OWN_PORT)

Context = grpc.aio.ServicerContext[bytes, bytes]
Send = Callable[[bytes], Awaitable[None]]
Serve = Callable[[AsyncIterator[bytes], Send], Awaitable[None]]
"""Serves one stream until it ends, or until cancelled. Raises ValueError for nonsense."""

Stream = TypeVar("Stream", bound=PeerStream[Any])

SEND_S = 1.0
"""How long a message that is being sent may keep its stream from ending."""

STOP_S = 5.0
"""Beyond the grace, how long the end of a gRPC server is waited for."""


async def send_whole(send: Send, message: bytes) -> None:
    """Send a message; cancelled, wait until it is out, for a moment.

    A stream whose status is to be sent while gRPC still sends a message (which cancellation does not stop) gets none,
    `TOO_MANY_OPERATIONS`: its client waits for ever, and so may the server's end.
    """
    sending = asyncio.ensure_future(send(message))
    try:
        await asyncio.shield(sending)
    except asyncio.CancelledError:
        await asyncio.wait({sending}, timeout=SEND_S)
        sending.cancel()
        raise


async def stop_server(server: grpc.aio.Server, *, grace_s: float | None) -> None:
    """Stop a server: calls that run have `grace_s` to end. Returns soon after that, whatever gRPC does."""
    stopping = asyncio.ensure_future(server.stop(grace_s))
    try:
        await asyncio.wait({stopping}, timeout=(grace_s or 0) + STOP_S)
    finally:
        stopping.cancel()


@final
class Endpoint(Generic[Stream]):
    """Offers the method `path` on `bind`, and opens streams to peers, one for each peer and lane.

    Without `server` it owns one, from `start` on (port 0: any free one). With `server`, the service and the port are
    added to it at once (the port only to `listen`), and its owner starts and stops it. Either raises OSError where the
    port is taken. A lane that `lane_dscp` lacks is unmarked; a DSCP outside 0-63 is a ValueError.
    """

    def __init__(
        self,
        path: str,
        serve: Serve,
        connect: Callable[[str, list[tuple[str, int]], Lane], Stream],
        *,
        bind: str,
        lane_dscp: Mapping[Lane, int],
        server: grpc.aio.Server | None,
        listen: bool = True,
    ) -> None:
        for lane, dscp in lane_dscp.items():
            if not 0 <= dscp <= 63:
                raise ValueError(f"lane {lane.name} has DSCP {dscp}: expected 0 to 63")
        self._path = path
        self._serve_stream = serve
        self._connect = connect
        self._lane_dscp = dict(lane_dscp)
        self._streams: dict[tuple[str, Lane], Stream] = {}  # the latest of each
        self._open: set[Stream] = set()  # and those that are still winding down
        self._closing = asyncio.Event()
        self._inbound: set[asyncio.Task[None]] = set()
        self._owns_server = server is None
        self._own_server: grpc.aio.Server | None = None
        self.address = bind if server is None else self._join(server, bind, listen=listen)

    async def start(self) -> None:
        """Begin to accept streams on an own server."""
        if not self._owns_server:
            return
        server = grpc.aio.server(options=SERVER_OPTIONS)
        try:
            self.address = self._join(server, self.address)
        except OSError:
            await stop_server(server, grace_s=None)
            raise
        self._own_server = server
        await server.start()

    async def close(self) -> None:
        """End all streams of both directions; what is pending on them fails with CLOSED."""
        self._closing.set()
        await asyncio.gather(*(stream.close(Failure.CLOSED, "this side is shutting down") for stream in [*self._open]))
        if self._inbound:
            await asyncio.wait(self._inbound)
        if self._own_server is not None:
            await stop_server(self._own_server, grace_s=None)

    def stream(self, peer: str, lane: Lane) -> Stream:
        """The stream to a peer that takes batches. Raises TransferError once closed."""
        if self._closing.is_set():
            raise TransferError(Failure.CLOSED, peer, "this side is shutting down")
        stream = self._streams.get((peer, lane))
        if stream is None or stream.lost:
            stream = self._streams[peer, lane] = self._connect(peer, self._channel_options(lane), lane)
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

    def _join(self, server: grpc.aio.Server, bind: str, *, listen: bool = True) -> str:
        method = grpc.stream_stream_rpc_method_handler(self._serve)
        _, service, name = self._path.split("/")
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(service, {name: method}),))
        if not listen:
            return bind
        try:
            port = server.add_insecure_port(bind)
        except RuntimeError as error:
            raise OSError(f"cannot listen on {bind}: {error}; is the port taken?") from error
        return f"{bind.rpartition(':')[0]}:{port}"

    async def _serve(self, messages: AsyncIterator[bytes], context: Context) -> None:
        reading = asyncio.ensure_future(self._serve_stream(messages, partial(send_whole, context.write)))
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
