"""The receiving end of one transfer stream: checks every batch, then writes it into registered memory."""

import asyncio
import contextlib
from collections.abc import AsyncIterable, Awaitable, Callable, Iterator
from itertools import groupby
from typing import final

from dualpath_jax.transfer import wire
from dualpath_jax.transfer.base import InboundGate, Lane
from dualpath_jax.transfer.regions import RefusedError, Region, RegionTable
from dualpath_jax.transfer.transfer_pb2 import (
    OUTCOME_REFUSED,
    OUTCOME_UNSPECIFIED,
    OUTCOME_WRITTEN,
    Frame,
    Outcome,
    Reply,
)
from dualpath_jax.transfer.transfer_pb2 import Pieces as PieceTable

ACKNOWLEDGE_BYTES = 8 * 1024 * 1024
"""Consumed payload after which the sender hears of it, also in the middle of a batch: half of its window. A reply costs
both ends as much time as a quarter of a frame."""


Pieces = list[tuple[Region, int, memoryview]]
"""What one frame brings: (region, offset in it, data), in order."""


@final
class InboundBatch:
    """What has arrived of one batch, and where its next byte goes."""

    def __init__(self, table: PieceTable, lane: int, regions: RegionTable) -> None:
        """Checks all pieces before any byte of the batch is written. Raises RefusedError, ValueError, IndexError."""
        self.lane = Lane(lane)
        self._pieces = regions.resolve(table)
        self._remaining_bytes = sum(table.size_bytes)
        self._piece = 0
        self._done_bytes = 0  # of that piece
        self.frames: asyncio.Queue[memoryview] = asyncio.Queue()  # at the gate; bounded by the sender's window
        self.gatekeeper: asyncio.Task[None] | None = None

    @property
    def complete(self) -> bool:
        """Whether every byte has been taken."""
        return self._remaining_bytes == 0

    def take(self, payload: memoryview) -> Pieces:
        """Cuts a frame's payload at the pieces' ends. Raises RefusedError for more than was announced."""
        if len(payload) > self._remaining_bytes:
            raise RefusedError(f"{len(payload)} bytes arrived where {self._remaining_bytes} were announced")
        self._remaining_bytes -= len(payload)
        taken: Pieces = []
        start = 0
        while start < len(payload):
            region, offset, size = self._pieces[self._piece]
            data = payload[start : start + size - self._done_bytes]
            taken.append((region, offset + self._done_bytes, data))
            start += len(data)
            self._done_bytes += len(data)
            if self._done_bytes == size:
                self._piece, self._done_bytes = self._piece + 1, 0
        return taken


@final
class InboundStream:
    """Serves one stream. Memory is written on the event loop, a frame at a time without yielding.

    Without a gate a frame is written as it is read. With one, each batch has a task that waits at the gate, so that
    batches of different engines do not wait for each other; the sender's window bounds what waits.
    """

    def __init__(self, regions: RegionTable, gate: InboundGate | None) -> None:
        self._regions = regions
        self._gate = gate
        self._batches: dict[int, InboundBatch] = {}
        self._gatekeepers: set[asyncio.Task[None]] = set()
        self._replies: asyncio.Queue[Reply] = asyncio.Queue()
        self._consumed_bytes = 0
        self._acknowledged_bytes = 0

    async def run(self, messages: AsyncIterable[bytes], send: Callable[[bytes], Awaitable[None]]) -> None:
        """Reads the stream to its end, or until cancelled; leaves no task behind. Raises ValueError for nonsense."""
        replier = asyncio.create_task(self._send_replies(send))
        try:
            async for message in messages:
                self._accept(*wire.decode_frame(message))
        finally:
            tasks = [replier, *self._gatekeepers]
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    def _accept(self, frame: Frame, payload: memoryview) -> None:
        if frame.cancel:
            self._forget(frame.batch)
        elif frame.HasField("pieces"):
            self._begin(frame, payload)
        else:
            self._arrived(frame.batch, payload)

    def _begin(self, frame: Frame, payload: memoryview) -> None:
        try:
            batch = InboundBatch(frame.pieces, frame.lane, self._regions)
        except (RefusedError, ValueError, IndexError) as error:
            self._consumed_bytes += len(payload)
            self._answer(frame.batch, OUTCOME_REFUSED, str(error))
            return
        self._batches[frame.batch] = batch
        if self._gate is not None:
            batch.gatekeeper = asyncio.create_task(self._pass_gate(frame.batch, batch, self._gate))
            self._gatekeepers.add(batch.gatekeeper)
            batch.gatekeeper.add_done_callback(self._gatekeepers.discard)
        self._arrived(frame.batch, payload)

    def _arrived(self, number: int, payload: memoryview) -> None:
        batch = self._batches.get(number)
        if batch is not None and batch.gatekeeper is not None:
            batch.frames.put_nowait(payload)
            return
        self._consumed_bytes += len(payload)
        if batch is not None:  # else refused or cancelled
            with self._refusing(number):
                self._write(number, batch, batch.take(payload))
        self._acknowledge()

    async def _pass_gate(self, number: int, batch: InboundBatch, gate: InboundGate) -> None:
        with self._refusing(number):
            while not batch.complete:
                payload = await batch.frames.get()
                try:
                    pieces = batch.take(payload)
                    for engine, share in groupby(pieces, key=lambda piece: piece[0].engine):
                        await gate(engine, batch.lane, sum(len(data) for _, _, data in share))
                finally:
                    self._consumed_bytes += len(payload)
                self._write(number, batch, pieces)
                self._acknowledge()

    def _write(self, number: int, batch: InboundBatch, pieces: Pieces) -> None:
        for region, offset, data in pieces:
            region.write(offset, data)
        if batch.complete:
            del self._batches[number]
            self._answer(number, OUTCOME_WRITTEN, "")

    @contextlib.contextmanager
    def _refusing(self, number: int) -> Iterator[None]:
        """Whatever goes wrong with a batch, its sender must hear of it rather than wait for the deadline."""
        try:
            yield
        except RefusedError as error:
            self._drop(number)
            self._answer(number, OUTCOME_REFUSED, str(error))
        except Exception as error:
            self._drop(number)
            self._answer(number, OUTCOME_REFUSED, f"{type(error).__name__}: {error}")

    def _forget(self, number: int) -> None:
        batch = self._drop(number)
        if batch is not None and batch.gatekeeper is not None:
            batch.gatekeeper.cancel()
        self._acknowledge()

    def _drop(self, number: int) -> InboundBatch | None:
        batch = self._batches.pop(number, None)
        while batch is not None and not batch.frames.empty():
            self._consumed_bytes += len(batch.frames.get_nowait())
        return batch

    def _acknowledge(self) -> None:
        if self._consumed_bytes - self._acknowledged_bytes >= ACKNOWLEDGE_BYTES:
            self._answer(0, OUTCOME_UNSPECIFIED, "")

    def _answer(self, number: int, outcome: Outcome, detail: str) -> None:
        self._acknowledged_bytes = self._consumed_bytes
        self._replies.put_nowait(
            Reply(batch=number, outcome=outcome, detail=detail, consumed_bytes=self._consumed_bytes)
        )

    async def _send_replies(self, send: Callable[[bytes], Awaitable[None]]) -> None:
        while True:
            await send(wire.encode(await self._replies.get()))
