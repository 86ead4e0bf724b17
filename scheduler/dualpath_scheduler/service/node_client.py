"""The leaders' client: register, fetch, report; over lost connections and restarts of the scheduler."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from typing import TypeVar, final

import grpc

from dualpath_scheduler.service import scheduler_pb2 as pb
from dualpath_scheduler.service import scheduler_pb2_grpc as pb_grpc
from dualpath_scheduler.service.channel import CLIENT_OPTIONS, in_words, is_lost
from dualpath_scheduler.service.errors import RegistrationRefused, SchedulerUnavailable

_CALL_DEADLINE_S = 10.0
_LEAVE_DEADLINE_S = 1.0
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.05, 1.0

Reply = TypeVar("Reply")


@final
class NodeClient:
    """A group leader's connection to the scheduler at `address`; made within a running event loop.

    A call that meets no scheduler, or one that goes away, is repeated for `patience_s`; assignments and reports are
    nevertheless delivered once. Where the scheduler does not know this life of the node (it has restarted, or has
    given the node up), `on_forgotten` is called, which must drop every attempt that the node runs, and the node is
    registered again.
    """

    def __init__(
        self,
        address: str,
        *,
        node_id: str,
        incarnation: int,
        on_forgotten: Callable[[], None] | None = None,
        patience_s: float = 60.0,
    ) -> None:
        self._address = address
        self._node_id = node_id
        self._incarnation = incarnation
        self._on_forgotten = on_forgotten
        self._patience_s = patience_s
        self._channel = grpc.aio.insecure_channel(address, options=CLIENT_OPTIONS)
        self._stub = pb_grpc.SchedulerStub(self._channel)
        self._info: pb.NodeInfo | None = None
        self._registrations = 0
        self._registering = asyncio.Lock()
        self._reporting = asyncio.Lock()
        self._received = 0
        self._reports = 0

    async def register(self, info: pb.NodeInfo) -> float:
        """Joins the cluster; returns the lease in seconds. Raises RegistrationRefused, SchedulerUnavailable."""
        if (info.node_id, info.incarnation) != (self._node_id, self._incarnation):
            raise ValueError(
                f"info is of node {info.node_id!r}, incarnation {info.incarnation}: expected this client's own "
                f"({self._node_id!r}, {self._incarnation})"
            )
        self._info = info
        async with self._registering:
            return await self._register()

    async def fetch(self, queues: pb.QueueReport, *, max_wait_s: float) -> pb.FetchReply:
        """Waits for work; returns what is new, perhaps nothing. One at a time. Raises SchedulerUnavailable.

        A reply belongs to the registration that it came from: after `on_forgotten` there is nothing old in it.
        """

        async def call() -> pb.FetchReply:
            request = pb.FetchRequest(
                node_id=self._node_id,
                incarnation=self._incarnation,
                queues=queues,
                max_wait_s=max_wait_s,
                received=self._received,
            )
            return await self._stub.Fetch(request, timeout=max_wait_s + _CALL_DEADLINE_S)

        reply = await self._known(call)
        serials = [a.serial for a in reply.assignments] + [c.serial for c in reply.cancellations]
        self._received = max(serials, default=self._received)
        return reply

    async def report(
        self,
        queues: pb.QueueReport | None = None,
        *,
        progress: Sequence[pb.Progress] = (),
        published: Sequence[pb.Published] = (),
        lost: Sequence[bytes] = (),
        residents: tuple[Sequence[bytes], Sequence[bytes]] = ((), ()),
        full_writes: int = 0,
    ) -> None:
        """Tells what is new; returns when the scheduler has it. Reports arrive in the order of the calls.

        `residents` are keys that have come into the node's memory, and keys that have left it. Where the scheduler has
        forgotten the node, blocks are told to it all the same, attempts no more. Raises SchedulerUnavailable.
        """
        async with self._reporting:
            self._reports += 1
            serial, registrations = self._reports, self._registrations

            async def call() -> None:
                request = pb.ReportRequest(
                    node_id=self._node_id,
                    incarnation=self._incarnation,
                    serial=serial,
                    published=published,
                    lost=lost,
                    resident_added=residents[0],
                    resident_dropped=residents[1],
                    full_writes=full_writes,
                )
                if registrations == self._registrations:
                    request.progress.extend(progress)
                    if queues is not None:
                        request.queues.CopyFrom(queues)
                await self._stub.Report(request, timeout=_CALL_DEADLINE_S)

            await self._known(call)

    async def close(self, reason: str = "") -> None:
        """Leaves the cluster, if the scheduler is there to hear it, and ends what is running. Safe to call twice."""
        if self._info is not None:
            self._info = None
            message = pb.UnregisterRequest(node_id=self._node_id, incarnation=self._incarnation, reason=reason)
            with suppress(grpc.aio.AioRpcError):
                await self._stub.Unregister(message, timeout=_LEAVE_DEADLINE_S)
        await self._channel.close(None)

    async def _known(self, call: Callable[[], Awaitable[Reply]]) -> Reply:
        """`call`, as a node that the scheduler knows: registers again where it does not."""
        while True:
            registrations = self._registrations
            try:
                return await self._patiently(call)
            except grpc.aio.AioRpcError as error:
                if error.code() is not grpc.StatusCode.FAILED_PRECONDITION:
                    raise in_words(error, self._address) from None
            async with self._registering:
                if registrations == self._registrations:
                    if self._on_forgotten is not None:
                        self._on_forgotten()
                    await self._register()

    async def _register(self) -> float:
        if self._info is None:
            raise ValueError(f"node {self._node_id} has not registered: call `register` first")
        message = pb.RegisterRequest(node=self._info)
        try:
            reply = await self._patiently(lambda: self._stub.Register(message, timeout=_CALL_DEADLINE_S))
        except grpc.aio.AioRpcError as error:
            if error.code() is grpc.StatusCode.INVALID_ARGUMENT:
                raise RegistrationRefused(error.details()) from None
            raise in_words(error, self._address) from None
        self._registrations += 1
        self._received = 0
        return reply.lease_s

    async def _patiently(self, call: Callable[[], Awaitable[Reply]]) -> Reply:
        """`call`, repeated while no scheduler is there; other errors are passed on as they are."""
        end_s = time.monotonic() + self._patience_s
        pause_s = _FIRST_PAUSE_S
        while True:
            try:
                return await call()
            except grpc.aio.AioRpcError as error:
                if not is_lost(error) and error.code() is not grpc.StatusCode.DEADLINE_EXCEEDED:
                    raise
                if time.monotonic() + pause_s > end_s:
                    text = f"node {self._node_id} found no scheduler at {self._address} for {self._patience_s:g} s"
                    raise SchedulerUnavailable(f"{text}: {error.details()}") from None
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)
