"""The contract beneath a `MediumStore`: where the bytes of blocks are kept, without any idea of what they mean.

A medium moves raw bytes and knows nothing of headers' contents, so it can hand out damaged bytes, and that is the
place where faults are injected. Everything here blocks and is called from several threads at once. What goes wrong
is raised as OSError; FileNotFoundError means that there is no such block. `deadline_at` is on `time.monotonic`: a
medium that can give up (a network client) does so then, with TimeoutError.
"""

import abc
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

Look = Callable[[memoryview], object]


@dataclass(frozen=True)
class Staged:
    """A block that is written but not visible; `handle` is the medium's. None: it is visible."""

    key: bytes
    handle: object


class Medium(abc.ABC):
    """Raw bytes by key."""

    @abc.abstractmethod
    def read(
        self, key: bytes, header: bytearray, payload: memoryview, *, deadline_at: float, skip_bytes: int = 0
    ) -> int:
        """Fill `header` from the block's first byte on, then `payload` from `skip_bytes` after the header's end on.

        Returns how many bytes the block was seen to have, those skipped included: less than what was asked for ends at
        where the block ends early, one more where it is seen to go on. What was skipped is not read.
        """

    def read_whole(self, key: bytes, header: bytearray, payload: memoryview, look: Look, *, deadline_at: float) -> int:
        """`read`, which shows `look` every piece of the payload once, in order, when it is there for good.

        A medium that reads a long block in pieces shows each while it is in the processor's cache.
        """
        seen = self.read(key, header, payload, deadline_at=deadline_at)
        look(payload)
        return seen

    @abc.abstractmethod
    def peek(self, key: bytes, size_bytes: int) -> bytes:
        """The first `size_bytes` of a block, or all that it has."""

    @abc.abstractmethod
    def stage(self, key: bytes, header: bytes, payload: memoryview, *, deadline_at: float) -> Staged:
        """Write a block, not yet visible, and perhaps not yet durable. Leaves nothing behind where it raises.

        What is staged is committed or discarded, up to `medium_store.GROUP_BLOCKS` blocks at a time. Where a write is
        one step (an object store), that step is here, whole; the handle is None then.
        """

    @abc.abstractmethod
    def commit(self, staged: Sequence[Staged], *, deadline_at: float) -> list[OSError | None]:
        """Make blocks durable, then visible, each whole and in place of what was there; one outcome each, in order.

        That it is visible is durable as well, which holds also for those with no handle, which another writer may have
        made visible a moment ago.
        """

    @abc.abstractmethod
    def discard(self, staged: Sequence[Staged]) -> None:
        """Drop staged blocks that will not be committed. Raises nothing."""

    @abc.abstractmethod
    def contains(self, key: bytes, *, deadline_at: float = math.inf) -> bool:
        """Whether a block is visible."""

    @abc.abstractmethod
    def delete(self, key: bytes) -> None:
        """Remove a block; one that is not there is fine."""

    @abc.abstractmethod
    def keys(self) -> Iterator[list[bytes]]:
        """Keys of all visible blocks, in chunks."""

    @abc.abstractmethod
    def close(self) -> None:
        """Release handles. Safe to call twice."""
