"""Storage reads and writes of a node, through its emulated storage card."""

import asyncio
import math
from collections.abc import Callable, Coroutine, Iterable, Sequence
from dataclasses import replace
from functools import partial
from itertools import count
from typing import Any, TypeVar, final

from dualpath_jax.transfer.base import Lane
from dualpath_jax.transfer.handover import Handover, Left
from dualpath_jax.transfer.late_storage import LATE_READS, LATE_WRITES, NEVER_LATE, NOT_QUEUED, LateStorage
from dualpath_jax.transfer.links import Link, NodeCards
from dualpath_jax.transfer.tasks import raise_first_error, settle
from dualpath_jax.transfer.window import Need, Window
from dualpath_storage.layout import KVLayout
from dualpath_storage.store import BlockRead, BlockResult, BlockStore, BlockWrite, Status

T = TypeVar("T")

NOT_READ = BlockResult(Status.MISSING, "not read")

READ_AHEAD_BYTES = 4 * 1024 * 1024
"""Blocks read from storage that may wait for the card, so that it does not run dry while storage seeks."""

MIN_READ_AHEAD_BLOCKS = 4

WRITE_WINDOW_BYTES = 8 * 1024 * 1024
"""Bytes of writes that may be on their way to storage."""

READ_BATCHES = 4
"""Batches that the read-ahead is cut into: the card goes on with one while storage reads the next."""

READ_SHARE = 0.75
"""Of a block's time, what a batch of reads may take; the rest is for the card."""

WRITE_BATCHES = 2
"""Batches of writes under way at once: one gathers the blocks that come while the others are being made durable."""

Hold = Callable[["asyncio.Future[Any]"], None]
"""Called with a future until which buffers must not be reused (`Reservation.hold`)."""


@final
class BlockRun:
    """One call's blocks, a task each.

    Tasks are cancelled only where they wait, never inside a store's operation: a store that is cut off may still touch
    the caller's buffer, and nobody would know until when.
    """

    def __init__(self, store: BlockStore, deadline_s: float, need: Need, hold: Hold | None) -> None:
        self.store = store
        self.deadline_s = deadline_s
        self.need = need
        self._hold = hold
        self._tasks: list[asyncio.Task[BlockResult]] = []
        self._in_store: set[int] = set()
        self._last: float = math.inf

    @property
    def waiting(self) -> list[int]:
        """Positions of the blocks that have no result yet."""
        return [index for index, task in enumerate(self._tasks) if not task.done()]

    def wanted(self, index: int) -> bool:
        """Whether the block's result still matters to the caller."""
        return index <= self._last

    def stop_after(self, index: int) -> None:
        """The blocks after `index` do not matter any more."""
        self._last = min(self._last, index)
        for later in range(index + 1, len(self._tasks)):
            if later not in self._in_store:
                self._tasks[later].cancel()

    async def results(self, blocks: Iterable[Coroutine[Any, Any, BlockResult]]) -> list[BlockResult]:
        """Run the blocks, all queued in order before the first one starts. Leaves no task behind."""
        self._tasks = [asyncio.create_task(block) for block in blocks]
        try:
            if self._tasks:
                await asyncio.wait(self._tasks, return_when=asyncio.FIRST_EXCEPTION)
        finally:
            self.stop_after(-1)
            await settle(self._tasks)
        raise_first_error(self._tasks)
        return [NOT_READ if task.cancelled() else task.result() for task in self._tasks]

    async def in_store(self, index: int, handover: Handover[T], block: T, until_s: float) -> BlockResult:
        """What the store makes of one block."""
        result = await handover.result(block, until_s=until_s, on_begin=partial(self._in_store.add, index))
        self._in_store.discard(index)
        if result.quiet is not None and self._hold is not None:
            self._hold(result.quiet)
        return result


@final
class StorageTraffic:
    """Blocks of one node between storage and host memory; see `TrafficManager.read` and `write`."""

    def __init__(self, layout: KVLayout, cards: NodeCards) -> None:
        self._layout = layout
        self._cards = cards
        self._ahead = Window(max(READ_AHEAD_BYTES, MIN_READ_AHEAD_BLOCKS * layout.block_bytes))
        self._from_memory = Window(1)  # copies of resident blocks: one at a time, so that the loop has turns between
        self._writing = Window(max(WRITE_WINDOW_BYTES, layout.block_bytes))
        self._late_reads = LateStorage(LATE_READS)
        self._late_writes = LateStorage(LATE_WRITES)
        self._calls = count()
        self._reads: dict[BlockRun, Sequence[BlockRead]] = {}
        self._left: Left = set()
        self._puts: dict[BlockStore, Handover[BlockWrite]] = {}
        self.memory_read_bytes = 0

    @property
    def read_queue_tokens(self) -> int:
        """Tokens of reads that were accepted and have no result yet; of a layer range, its share of them."""
        waiting_bytes = sum(len(reads[i].into) for run, reads in self._reads.items() for i in run.waiting)
        return waiting_bytes // self._layout.token_bytes

    async def close(self) -> None:
        """Cut off the operations that outlived their deadline."""
        left = list(self._left)
        for task in left:
            task.cancel()
        await asyncio.gather(*left, return_exceptions=True)

    async def read(self, run: BlockRun, reads: Sequence[BlockRead], *, stop_at_failure: bool) -> list[BlockResult]:
        """One task a block."""
        run.need = (run.need, next(self._calls))
        largest_bytes = max((len(read.into) for read in reads), default=self._layout.block_bytes)
        most = self._ahead.limit_bytes // (READ_BATCHES * largest_bytes)
        gets = {
            False: Handover(_get(run.store), self._left, most=most, share=READ_SHARE),
            True: Handover(_get(run.store), self._left, most=1),
        }
        self._reads[run] = reads
        try:
            return await run.results(self._read(run, gets, i, read, stop_at_failure) for i, read in enumerate(reads))
        finally:
            del self._reads[run]

    async def write(self, run: BlockRun, writes: Sequence[BlockWrite]) -> list[BlockResult]:
        """The same for writes."""
        run.need = (run.need, next(self._calls))
        if (puts := self._puts.get(run.store)) is None:
            most = self._writing.limit_bytes // (WRITE_BATCHES * self._layout.block_bytes)
            puts = self._puts[run.store] = Handover(_put(run.store), self._left, most=most, at_once=WRITE_BATCHES)
        return await run.results(self._write(run, puts, i, write) for i, write in enumerate(writes))

    async def _read(
        self, run: BlockRun, gets: dict[bool, Handover[BlockRead]], index: int, read: BlockRead, stop_at_failure: bool
    ) -> BlockResult:
        """`gets` are of blocks in storage and of blocks in memory."""
        # Storage first, the card second: what is not there must not cost the card anything.
        # What lies in the node's memory waits for neither of them.
        need, size_bytes, resident = (*run.need, index), len(read.into), run.store.resident(read.key)
        if resident:
            place = NEVER_LATE.place(self._from_memory, size_bytes, need)
        else:
            place = self._late_reads.place(self._ahead, size_bytes, need)
        result = NOT_QUEUED
        async with place as has_one:
            if has_one:
                until_s = asyncio.get_running_loop().time() + run.deadline_s
                result = await run.in_store(index, gets[resident], read, until_s)
                self._late_reads.note(result, rest_s=run.deadline_s)
            if not run.wanted(index):
                return replace(NOT_READ, quiet=result.quiet)
            if result.ok and result.from_memory:
                self.memory_read_bytes += size_bytes
            elif result.ok:
                result = await _pass(self._cards.storage_read, size_bytes, Lane.LOAD, need, until_s)
        if stop_at_failure and not result.ok:
            run.stop_after(index)
        return result

    async def _write(self, run: BlockRun, puts: Handover[BlockWrite], index: int, write: BlockWrite) -> BlockResult:
        need, size_bytes = (*run.need, index), self._layout.block_bytes
        async with self._late_writes.place(self._writing, size_bytes, need) as has_one:
            if not has_one:
                return NOT_QUEUED
            until_s = asyncio.get_running_loop().time() + run.deadline_s
            result = await _pass(self._cards.storage_write, size_bytes, Lane.STORE, need, until_s)
            if not result.ok:
                return result
            result = await run.in_store(index, puts, write, until_s)
            self._late_writes.note(result, rest_s=run.deadline_s)
            return result


def _get(store: BlockStore) -> Callable[[list[BlockRead], float], Coroutine[Any, Any, list[BlockResult]]]:
    return lambda reads, deadline_s: store.get(reads, deadline_s=deadline_s)


def _put(store: BlockStore) -> Callable[[list[BlockWrite], float], Coroutine[Any, Any, list[BlockResult]]]:
    return lambda writes, deadline_s: store.put(writes, deadline_s=deadline_s)


async def _pass(link: Link, size_bytes: int, lane: Lane, need: Need, until_s: float) -> BlockResult:
    try:
        async with asyncio.timeout_at(until_s):
            await link.send(size_bytes, lane=lane, need=need)
    except TimeoutError:
        return BlockResult(Status.TIMED_OUT, "the storage card did not let the block through by its deadline")
    return BlockResult(Status.OK)
