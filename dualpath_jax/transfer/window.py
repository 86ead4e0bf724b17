"""A bounded number of bytes in flight; whoever waits for room is let in by need, then in order of arrival."""

import asyncio
import contextlib
import heapq
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from itertools import count
from typing import Any, final

Need = tuple[Any, ...]
"""Sorts what waits: the smallest is the most urgent, equal ones go first come, first served. `()` before all else."""


@final
@dataclass(order=True)
class _Waiter:
    need: Need
    arrival: int
    size_bytes: int = field(compare=False)
    admitted: "asyncio.Future[None]" = field(compare=False)


@final
class Window:
    """At most `limit_bytes` in flight, but always at least one entry however large it is."""

    def __init__(self, limit_bytes: int) -> None:
        if limit_bytes <= 0:
            raise ValueError(f"a window of {limit_bytes} bytes: expected a positive size")
        self.limit_bytes = limit_bytes
        self.in_flight_bytes = 0
        self._waiters: list[_Waiter] = []
        self._arrivals = count()

    def has_room(self, size_bytes: int) -> bool:
        """Whether an entry of that size would be let in at once."""
        fits = not self.in_flight_bytes or self.in_flight_bytes + size_bytes <= self.limit_bytes
        return fits and all(waiter.admitted.cancelled() for waiter in self._waiters)

    @contextlib.asynccontextmanager
    async def slot(self, size_bytes: int, need: Need = ()) -> AsyncIterator[None]:
        """Waits for room for `size_bytes` and gives it back at the end, also when cancelled while waiting."""
        waiter = _Waiter(need, next(self._arrivals), size_bytes, asyncio.get_running_loop().create_future())
        heapq.heappush(self._waiters, waiter)
        self._admit()
        try:
            await waiter.admitted
            yield
        finally:
            if waiter.admitted.done() and not waiter.admitted.cancelled():
                self.in_flight_bytes -= size_bytes
            self._admit()

    def _admit(self) -> None:
        while self._waiters:
            waiter = self._waiters[0]
            if not waiter.admitted.cancelled():
                if self.in_flight_bytes and self.in_flight_bytes + waiter.size_bytes > self.limit_bytes:
                    return
                self.in_flight_bytes += waiter.size_bytes
                waiter.admitted.set_result(None)
            heapq.heappop(self._waiters)
