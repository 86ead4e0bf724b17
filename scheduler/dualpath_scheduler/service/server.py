"""The scheduler as a gRPC service: everything that waits is here, everything that decides is in the state machine."""

import asyncio
import logging
import time
from typing import NoReturn, final

import grpc

from dualpath_configs import ClusterSpec
from dualpath_scheduler.service import scheduler_pb2 as pb
from dualpath_scheduler.service import scheduler_pb2_grpc as pb_grpc
from dualpath_scheduler.service.channel import SERVER_OPTIONS
from dualpath_scheduler.service.errors import InvalidRequest, RegistrationRefused, UnknownIncarnation
from dualpath_scheduler.service.keeper import StoreKeeper
from dualpath_scheduler.service.node import Poll
from dualpath_scheduler.service.state import SchedulerState
from dualpath_storage.index import PrefixIndex

log = logging.getLogger(__name__)

_CLOSING = "the scheduler shuts down; the request can be submitted again once it is back"
_GRACE_S = 1.0

Context = grpc.aio.ServicerContext


@final
class SchedulerServer:
    """One scheduler. Serves from `start` to `close`; all on the event loop that runs `start`."""

    def __init__(self, spec: ClusterSpec, *, bind: str = "127.0.0.1:0") -> None:
        self._spec = spec
        self._bind = bind
        self._server: grpc.aio.Server | None = None
        self._servicer: _Servicer | None = None
        self._keeper: StoreKeeper | None = None
        self._loops: list[asyncio.Task[None]] = []

    async def start(self) -> str:
        """Rebuilds the index from the cluster's store, listens, and returns the address as `host:port`.

        Raises StoreError where the store cannot be opened, and OSError where the port cannot be had.
        """
        self._keeper = keeper = StoreKeeper(self._spec)
        index = await keeper.rebuild()
        self._servicer = servicer = _Servicer(self._spec, index)
        self._server = server = grpc.aio.server(options=SERVER_OPTIONS)
        pb_grpc.add_SchedulerServicer_to_server(servicer, server)
        try:
            port = server.add_insecure_port(self._bind)
        except RuntimeError as error:
            raise OSError(f"the scheduler cannot listen on {self._bind}: {error}") from error
        await server.start()
        self._loops = [
            asyncio.create_task(servicer.tick_forever(), name="scheduler-tick"),
            asyncio.create_task(keeper.evict_forever(servicer.state), name="scheduler-evict"),
        ]
        return f"{self._bind.rpartition(':')[0]}:{port}"

    async def close(self) -> None:
        """Ends what is running with UNAVAILABLE, stops listening. Safe to call twice, and before `start`."""
        loops, self._loops = self._loops, []
        for loop in loops:
            loop.cancel()
        await asyncio.gather(*loops, return_exceptions=True)
        if self._servicer is not None:
            self._servicer.close()
        server, self._server = self._server, None
        if server is not None:
            await server.stop(_GRACE_S)
        if self._keeper is not None:
            await self._keeper.close()


@final
class _Servicer(pb_grpc.SchedulerServicer):
    """Calls into the state machine, and waits for what it decides."""

    def __init__(self, spec: ClusterSpec, index: PrefixIndex) -> None:
        self._lease_s = spec.scheduling.lease_s
        self.state = SchedulerState(spec, index, now=time.monotonic(), epoch_s=time.time() - time.monotonic())
        self._waiting: set[asyncio.Event] = set()
        self._closing = False

    async def tick_forever(self) -> None:
        """Lets leases and deadlines end."""
        while True:
            await asyncio.sleep(min(0.25, self._lease_s / 8))
            try:
                self.state.tick(time.monotonic())
            except Exception:
                log.exception("a tick failed")

    def close(self) -> None:
        """Ends every call that waits."""
        self._closing = True
        self.state.close(_CLOSING, time.monotonic())
        for event in self._waiting:
            event.set()

    async def Generate(self, request: pb.GenerateRequest, context: Context) -> None:  # noqa: N802
        await self._refuse_when_closing(context)
        wake = asyncio.Event()
        try:
            mine = self.state.submit(request, time.monotonic(), wake.set)
        except InvalidRequest as error:
            await _abort(context, grpc.StatusCode.INVALID_ARGUMENT, error)
        self._waiting.add(wake)
        try:
            while not mine.done:
                await wake.wait()
                wake.clear()
                await self._refuse_when_closing(context)
                for event in mine.take_events():
                    await context.write(event)
        finally:
            self._waiting.discard(wake)
            self.state.cancel(mine, "the client has gone away", time.monotonic())

    async def Describe(self, request: pb.DescribeRequest, context: Context) -> pb.DescribeReply:  # noqa: N802
        return self.state.describe()

    async def Register(self, request: pb.RegisterRequest, context: Context) -> pb.RegisterReply:  # noqa: N802
        await self._refuse_when_closing(context)
        try:
            return self.state.register(request.node, time.monotonic())
        except RegistrationRefused as error:
            await _abort(context, grpc.StatusCode.INVALID_ARGUMENT, error)

    async def Unregister(self, request: pb.UnregisterRequest, context: Context) -> pb.UnregisterReply:  # noqa: N802
        self.state.unregister(request, time.monotonic())
        return pb.UnregisterReply()

    async def Fetch(self, request: pb.FetchRequest, context: Context) -> pb.FetchReply:  # noqa: N802
        await self._refuse_when_closing(context)
        wake = asyncio.Event()
        try:
            poll = self.state.open_poll(request, time.monotonic(), wake.set)
            try:
                # Short of a lease, so that a leader that only fetches keeps it.
                await self._until_answered(poll, wake, wait_s=min(request.max_wait_s, self._lease_s / 2))
                await self._refuse_when_closing(context)
                return self.state.close_poll(poll)
            finally:
                self.state.drop_poll(poll)
        except UnknownIncarnation as error:
            await _abort(context, grpc.StatusCode.FAILED_PRECONDITION, error)

    async def Report(self, request: pb.ReportRequest, context: Context) -> pb.ReportReply:  # noqa: N802
        await self._refuse_when_closing(context)
        try:
            self.state.report(request, time.monotonic())
        except UnknownIncarnation as error:
            await _abort(context, grpc.StatusCode.FAILED_PRECONDITION, error)
        return pb.ReportReply()

    async def _until_answered(self, poll: Poll, wake: asyncio.Event, *, wait_s: float) -> None:
        self._waiting.add(wake)
        try:
            async with asyncio.timeout(wait_s):
                while not poll.answered and not self._closing:
                    await wake.wait()
                    wake.clear()
        except TimeoutError:
            pass
        finally:
            self._waiting.discard(wake)

    async def _refuse_when_closing(self, context: Context) -> None:
        if self._closing:
            await context.abort(grpc.StatusCode.UNAVAILABLE, _CLOSING)


async def _abort(context: Context, code: grpc.StatusCode, error: Exception) -> NoReturn:
    await context.abort(code, str(error))
    raise AssertionError("abort has raised")
