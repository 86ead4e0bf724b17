"""The sending end of one transfer stream: one peer, one lane, batches in the order of their submission."""

import asyncio
import time
from collections import deque
from collections.abc import Sequence
from itertools import count
from typing import final

import grpc

from dualpath_jax.transfer import wire
from dualpath_jax.transfer.base import Failure, RegionWrite, TransferError
from dualpath_jax.transfer.transfer_pb2 import OUTCOME_REFUSED, OUTCOME_WRITTEN, Frame

WINDOW_BYTES = 16 * 1024 * 1024
"""Payload of one stream that may be on its way or wait in the receiver's memory."""

SILENCE_S = 2.0
"""A stream on which a write timed out, and which was silent for so long, is given up: the next write connects anew."""

Call = grpc.aio.StreamStreamCall[bytes, bytes]


@final
class OutboundBatch:
    """A batch on its way: what of it has been cut into frames, and how it ended."""

    def __init__(self, number: int, batch: Sequence[RegionWrite]) -> None:
        self.number = number
        self._pieces = wire.pieces_of(batch)
        self._sources = deque(write.source for write in batch)
        self.begun = False
        self.started_s = time.monotonic()
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    @property
    def unsent(self) -> bool:
        """Whether frames remain to be sent."""
        return bool(self._sources) and not self.done.done()

    def next_frame(self) -> tuple[bytes, int]:
        """The next message, a copy, and the payload bytes in it."""
        shares, room = [], wire.FRAME_BYTES
        while self._sources and room:
            source = self._sources.popleft()
            shares.append(source[:room])
            if len(source) > room:
                self._sources.appendleft(source[room:])
            room -= len(shares[-1])
        header = Frame(batch=self.number, pieces=None if self.begun else self._pieces)
        self.begun = True
        return wire.encode(header, shares), wire.FRAME_BYTES - room

    def finish(self, error: Exception | None) -> None:
        """End it once; no source is read from now on."""
        self._sources.clear()
        if self.done.done():
            return
        if error is None:
            self.done.set_result(None)
        else:
            self.done.set_exception(error)


@final
class OutboundStream:
    """Connects when made. Once `lost`, it takes no batch: make another one."""

    def __init__(self, peer: str, options: Sequence[tuple[str, int]]) -> None:
        self.peer = peer
        self.lost = False
        self._channel = grpc.aio.insecure_channel(peer, options=list(options))
        self._numbers = count(1)
        self._queue: deque[OutboundBatch] = deque()  # not yet sent whole, in order
        self._pending: dict[int, OutboundBatch] = {}
        self._cancelled: deque[int] = deque()
        self._wake = asyncio.Event()
        self._sent_bytes = 0
        self._consumed_bytes = 0
        self._heard_s = time.monotonic()
        self._end: tuple[Failure, str] | None = None
        self.task = asyncio.create_task(self._run())
        """Runs until everything has ended and the connection is closed."""

    async def write(self, batch: Sequence[RegionWrite], deadline_s: float) -> None:
        """As `Transport.write`, for a batch that is not empty."""
        outgoing = OutboundBatch(next(self._numbers), batch)
        self._pending[outgoing.number] = outgoing
        self._queue.append(outgoing)
        self._wake.set()
        try:
            async with asyncio.timeout(deadline_s):
                await outgoing.done
        except TimeoutError:
            raise TransferError(
                Failure.TIMED_OUT,
                self.peer,
                f"not written within {deadline_s:g} s; is the peer alive and the link free?",
            ) from None
        finally:
            self._abandon(outgoing)

    async def close(self, failure: Failure, detail: str) -> None:
        """Fail what is pending and disconnect. Safe to call twice."""
        self._end_with(failure, detail)
        await asyncio.gather(self.task, return_exceptions=True)

    def _abandon(self, batch: OutboundBatch) -> None:
        batch.finish(None)
        if self._pending.pop(batch.number, None) is None:
            return
        silent_s = time.monotonic() - max(self._heard_s, batch.started_s)
        if silent_s >= SILENCE_S:
            self._end_with(Failure.PEER_LOST, f"silent for {silent_s:.1f} s")
        elif batch.begun:
            self._cancelled.append(batch.number)
            self._wake.set()

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
        self._queue.clear()

    async def _run(self) -> None:
        sender: asyncio.Task[None] | None = None
        try:
            call: Call = self._channel.stream_stream(wire.PATH, None, None)(None)
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

    def _next_message(self) -> bytes | None:
        if self._cancelled:
            return wire.encode(Frame(batch=self._cancelled.popleft(), cancel=True))
        while self._queue and self._sent_bytes - self._consumed_bytes < WINDOW_BYTES:
            batch = self._queue[0]
            if not batch.unsent:
                self._queue.popleft()
                continue
            try:
                message, size_bytes = batch.next_frame()
            except Exception as error:  # a source that cannot be read is its owner's error, not the stream's
                batch.finish(error)
                continue
            self._sent_bytes += size_bytes
            return message
        return None

    async def _receive(self, call: Call) -> str:
        """Handles replies until the stream ends; returns why it did."""
        try:
            async for message in call:
                self._handle(message)
        except grpc.aio.AioRpcError as error:
            return f"{error.code().name}: {error.details()}"
        except ValueError as error:
            return f"it does not speak this protocol: {error}"
        return "the peer ended the stream"

    def _handle(self, message: bytes) -> None:
        reply = wire.decode_reply(message)
        self._heard_s = time.monotonic()
        self._consumed_bytes = reply.consumed_bytes
        self._wake.set()
        batch = self._pending.pop(reply.batch, None)
        if batch is None:
            return
        if reply.outcome == OUTCOME_WRITTEN:
            batch.finish(None)
        elif reply.outcome == OUTCOME_REFUSED:
            batch.finish(TransferError(Failure.REFUSED, self.peer, reply.detail))
