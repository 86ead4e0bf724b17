"""A DRAM tier over any block store: blocks that a node wrote or read lately, shared by all of its requests."""

import asyncio
import contextlib
from collections import OrderedDict
from collections.abc import AsyncIterator, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import final

import numpy as np

from dualpath_storage.buffers import read_buffers, read_span, write_buffers
from dualpath_storage.layout import KVLayout
from dualpath_storage.store import BlockRead, BlockResult, BlockStore, BlockWrite, Status, StoredBlock, StoreError

ALIGNMENT_BYTES = 4096
"""Of the tier's memory, so that unbuffered reads come straight into it."""

COPY_BYTES = 512 * 1024
"""Most bytes that are copied without yielding to the event loop (0.1–0.3 ms)."""


@final
@dataclass(eq=False)
class _Block:
    """Bytes that were verified or written here. `charged`: some read has answered for them as read from storage."""

    tokens: bytes
    data: memoryview
    charged: bool
    holds: int = 0


@final
@dataclass(frozen=True)
class _Loaded:
    """How a load ended; `block` is there where the result is OK, also where the tier does not keep it."""

    result: BlockResult
    block: _Block | None = None


@final
@dataclass(frozen=True)
class _Load:
    """One read of the store into the tier's memory, for everybody who waits for the same meanwhile."""

    read: BlockRead
    deadline_at: float
    done: "asyncio.Future[_Loaded]"


_Name = tuple[bytes, bytes, tuple[int, int] | None]
"""Key, tokens and layers: what reads must have in common to share a load."""


@final
class DramTier(BlockStore):
    """The last `capacity_bytes` of blocks, whole blocks by last use, over `inner`, which it owns: `close` closes it.

    A block is loaded once however many reads wait for it, into memory of the tier's own, so no caller's buffer is ever
    touched after its call (no result of `get` has a `quiet` future), and a read that is cancelled or runs out of time
    takes nothing from the others. What one call has to load is one batch of `inner`. A load that fails is passed up to
    all who wait, and is not kept; nor is a layer range, which is read as such where its block is not resident.

    A written block can be read at once, while its write is under way; the write's result is `inner`'s, and what it did
    not take is dropped. Blocks that are being copied out, or are held, are not evicted; a block that finds no room for
    that reason is not kept. Beyond its capacity the tier holds the blocks of loads that are under way.
    """

    def __init__(self, inner: BlockStore, layout: KVLayout, *, capacity_bytes: int) -> None:
        if capacity_bytes < layout.block_bytes:
            raise ValueError(
                f"a DRAM tier of {capacity_bytes} bytes: expected at least one block of this layout, "
                f"{layout.block_bytes} bytes"
            )
        self.inner = inner
        self._layout = layout
        self._most_blocks = capacity_bytes // layout.block_bytes
        self._blocks: OrderedDict[bytes, _Block] = OrderedDict()  # by last use, the latest at the end
        self._loads: dict[_Name, _Load] = {}
        self._running: set[asyncio.Task[None]] = set()
        self._changes: dict[bytes, bool] = {}
        self._closed = False

    def __len__(self) -> int:
        """Resident blocks."""
        return len(self._blocks)

    def resident(self, key: bytes) -> bool:
        return key in self._blocks

    def take_changes(self, most: int) -> tuple[list[bytes], list[bytes]]:
        """Keys that have become resident, and keys that are no longer, since they were last taken; `most` in all.

        Only how each key stands now, so what came and went is said once. The rest stays for the next call.
        """
        taken = list(self._changes)[:most]
        now = {key: self._changes.pop(key) for key in taken}
        return [key for key, there in now.items() if there], [key for key, there in now.items() if not there]

    def tell_all_again(self) -> None:
        """Whoever took the changes has forgotten them: all resident keys count as new."""
        self._changes.update(dict.fromkeys(self._blocks, True))

    @contextlib.contextmanager
    def holding(self, keys: Iterable[bytes]) -> Iterator[None]:
        """Those of the blocks that are resident now stay, until the `with` block ends, as if they were copied out."""
        blocks = [self._blocks[key] for key in keys if key in self._blocks]
        for block in blocks:
            block.holds += 1
        try:
            yield
        finally:
            for block in blocks:
                block.holds -= 1

    async def get(self, reads: Sequence[BlockRead], *, deadline_s: float) -> list[BlockResult]:
        deadline_at = asyncio.get_running_loop().time() + deadline_s
        buffers = read_buffers(reads, self._layout)
        self._refuse_when_closed()
        self._begin_missing(reads, deadline_at)  # as one batch
        if len(reads) == 1:
            return [await self._read(reads[0], buffers[0], deadline_at)]
        results = await asyncio.gather(
            *(self._read(read, into, deadline_at) for read, into in zip(reads, buffers, strict=True)),
            return_exceptions=True,
        )
        for result in results:
            if isinstance(result, BaseException):
                raise result
        return [result for result in results if isinstance(result, BlockResult)]

    async def put(self, writes: Sequence[BlockWrite], *, deadline_s: float) -> list[BlockResult]:
        deadline_at = asyncio.get_running_loop().time() + deadline_s
        payloads = write_buffers(writes, self._layout)
        self._refuse_when_closed()
        added: list[_Block | None] = []
        durable = [False] * len(writes)
        try:
            for write, payload in zip(writes, payloads, strict=True):
                added.append(await self._copy_in(write, payload))
            left_s = max(0.0, deadline_at - asyncio.get_running_loop().time())
            results = await self.inner.put(writes, deadline_s=left_s)
            durable = [result.ok for result in results]
        finally:
            for write, block, kept in zip(writes, added, durable, strict=False):
                if block is not None and not kept and self._blocks.get(write.key) is block:
                    self._drop(write.key)
        return results

    async def contains(self, keys: Sequence[bytes]) -> list[bool]:
        return await self.inner.contains(keys)

    async def delete(self, keys: Sequence[bytes]) -> None:
        gone = set(keys)
        for name in [name for name in self._loads if name[0] in gone]:
            del self._loads[name]  # what it loads is not kept
        for key in gone & self._blocks.keys():
            self._drop(key)
        await self.inner.delete(keys)

    def scan(self) -> AsyncIterator[StoredBlock]:
        return self.inner.scan()

    async def close(self) -> None:
        self._closed = True
        await self.inner.close()
        await asyncio.gather(*self._running, return_exceptions=True)
        self._blocks.clear()

    def _refuse_when_closed(self) -> None:
        if self._closed:
            raise StoreError("this DRAM tier is closed")

    async def _read(self, read: BlockRead, into: memoryview, deadline_at: float) -> BlockResult:
        loop, span = asyncio.get_running_loop(), read_span(read, self._layout)
        while True:
            if (block := self._find(read)) is not None:
                return await self._copy_out(block, span, into)
            self._begin_missing([read], deadline_at)
            load = self._under_way(read)
            assert load is not None
            await asyncio.wait({load.done}, timeout=max(0.0, deadline_at - loop.time()))
            if not load.done.done():
                return BlockResult(Status.TIMED_OUT, "the block did not come into memory by the deadline")
            loaded = load.done.result()
            if loaded.block is not None:
                return await self._copy_out(loaded.block, slice(None) if load.read.layers else span, into)
            others_ran_out = loaded.result.status is Status.TIMED_OUT and load.deadline_at < deadline_at
            if self._find(read) is None and not (others_ran_out and loop.time() < deadline_at):
                return replace(loaded.result, quiet=None)  # the buffer that must rest is not the caller's

    def _find(self, read: BlockRead) -> _Block | None:
        block = self._blocks.get(read.key)
        if block is None or block.tokens != read.tokens:
            return None
        self._blocks.move_to_end(read.key)
        return block

    def _under_way(self, read: BlockRead) -> _Load | None:
        """A load that this read may share: of the whole block, or of the same layers."""
        whole = self._loads.get((read.key, read.tokens, None))
        return whole or self._loads.get((read.key, read.tokens, read.layers))

    def _begin_missing(self, reads: Sequence[BlockRead], deadline_at: float) -> None:
        """Ask the store, in one batch, for what is neither resident nor under way."""
        loads = []
        for read in reads:
            if self._find(read) is None and self._under_way(read) is None:
                span = read_span(read, self._layout)
                mine = replace(read, into=_memory(span.stop - span.start))
                load = _Load(mine, deadline_at, asyncio.get_running_loop().create_future())
                self._loads[read.key, read.tokens, read.layers] = load
                loads.append(load)
        if loads:
            task = asyncio.create_task(self._load(loads, deadline_at))
            self._running.add(task)
            task.add_done_callback(self._running.discard)

    async def _load(self, loads: list[_Load], deadline_at: float) -> None:
        left_s = max(0.0, deadline_at - asyncio.get_running_loop().time())
        try:
            results = await self.inner.get([load.read for load in loads], deadline_s=left_s)
        except Exception as error:
            for load in loads:
                self._retire(load)
                load.done.set_exception(error)
                load.done.exception()  # else what nobody waits for any more would be complained of
            return
        for load, result in zip(loads, results, strict=True):
            block = _Block(load.read.tokens, load.read.into, charged=result.from_memory) if result.ok else None
            if self._retire(load) and block is not None and load.read.layers is None:
                self._keep(load.read.key, block)
            load.done.set_result(_Loaded(result, block))

    def _retire(self, load: _Load) -> bool:
        """The load ends; returns whether what it read is still wanted."""
        name = load.read.key, load.read.tokens, load.read.layers
        if self._loads.get(name) is not load:
            return False
        del self._loads[name]
        return True

    async def _copy_in(self, write: BlockWrite, payload: memoryview) -> _Block | None:
        """The block that is resident now because of this write; None where it was before."""
        known = self._blocks.get(write.key)
        if known is not None and known.tokens == write.tokens:  # equal keys mean equal bytes
            self._blocks.move_to_end(write.key)
            return None
        block = _Block(write.tokens, _memory(self._layout.block_bytes), charged=True)
        await _copy(block.data, payload)
        self._keep(write.key, block)
        return block

    async def _copy_out(self, block: _Block, span: slice, into: memoryview) -> BlockResult:
        block.holds += 1
        try:
            await _copy(into, block.data[span])
        finally:
            block.holds -= 1
        charged, block.charged = block.charged, True
        return BlockResult(Status.OK, from_memory=charged)

    def _keep(self, key: bytes, block: _Block) -> None:
        """Make a block resident, in place of the least recently used ones that are not being copied out."""
        while len(self._blocks) >= self._most_blocks and key not in self._blocks:
            victim = next((other for other, held in self._blocks.items() if not held.holds), None)
            if victim is None:
                return
            self._drop(victim)
        self._blocks[key] = block
        self._blocks.move_to_end(key)
        self._changes[key] = True

    def _drop(self, key: bytes) -> None:
        del self._blocks[key]
        self._changes[key] = False


def _memory(size_bytes: int) -> memoryview:
    raw = np.empty(size_bytes + ALIGNMENT_BYTES, np.uint8)
    start = -raw.ctypes.data % ALIGNMENT_BYTES
    return raw[start : start + size_bytes].data


async def _copy(target: memoryview, source: memoryview) -> None:
    for start in range(0, len(source), COPY_BYTES):
        if start:
            await asyncio.sleep(0)
        target[start : start + COPY_BYTES] = source[start : start + COPY_BYTES]
