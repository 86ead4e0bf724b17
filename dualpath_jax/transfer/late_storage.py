"""Storage that lets reads or writes run out of time."""

import asyncio
import contextlib
import math
from collections.abc import AsyncIterator
from typing import final

from dualpath_jax.transfer.window import Need, Window
from dualpath_storage.store import BlockResult, Status

NOT_QUEUED = BlockResult(Status.TIMED_OUT, "storage is late with other blocks, and this one was not queued behind them")

LATE_READS = 8
"""Reads in a row that run out of time before storage counts as late: one that hangs must hurt one request alone."""

LATE_WRITES = 1
"""The same for writes: one that is dropped costs less than a host buffer that fills up behind one that hangs."""


@final
class LateStorage:
    """Whether storage has let `in_a_row` operations in a row run out of time lately, and should not be queued for.

    A card that is slow works its queue off, and blocks may wait for it as long as that takes. Storage that hangs does
    not: each wave of its queue would take a whole deadline, reads would wait for many of them, and writes would keep
    host buffers until none were left for requests. What is asked meanwhile without a queue shows whether storage is
    there again.
    """

    def __init__(self, in_a_row: float) -> None:
        self._in_a_row = in_a_row
        self._late = 0
        self._until_s = -math.inf

    @contextlib.asynccontextmanager
    async def place(self, window: Window, size_bytes: int, need: Need) -> AsyncIterator[bool]:
        """A place in the window of what storage does at once; False, and none, where it is late and has a queue."""
        queues = not window.has_room(size_bytes)
        if queues and self._is_late:
            yield False
            return
        async with window.slot(size_bytes, need):
            yield not (queues and self._is_late)

    @property
    def _is_late(self) -> bool:
        return asyncio.get_running_loop().time() < self._until_s

    def note(self, result: BlockResult, *, rest_s: float) -> None:
        """What storage made of a block; the last of too many that ran out of time makes it late for `rest_s`."""
        if result.status is not Status.TIMED_OUT:
            self._late = 0
            return
        self._late += 1
        if self._late >= self._in_a_row:
            self._until_s = asyncio.get_running_loop().time() + rest_s


NEVER_LATE = LateStorage(math.inf)
"""A node's own memory."""
