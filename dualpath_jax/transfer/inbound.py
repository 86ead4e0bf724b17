"""The receiving end of one transfer stream: checks every batch, then writes it into registered memory."""

import asyncio
from collections.abc import AsyncIterable, Awaitable, Callable, Iterator
from itertools import groupby
from typing import final

from dualpath_jax.transfer import wire
from dualpath_jax.transfer.base import InboundGate
from dualpath_jax.transfer.regions import RefusedError, Region, RegionTable
from dualpath_jax.transfer.transfer_pb2 import (
    OUTCOME_REFUSED,
    OUTCOME_UNSPECIFIED,
    OUTCOME_WRITTEN,
    Frame,
    Outcome,
    Pieces,
    Reply,
)

ACKNOWLEDGE_BYTES = 1024 * 1024
"""Consumed payload after which the sender hears of it, also in the middle of a batch."""


@final
class InboundBatch:
    """What has arrived of one batch, and where its next byte goes."""

    def __init__(self, pieces: Pieces, regions: RegionTable) -> None:
        """Checks all pieces before any byte of the batch is written. Raises RefusedError, ValueError."""
        table = [regions.find(*names) for names in zip(pieces.region_id, pieces.generation, strict=True)]
        columns = zip(pieces.region, pieces.offset_bytes, pieces.size_bytes, strict=True)
        self._pieces = [(table[index], offset, size) for index, offset, size in columns]
        for region, offset, size in self._pieces:
            region.check(offset, size)
        self._remaining_bytes = sum(pieces.size_bytes)
        self._piece = 0
        self._done_bytes = 0  # of that piece
        self.frames: asyncio.Queue[memoryview] = asyncio.Queue()  # bounded by the sender's window

    @property
    def complete(self) -> bool:
        """Whether every byte has been taken."""
        return self._remaining_bytes == 0

    def take(self, payload: memoryview) -> Iterator[tuple[Region, int, memoryview]]:
        """Cuts a frame's payload at the pieces' ends: (region, offset, data), in order."""
        if len(payload) > self._remaining_bytes:
            raise RefusedError(f"{len(payload)} bytes arrived where {self._remaining_bytes} were announced")
        self._remaining_bytes -= len(payload)
        while payload:
            region, offset, size = self._pieces[self._piece]
            data = payload[: size - self._done_bytes]
            yield region, offset + self._done_bytes, data
            payload = payload[len(data) :]
            self._done_bytes += len(data)
            if self._done_bytes == size:
                self._piece, self._done_bytes = self._piece + 1, 0


@final
class InboundStream:
    """Serves one stream. Batches of different engines do not wait for each other; one batch is written in order.

    The sender's window bounds what waits here. Memory is written on the event loop, one frame's share of an engine at
    a time, so that a region that was closed is not touched any more.
    """

    def __init__(self, regions: RegionTable, gate: InboundGate | None) -> None:
        self._regions = regions
        self._gate = gate
        self._batches: dict[int, tuple[InboundBatch, asyncio.Task[None]]] = {}
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
            tasks = [replier, *(task for _, task in self._batches.values())]
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    def _accept(self, frame: Frame, payload: memoryview) -> None:
        if frame.cancel:
            self._forget(frame.batch)
            return
        if frame.HasField("pieces"):
            try:
                batch = InboundBatch(frame.pieces, self._regions)
            except (RefusedError, ValueError, IndexError) as error:
                self._consume(len(payload))
                self._answer(frame.batch, OUTCOME_REFUSED, str(error))
                return
            self._batches[frame.batch] = batch, asyncio.create_task(self._write(frame.batch, batch))
        entry = self._batches.get(frame.batch)
        if entry is None:  # of a batch that was refused or cancelled
            self._consume(len(payload))
        else:
            entry[0].frames.put_nowait(payload)

    def _forget(self, number: int) -> None:
        entry = self._batches.pop(number, None)
        if entry is not None:
            batch, task = entry
            task.cancel()
            self._discard(batch)

    def _discard(self, batch: InboundBatch) -> None:
        while not batch.frames.empty():
            self._consume(len(batch.frames.get_nowait()))

    async def _write(self, number: int, batch: InboundBatch) -> None:
        outcome, detail = OUTCOME_WRITTEN, ""
        try:
            while not batch.complete:
                await self._write_frame(batch, await batch.frames.get())
        except RefusedError as error:
            outcome, detail = OUTCOME_REFUSED, str(error)
        except Exception as error:  # whatever it is, the sender must not wait for its deadline
            outcome, detail = OUTCOME_REFUSED, f"{type(error).__name__}: {error}"
        del self._batches[number]
        self._discard(batch)
        self._answer(number, outcome, detail)

    async def _write_frame(self, batch: InboundBatch, payload: memoryview) -> None:
        try:
            for engine, pieces in groupby(list(batch.take(payload)), key=lambda piece: piece[0].engine):
                share = list(pieces)
                if self._gate is not None:
                    await self._gate(engine, sum(len(data) for _, _, data in share))
                for region, offset, data in share:
                    region.write(offset, data)
        finally:
            self._consume(len(payload))

    def _consume(self, size_bytes: int) -> None:
        self._consumed_bytes += size_bytes
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
