"""A block store over any medium: threads, deadlines, cancellation and verification, the same for all of them."""

import abc
import asyncio
import contextlib
import errno
import threading
import time
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import TypeVar

from dualpath_storage.block_format import HEADER_BYTES, BlockFormat, HeaderError, PayloadSum, read_header
from dualpath_storage.buffers import read_buffers, read_span, write_buffers
from dualpath_storage.layout import KVLayout
from dualpath_storage.loads_first import LoadsFirst
from dualpath_storage.medium import Medium, Staged
from dualpath_storage.store import BlockRead, BlockResult, BlockStore, BlockWrite, Status, StoredBlock, StoreError
from dualpath_storage.workers import Batch, WorkerPool

T = TypeVar("T")

_OK = BlockResult(Status.OK)
_MISSING = BlockResult(Status.MISSING)
_NO_ROOM = (errno.ENOSPC, errno.EDQUOT)
_CALL_TIMEOUT_S = 30.0
_CLOSE_GRACE_S = 5.0

COMMIT_SHARE = 0.25
"""Of a write's time, what is left for making it durable: blocks that hang until then do not take the others down."""

_REMEMBERED = 65_536
"""Blocks that a store knows that it wrote: a few megabytes of keys."""

GROUP_BLOCKS = 64
"""Blocks of a batch that are made durable together: a medium may hold a file open, or a copy, for each."""


class MediumStore(BlockStore):
    """Reads, writes and probes have threads of their own, and writes wait for a gap between reads (`LoadsFirst`).

    Not so where the medium is reached over a card that is `full_duplex`: there a write takes nothing from a read. And
    what this store wrote itself it does not read to see whether it is intact when it is to be written again.

    Probes (`contains`, `delete`, `scan`) are spread over `probe_threads`: each costs a network's latency, not bytes.
    """

    def __init__(
        self,
        medium: Medium,
        layout: KVLayout,
        *,
        threads: int,
        probe_threads: int | None = None,
        full_duplex: bool = False,
    ) -> None:
        if threads < 1:
            raise ValueError(f"threads is {threads}: a store needs at least 1")
        self.medium = medium
        self.layout = layout
        self.threads = threads
        self._format = BlockFormat(layout)
        self._readers = WorkerPool(threads, "store-read")
        self._writers = WorkerPool(threads, "store-write")
        self._full_duplex = full_duplex
        self._written: OrderedDict[bytes, None] = OrderedDict()  # empty unless full duplex
        self._loads_first = LoadsFirst()
        self._probers = WorkerPool(probe_threads or threads, "store-probe")
        self._scratch = threading.local()
        self._operations = 0
        self._idle = asyncio.Event()
        self._idle.set()
        self._closed = False

    @property
    @abc.abstractmethod
    def url(self) -> str:
        """What `open_store` opens this store by."""

    async def get(self, reads: Sequence[BlockRead], *, deadline_s: float) -> list[BlockResult]:
        deadline_at = time.monotonic() + deadline_s
        spans = [read_span(read, self.layout) for read in reads]
        buffers = read_buffers(reads, self.layout)
        with self._operation(), self._loads_first.load():
            batch = Batch(len(reads), lambda i: self._read_one(reads[i], buffers[i], spans[i].start, deadline_at))
            cancelled = await batch.run(self._readers, deadline_at)
        if self._written:
            for read, result in zip(reads, batch.results, strict=True):
                if result is not None and result.status is Status.CORRUPT:
                    self._written.pop(read.key, None)
        if cancelled and not batch.quiet:
            raise cancelled
        return [result or _late(deadline_s, batch.quiet.get(i)) for i, result in enumerate(batch.results)]

    async def put(self, writes: Sequence[BlockWrite], *, deadline_s: float) -> list[BlockResult]:
        deadline_at = time.monotonic() + deadline_s
        payloads = write_buffers(writes, self.layout)
        results: list[BlockResult] = []
        cancelled = None
        with self._operation():
            while len(results) < len(writes) and not cancelled:
                group = slice(len(results), len(results) + GROUP_BLOCKS)
                outcomes, cancelled = await self._put_group(writes[group], payloads[group], deadline_s, deadline_at)
                results += outcomes
        if self._full_duplex:
            self._remember(write.key for write, result in zip(writes, results, strict=False) if result.ok)
        if cancelled and not any(result.quiet for result in results):
            raise cancelled
        return results + [_late(deadline_s)] * (len(writes) - len(results))

    async def contains(self, keys: Sequence[bytes]) -> list[bool]:
        return await self._spread(lambda piece: [self.medium.contains(key) for key in piece], keys)

    async def delete(self, keys: Sequence[bytes]) -> None:
        await self._spread(lambda piece: [self.medium.delete(key) for key in piece], keys)

    async def scan(self) -> AsyncIterator[StoredBlock]:
        chunks = self.medium.keys()
        while (keys := await self._call(partial(next, chunks, None))) is not None:
            for block in await self._spread(self._stored_blocks, keys):
                yield block

    async def close(self) -> None:
        self._closed = True
        await self._idle.wait()  # every operation ends by its deadline
        await asyncio.gather(*(pool.close(_CLOSE_GRACE_S) for pool in (self._writers, self._readers, self._probers)))
        self.medium.close()

    @contextlib.contextmanager
    def _operation(self) -> Iterator[None]:
        if self._closed:
            raise StoreError(f"{self.url} is closed")
        self._operations += 1
        self._idle.clear()
        try:
            yield
        finally:
            self._operations -= 1
            if not self._operations:
                self._idle.set()

    def _read_one(self, read: BlockRead, into: memoryview, skip_bytes: int, deadline_at: float) -> BlockResult:
        header = bytearray(HEADER_BYTES)
        try:
            payload_sum = PayloadSum()
            if read.layers is None:
                seen = self.medium.read_whole(read.key, header, into, payload_sum.update, deadline_at=deadline_at)
            else:
                seen = self.medium.read(read.key, header, into, deadline_at=deadline_at, skip_bytes=skip_bytes)
            damage = self._format.verify(
                header,
                into,
                key=read.key,
                tokens=read.tokens,
                stored_bytes=seen,
                layers=read.layers,
                payload_sum=payload_sum,
            )
        except FileNotFoundError:
            return _MISSING
        except Exception as error:
            return _failure(error)
        return _OK if damage is None else BlockResult(Status.CORRUPT, damage)

    def _stage_one(self, write: BlockWrite, payload: memoryview, deadline_at: float) -> Staged | BlockResult:
        try:
            with self._turn_to_store(deadline_at):
                if self._is_stored(write, deadline_at):
                    return Staged(write.key, None)
                header = self._format.pack_header(write.key, write.parent, write.tokens, payload)
                return self.medium.stage(write.key, header, payload, deadline_at=deadline_at)
        except Exception as error:
            return _failure(error)

    def _remember(self, written: Iterable[bytes]) -> None:
        for key in written:
            self._written[key] = None
            self._written.move_to_end(key)
        while len(self._written) > _REMEMBERED:
            self._written.popitem(last=False)

    def _turn_to_store(self, deadline_at: float) -> contextlib.AbstractContextManager[None]:
        return contextlib.nullcontext() if self._full_duplex else self._loads_first.store(deadline_at)

    def _is_stored(self, write: BlockWrite, deadline_at: float) -> bool:
        """Whether the block is there and can be read. Reading it costs far less than to write it again, and without it
        a damaged block would be reported as stored for ever. Whoever finds one damaged that was written here says so,
        to this store, or deletes it."""
        if not self.medium.contains(write.key, deadline_at=deadline_at):
            return False
        if write.key in self._written:
            return True
        scratch = getattr(self._scratch, "block", None)
        if scratch is None:
            scratch = self._scratch.block = memoryview(bytearray(self._format.block_bytes))
        return self._read_one(BlockRead(write.key, write.tokens, scratch), scratch, 0, deadline_at).ok

    async def _put_group(
        self, writes: Sequence[BlockWrite], payloads: list[memoryview], deadline_s: float, deadline_at: float
    ) -> tuple[list[BlockResult], asyncio.CancelledError | None]:
        stage_by = deadline_at - COMMIT_SHARE * max(deadline_at - time.monotonic(), 0.0)
        batch = Batch(
            len(writes),
            lambda index: self._stage_one(writes[index], payloads[index], stage_by),
            late=self._discard_late,
        )
        cancelled = await batch.run(self._writers, stage_by)
        staged = [result for result in batch.results if isinstance(result, Staged)]
        if cancelled:
            self._writers.submit(partial(self.medium.discard, staged))
            outcomes = [_late(deadline_s)] * len(staged)
        else:
            outcomes, cancelled = await self._commit(staged, deadline_s, deadline_at)
        committed = iter(outcomes)
        results = [
            next(committed) if isinstance(result, Staged) else result or _late(deadline_s, batch.quiet.get(i))
            for i, result in enumerate(batch.results)
        ]
        return results, cancelled

    async def _commit(
        self, staged: list[Staged], deadline_s: float, deadline_at: float
    ) -> tuple[list[BlockResult], asyncio.CancelledError | None]:
        if not staged:
            return [], None
        batch = Batch(1, lambda _: self._commit_all(staged, deadline_at))
        cancelled = await batch.run(self._writers, deadline_at)
        outcomes = batch.results[0]
        if outcomes is None:
            if not batch.quiet:  # it never began
                self._writers.submit(partial(self.medium.discard, staged))
            outcomes = [_late(deadline_s)] * len(staged)
        return outcomes, cancelled

    def _commit_all(self, staged: list[Staged], deadline_at: float) -> list[BlockResult]:
        try:
            with self._turn_to_store(deadline_at):
                errors = self.medium.commit(staged, deadline_at=deadline_at)
        except Exception as error:
            self.medium.discard(staged)
            return [_failure(error)] * len(staged)
        return [_OK if error is None else _failure(error) for error in errors]

    def _discard_late(self, result: Staged | BlockResult) -> None:
        if isinstance(result, Staged):
            self.medium.discard([result])

    def _stored_blocks(self, keys: Sequence[bytes]) -> list[StoredBlock]:
        found = []
        for key in keys:
            try:
                header = read_header(self.medium.peek(key, HEADER_BYTES))
            except (HeaderError, OSError):
                continue
            if header.key == key and header.layout_digest == self._format.layout_digest:
                found.append(StoredBlock(key, header.parent, HEADER_BYTES + header.payload_bytes))
        return found

    async def _spread(self, function: Callable[[Sequence[bytes]], list[T]], keys: Sequence[bytes]) -> list[T]:
        """What `function` gives for all keys, in order, from as many threads as there are for probes."""
        size = -(-len(keys) // self._probers.threads) or 1
        pieces = [list(keys[start : start + size]) for start in range(0, len(keys), size)]
        found = await asyncio.gather(*(self._call(partial(function, piece)) for piece in pieces))
        return [item for piece in found for item in piece]

    async def _call(self, function: Callable[[], T]) -> T:
        """Run `function` in a thread. Raises StoreError where it fails or the medium does not answer."""
        with self._operation():
            try:
                return await self._probers.call(function, _CALL_TIMEOUT_S)
            except TimeoutError:
                raise StoreError(f"{self.url} does not answer within {_CALL_TIMEOUT_S:g} s") from None
            except OSError as error:
                raise StoreError(f"{self.url}: {error}") from error


def _late(deadline_s: float, quiet: "asyncio.Future[None] | None" = None) -> BlockResult:
    return BlockResult(Status.TIMED_OUT, f"not done within {deadline_s:g} s", quiet)


def _failure(error: Exception) -> BlockResult:
    if isinstance(error, OSError) and error.errno in _NO_ROOM:
        return BlockResult(Status.FULL, str(error))
    if isinstance(error, TimeoutError):
        return BlockResult(Status.TIMED_OUT, str(error))
    return BlockResult(Status.FAILED, f"{type(error).__name__}: {error}")
