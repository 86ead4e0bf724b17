"""The contract of a block store: batches in, per-block results out, into buffers that the caller owns.

A store never returns wrong bytes: what it hands out was written whole under that key, with that layout and those
tokens, and its checksum holds. Everything else is a miss with a reason. One bad block never fails its neighbours,
and nothing here raises for the state of a block; exceptions mean a misuse or a store that cannot work at all.
"""

import abc
import asyncio
import enum
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field


class Status(enum.Enum):
    """What became of one block of a batch."""

    OK = "ok"
    MISSING = "missing"
    CORRUPT = "corrupt"  # truncated, flipped, swapped, of another layout or of other tokens
    TIMED_OUT = "timed_out"
    FAILED = "failed"  # the device or the server said no
    FULL = "full"  # a write that found no room


class StoreError(Exception):
    """The store cannot work: a wrong URL, no permission, a folder that holds something else."""


@dataclass(frozen=True)
class BlockRead:
    """Read the block `key`, or some of its layers, into `into` (writable, C-contiguous, exactly as long as that).

    `tokens` are the block's token ids as `keys.token_bytes` writes them; a stored block of other tokens is CORRUPT.
    `layers` is a range `[first, last)`, which are the bytes `layout.layer_span(first, last)` of the block; None: all.
    Of a range no more than the header and its own bytes are read and verified, so damage elsewhere goes unnoticed.
    """

    key: bytes
    tokens: bytes
    into: memoryview
    layers: tuple[int, int] | None = None


@dataclass(frozen=True)
class BlockWrite:
    """Write `data` (exactly `layout.block_bytes` long; unchanged until the result) as block `key` after `parent`."""

    key: bytes
    parent: bytes
    tokens: bytes
    data: memoryview


@dataclass(frozen=True)
class BlockResult:
    """The outcome of one block.

    `quiet` is set where the operation timed out while a thread or a server may still touch the caller's buffer: the
    buffer must not be reused before that future is done. It is None everywhere else.

    `from_memory`: a tier handed out bytes that nothing was read from storage for; whoever emulates or counts storage
    traffic leaves them out. Of several reads that shared one load, all but one say so.
    """

    status: Status
    detail: str = ""
    quiet: "asyncio.Future[None] | None" = field(default=None, compare=False)
    from_memory: bool = field(default=False, compare=False)

    @property
    def ok(self) -> bool:
        return self.status is Status.OK


@dataclass(frozen=True)
class StoredBlock:
    """What a scan finds of one block, from its header alone."""

    key: bytes
    parent: bytes
    size_bytes: int


class BlockStore(abc.ABC):
    """Blocks of one layout, by chain key. Methods are called from one event loop.

    Cancellation: a cancelled `get` or `put` begins no further block and waits for those that run, so where it raises
    CancelledError nothing touches a buffer of the batch any more. Where a block still runs at the deadline, the call
    returns its results, with `quiet` futures, and does not raise; `asyncio.current_task().cancelling()` tells.

    Buffers that break `BlockRead`'s or `BlockWrite`'s terms are a ValueError, and nothing has begun. A closed store
    and, for the methods without a deadline, a device that fails or does not answer are a StoreError.
    """

    @abc.abstractmethod
    async def get(self, reads: Sequence[BlockRead], *, deadline_s: float) -> list[BlockResult]:
        """Read and verify blocks; returns one result a read, in order, by the deadline at the latest.

        A buffer whose result is not OK holds undefined bytes. An empty batch is always fine.
        """

    @abc.abstractmethod
    async def put(self, writes: Sequence[BlockWrite], *, deadline_s: float) -> list[BlockResult]:
        """Write blocks; OK means durable and whole: a reader, also after a crash, sees all of it or nothing.

        Writing a key that is stored already is OK and changes nothing: equal keys mean equal bytes. Where what is
        stored turns out to be damaged, it is replaced. A write that times out or is cancelled may still become
        visible later, whole.
        """

    def resident(self, key: bytes) -> bool:
        """Whether a read of the block would need no storage at this moment; only a tier has such blocks."""
        return False

    @abc.abstractmethod
    async def contains(self, keys: Sequence[bytes]) -> list[bool]:
        """Whether each key is stored. Does not verify and does not count as use."""

    @abc.abstractmethod
    async def delete(self, keys: Sequence[bytes]) -> None:
        """Forget blocks; keys that are not stored are skipped."""

    @abc.abstractmethod
    def scan(self) -> AsyncIterator[StoredBlock]:
        """All blocks of this store's layout, parents in no particular order; damaged headers are skipped."""

    @abc.abstractmethod
    async def close(self) -> None:
        """Release threads and handles; waits for running operations. Safe to call twice."""
