"""The sending end of one transfer stream: one peer, one lane, batches in the order of their submission."""

import asyncio
import time
from collections import deque
from collections.abc import Sequence
from itertools import count
from typing import final

from dualpath_jax.transfer import wire
from dualpath_jax.transfer.base import Failure, Lane, RegionWrite, TransferError
from dualpath_jax.transfer.peer_stream import PeerStream
from dualpath_jax.transfer.transfer_pb2 import OUTCOME_REFUSED, OUTCOME_WRITTEN, Frame

WINDOW_BYTES = 16 * 1024 * 1024
"""Payload of one stream that may be on its way or wait in the receiver's memory."""


@final
class OutboundBatch:
    """A batch on its way: what of it has been cut into frames, and how it ended."""

    def __init__(self, number: int, batch: Sequence[RegionWrite], lane: Lane) -> None:
        self.number = number
        self._lane = lane
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
        header = Frame(batch=self.number)
        if not self.begun:
            header = Frame(batch=self.number, pieces=self._pieces, lane=self._lane)
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
class OutboundStream(PeerStream[OutboundBatch]):
    """Sends the batches' bytes, a bounded window of them ahead of the receiver."""

    def __init__(self, peer: str, options: Sequence[tuple[str, int]], lane: Lane) -> None:
        self._lane = lane
        self._numbers = count(1)
        self._queue: deque[OutboundBatch] = deque()  # not yet sent whole, in order
        self._cancelled: deque[int] = deque()
        self._sent_bytes = 0
        self._consumed_bytes = 0
        super().__init__(peer, wire.PATH, options)

    async def write(self, batch: Sequence[RegionWrite], deadline_s: float) -> None:
        """As `Transport.write`, for a batch that is not empty."""
        outgoing = OutboundBatch(next(self._numbers), batch, self._lane)
        self._pending[outgoing.number] = outgoing
        self._queue.append(outgoing)
        self._wake.set()
        try:
            async with asyncio.timeout(deadline_s):
                await outgoing.done
        except TimeoutError:
            raise self._timed_out(deadline_s) from None
        finally:
            outgoing.finish(None)
            if self._withdraw(outgoing) and outgoing.begun:
                self._cancelled.append(outgoing.number)
                self._wake.set()

    def _fail_pending(self) -> None:
        super()._fail_pending()
        self._queue.clear()

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

    def _handle(self, message: bytes) -> None:
        reply = wire.decode_reply(message)
        self._consumed_bytes = reply.consumed_bytes
        self._wake.set()
        batch = self._pending.pop(reply.batch, None)
        if batch is None:
            return
        if reply.outcome == OUTCOME_WRITTEN:
            batch.finish(None)
        elif reply.outcome == OUTCOME_REFUSED:
            batch.finish(TransferError(Failure.REFUSED, self.peer, reply.detail))
