"""The sending end of a gRPC stream to one peer: connects, keeps batches pending, notices silence and the end."""

import abc
import asyncio
import time
from collections.abc import Sequence
from typing import Generic, Protocol, TypeVar

import grpc

from dualpath_jax.transfer.base import Failure, TransferError

SILENCE_S = 2.0
"""A stream on which a write timed out, and which was silent for so long, is given up: the next write connects anew."""

REMEDY = "set network.transport alike on all nodes, or to auto"

Call = grpc.aio.StreamStreamCall[bytes, bytes]


class Pending(Protocol):
    """A batch that the peer has not answered for good."""

    number: int
    started_s: float

    def finish(self, error: Exception | None) -> None:
        """End it once; no source is read from now on."""


Batch = TypeVar("Batch", bound=Pending)


class PeerStream(abc.ABC, Generic[Batch]):
    """Connects when made. Once `lost`, it takes no batch: make another one."""

    def __init__(self, peer: str, path: str, options: Sequence[tuple[str, int]]) -> None:
        self.peer = peer
        self.lost = False
        self._path = path
        self._channel = grpc.aio.insecure_channel(peer, options=list(options))
        self._pending: dict[int, Batch] = {}
        self._wake = asyncio.Event()
        self._heard_s = time.monotonic()
        self._end: tuple[Failure, str] | None = None
        self.task = asyncio.create_task(self._run())
        """Runs until everything has ended and the connection is closed."""

    @abc.abstractmethod
    def _next_message(self) -> bytes | None:
        """What to send next; None: nothing until `_wake` is set."""

    @abc.abstractmethod
    def _handle(self, message: bytes) -> None:
        """Take a message of the peer. Raises ValueError for nonsense."""

    async def close(self, failure: Failure, detail: str) -> None:
        """Fail what is pending and disconnect. Safe to call twice."""
        self._end_with(failure, detail)
        await asyncio.gather(self.task, return_exceptions=True)

    def _timed_out(self, deadline_s: float) -> TransferError:
        detail = f"not written within {deadline_s:g} s; is the peer alive and the link free?"
        return TransferError(Failure.TIMED_OUT, self.peer, detail)

    def _withdraw(self, batch: Batch) -> bool:
        """The caller waits for this batch no more; whether the peer should hear of it."""
        if self._pending.pop(batch.number, None) is None:
            return False
        silent_s = time.monotonic() - max(self._heard_s, batch.started_s)
        if silent_s >= SILENCE_S:
            self._end_with(Failure.PEER_LOST, f"silent for {silent_s:.1f} s")
            return False
        return True

    def _end_with(self, failure: Failure, detail: str) -> None:
        if self._end is None:
            self._end = failure, detail
            self._fail_pending()
            self.task.cancel()

    def _fail_pending(self) -> None:
        self.lost = True
        failure, detail = self._end or (Failure.PEER_LOST, "the stream ended")
        for batch in self._pending.values():
            batch.finish(TransferError(failure, self.peer, detail))
        self._pending.clear()

    async def _run(self) -> None:
        sender: asyncio.Task[None] | None = None
        try:
            call: Call = self._channel.stream_stream(self._path, None, None)(None)
            sender = asyncio.create_task(self._send(call))
            detail = await self._receive(call)
            self._end = self._end or (Failure.PEER_LOST, detail)
        finally:
            self._fail_pending()
            if sender is not None:
                sender.cancel()
                await asyncio.gather(sender, return_exceptions=True)
            await self._channel.close(grace=None)

    async def _send(self, call: Call) -> None:
        while True:
            message = self._next_message()
            if message is None:
                self._wake.clear()
                await self._wake.wait()
            else:
                await call.write(message)

    async def _receive(self, call: Call) -> str:
        """Handles replies until the stream ends; returns why it did."""
        try:
            async for message in call:
                self._heard_s = time.monotonic()
                self._handle(message)
        except grpc.aio.AioRpcError as error:
            if error.code() is grpc.StatusCode.UNIMPLEMENTED:
                self._end = self._end or (Failure.NOT_OFFERED, f"{self.peer} does not offer {self._path}: {REMEDY}")
            return f"{error.code().name}: {error.details()}"
        except ValueError as error:
            return f"it does not speak this protocol: {error}"
        return "the peer ended the stream"
