"""The contract beneath a `MediumStore`: where the bytes of blocks are kept, without any idea of what they mean.

A medium moves raw bytes and knows nothing of headers' contents, so it can hand out damaged bytes, and that is the
place where faults are injected. Everything here blocks and is called from several threads at once. What goes wrong
is raised as OSError; FileNotFoundError means that there is no such block. `deadline_at` is on `time.monotonic`: a
medium that can give up (a network client) does so then, with TimeoutError.
"""

import abc
from collections.abc import Iterator, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Staged:
    """A block that is written but not visible; `handle` is the medium's. None: it was visible before."""

    key: bytes
    handle: str | bytes | None


class Medium(abc.ABC):
    """Raw bytes by key."""

    @abc.abstractmethod
    def read(self, key: bytes, header: bytearray, payload: memoryview, *, deadline_at: float) -> int:
        """Fill `header`, then `payload`, from the block's first byte on.

        Returns how many bytes the block was seen to have: less than both lengths where it ends early, one more where
        it goes on.
        """

    @abc.abstractmethod
    def peek(self, key: bytes, size_bytes: int) -> bytes:
        """The first `size_bytes` of a block, or all that it has."""

    @abc.abstractmethod
    def stage(self, key: bytes, header: bytes, payload: memoryview, *, deadline_at: float) -> Staged:
        """Write a block so that it survives a crash, not yet visible. Leaves nothing behind where it raises."""

    @abc.abstractmethod
    def commit(self, staged: Sequence[Staged], *, deadline_at: float) -> list[OSError | None]:
        """Make blocks visible, each whole and in place of what was there, and durable; one outcome each, in order.

        Durable holds also for those with no handle, which another writer may have made visible a moment ago.
        """

    @abc.abstractmethod
    def discard(self, staged: Sequence[Staged]) -> None:
        """Drop staged blocks that will not be committed. Raises nothing."""

    @abc.abstractmethod
    def contains(self, key: bytes) -> bool:
        """Whether a block is visible."""

    def last_used_s(self, key: bytes) -> float:
        """When a block was last read or written, in seconds since 1970; 0 where this medium does not know."""
        return 0.0

    @abc.abstractmethod
    def delete(self, key: bytes) -> None:
        """Remove a block; one that is not there is fine."""

    @abc.abstractmethod
    def keys(self) -> Iterator[list[bytes]]:
        """Keys of all visible blocks, in chunks."""

    @abc.abstractmethod
    def close(self) -> None:
        """Release handles. Safe to call twice."""
