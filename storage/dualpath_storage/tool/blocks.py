"""Whole blocks of a store, read by what their headers say: no layout, no tokens and no event loop are needed."""

import contextlib
import itertools
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import TypeVar, final

from dualpath_storage.block_format import HEADER_BYTES, BlockFormat, BlockHeader, HeaderError, PayloadSum, read_header
from dualpath_storage.medium import Medium
from dualpath_storage.store import StoreError

T = TypeVar("T")
R = TypeVar("R")

THREADS = 8
DEADLINE_S = 60.0
_AHEAD = 4 * THREADS


@dataclass(frozen=True)
class Damage:
    """Why a block gives no bytes. `certain`: its bytes were seen; else it could not be read, which may pass."""

    key: bytes
    reason: str
    certain: bool

    def as_json(self) -> dict[str, object]:
        return {"key": self.key.hex(), "reason": self.reason, "readable": self.certain}


@dataclass(frozen=True)
class Whole:
    """A block that verifies; `payload` is good until its thread reads the next one."""

    header: BlockHeader
    raw_header: bytes
    payload: memoryview

    @property
    def size_bytes(self) -> int:
        return HEADER_BYTES + len(self.payload)


@final
class BlockReader:
    """Reads and verifies blocks; may be used from several threads."""

    def __init__(self, medium: Medium) -> None:
        self._medium = medium
        self._buffers = threading.local()

    def read(self, key: bytes) -> Whole | Damage | None:
        """Everything but the tokens is verified. None: there is no such block (any more)."""
        try:
            peeked = read_header(self._medium.peek(key, HEADER_BYTES))
            block_format = BlockFormat.of(peeked)
            header, payload = bytearray(HEADER_BYTES), self._buffer(peeked.payload_bytes)
            payload_sum, deadline_at = PayloadSum(), time.monotonic() + DEADLINE_S
            seen = self._medium.read_whole(key, header, payload, payload_sum.update, deadline_at=deadline_at)
            reason = block_format.verify(
                header, payload, key=key, tokens=None, stored_bytes=seen, payload_sum=payload_sum
            )
        except (HeaderError, OSError) as error:
            return _unread(key, error)
        return Whole(peeked, bytes(header), payload) if reason is None else Damage(key, reason, certain=True)

    def _buffer(self, size_bytes: int) -> memoryview:
        buffer: memoryview | None = getattr(self._buffers, "payload", None)
        if buffer is None or len(buffer) != size_bytes:
            buffer = self._buffers.payload = memoryview(bytearray(size_bytes))
        return buffer


def keys_of(medium: Medium) -> list[bytes]:
    """All keys. Raises StoreError."""
    try:
        return list(itertools.chain.from_iterable(medium.keys()))
    except OSError as error:
        raise StoreError(f"the store cannot be listed: {error}") from error


def header_of(medium: Medium, key: bytes) -> BlockHeader | Damage | None:
    """What a block says of itself, without its payload. None: there is no such block (any more)."""
    try:
        header = read_header(medium.peek(key, HEADER_BYTES))
    except (HeaderError, OSError) as error:
        return _unread(key, error)
    if header.key != key:
        return Damage(key, f"holds another block, {header.key.hex()}", certain=True)
    return header


def _unread(key: bytes, error: HeaderError | OSError) -> Damage | None:
    """What an error says of a block. None: there is no such block (any more)."""
    if isinstance(error, FileNotFoundError):
        return None
    if isinstance(error, HeaderError):
        return Damage(key, str(error), certain=True)
    return Damage(key, f"cannot be read: {error}", certain=False)


@contextlib.contextmanager
def in_threads(function: Callable[[T], R], items: Iterable[T]) -> Iterator[Iterator[R]]:
    """`function` of each item, in order, computed a little ahead of the caller.

    At the end of the context nothing runs any more; what the caller did not come to is not begun.
    """
    pool = ThreadPoolExecutor(THREADS, "store-tool")

    def results() -> Iterator[R]:
        ahead: deque[Future[R]] = deque()
        for item in items:
            ahead.append(pool.submit(function, item))
            if len(ahead) >= _AHEAD:
                yield ahead.popleft().result()
        while ahead:
            yield ahead.popleft().result()

    try:
        yield results()
    finally:
        pool.shutdown(cancel_futures=True)
