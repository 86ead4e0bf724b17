"""Host buffers: one arena of Full-Block slots, reserved all or nothing, quarantined until quiet.

A slot is free, or reserved, or quarantined: released while transfers still touch it. A transfer is made known by
`Reservation.hold` (for as long as a future is not done) or `Reservation.touching` (for as long as a `with` block runs).
"""

import asyncio
import contextlib
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self, final

import numpy as np

from dualpath_storage.layout import KVLayout

ALIGNMENT_BYTES = 64


class ReservationTimeout(Exception):  # noqa: N818 - the name of what happened
    """No room in time. Nothing is held."""

    def __init__(self, what: str, wanted: int, free: int, remedy: str) -> None:
        super().__init__(f"{what}: {wanted} wanted, {free} free; {remedy}")
        self.what = what
        self.wanted = wanted
        self.free = free
        self.remedy = remedy


@dataclass(frozen=True)
class ArenaStats:
    """Slots by state; the three add up to the arena."""

    free: int
    reserved: int
    quarantined: int


@final
class HostArena:
    """`blocks` slots of `layout.block_bytes` bytes, each 64-byte aligned, allocated once.

    What a slot holds when it is reserved is undefined: whoever reserves it writes before reading, the unused tail of
    a last, partially filled block included. Methods are called from one event loop.
    """

    def __init__(self, layout: KVLayout, blocks: int) -> None:
        if blocks <= 0:
            raise ValueError(f"a host buffer of {blocks} blocks: expected at least 1")
        self._block_bytes = layout.block_bytes
        stride = -(-self._block_bytes // ALIGNMENT_BYTES) * ALIGNMENT_BYTES
        raw = np.empty(blocks * stride + ALIGNMENT_BYTES, np.uint8)
        start = -raw.ctypes.data % ALIGNMENT_BYTES
        self._slots = raw[start : start + blocks * stride].reshape(blocks, stride)
        self._free = list(range(blocks - 1, -1, -1))
        self._quarantined = 0
        self._waiters: deque[tuple[int, asyncio.Future[list[int]]]] = deque()

    @property
    def blocks(self) -> int:
        """Slots in all."""
        return len(self._slots)

    @property
    def stats(self) -> ArenaStats:
        """Where the slots are now."""
        free = len(self._free)
        return ArenaStats(free, self.blocks - free - self._quarantined, self._quarantined)

    async def reserve(self, blocks: int, *, deadline_s: float) -> "Reservation":
        """Take `blocks` slots at once, after everyone who asked before; 0 is always granted.

        Raises ValueError at once for more than the arena has, ReservationTimeout after `deadline_s`; then, and when
        cancelled, nothing is held.
        """
        if not 0 <= blocks <= self.blocks:
            raise ValueError(
                f"a reservation of {blocks} blocks: expected 0 to {self.blocks}, the host buffer's size; "
                "raise host_buffer_blocks or shorten the request"
            )
        granted: asyncio.Future[list[int]] = asyncio.get_running_loop().create_future()
        waiter = (blocks, granted)
        self._waiters.append(waiter)
        self._grant()
        try:
            async with asyncio.timeout(deadline_s):
                slots = await granted
        except TimeoutError:
            free = len(self._free)  # before the next in line takes them
            self._withdraw(waiter)
            raise ReservationTimeout(
                "host buffer blocks",
                blocks,
                free,
                f"waited {deadline_s:g} s; raise host_buffer_blocks or reservation_deadline_s",
            ) from None
        except asyncio.CancelledError:
            self._withdraw(waiter)
            raise
        return Reservation(self, slots)

    def _withdraw(self, waiter: "tuple[int, asyncio.Future[list[int]]]") -> None:
        granted = waiter[1]
        if granted.done() and not granted.cancelled():  # granted in the same moment
            self._free.extend(granted.result())
        else:
            self._waiters.remove(waiter)
        self._grant()

    def _grant(self) -> None:
        while self._waiters:
            blocks, granted = self._waiters[0]
            if granted.cancelled() or blocks > len(self._free):  # a cancelled one withdraws in a moment
                return
            self._waiters.popleft()
            granted.set_result([self._free.pop() for _ in range(blocks)])

    def _view(self, slot: int) -> np.ndarray:
        return self._slots[slot, : self._block_bytes]

    def _quarantine(self, blocks: int) -> None:
        self._quarantined += blocks

    def _put_back(self, slots: list[int]) -> None:
        self._quarantined -= len(slots)
        self._free.extend(slots)
        self._grant()


@final
class Reservation:
    """Slots of one owner, until `release`; a context manager that releases."""

    def __init__(self, arena: HostArena, slots: list[int]) -> None:
        self._arena = arena
        self._slots = slots
        self._holds = 0
        self._released = False

    @property
    def blocks(self) -> list[np.ndarray]:
        """The slots, uint8 `[block_bytes]` each, in a fixed order. Raises RuntimeError after `release`."""
        if self._released:
            raise RuntimeError("this reservation was released: its slots may belong to another request")
        return [self._arena._view(slot) for slot in self._slots]

    def views(self) -> list[memoryview]:
        """The same as writable memoryviews of bytes."""
        return [block.data for block in self.blocks]

    def hold(self, future: "asyncio.Future[Any]") -> None:
        """Keep the slots from reuse until `future` is done, however it ends. Raises RuntimeError once they are free."""
        self._begin_hold()
        future.add_done_callback(lambda _: self._end_hold())

    @contextlib.contextmanager
    def touching(self) -> Iterator[None]:
        """Keep the slots from reuse while the `with` block runs. Raises RuntimeError once they are free."""
        self._begin_hold()
        try:
            yield
        finally:
            self._end_hold()

    def release(self) -> None:
        """Give the slots back; those that are held become free when the last hold ends. Safe to call twice."""
        if self._released:
            return
        self._released = True
        self._arena._quarantine(len(self._slots))
        self._free_if_quiet()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.release()

    def _begin_hold(self) -> None:
        if self._released and not self._holds:
            raise RuntimeError("this reservation was released and its slots are free: hold before releasing")
        self._holds += 1

    def _end_hold(self) -> None:
        self._holds -= 1
        self._free_if_quiet()

    def _free_if_quiet(self) -> None:
        if self._released and not self._holds:
            slots, self._slots = self._slots, []
            self._arena._put_back(slots)
