"""The parts of one side's reads, as they come."""

import asyncio
from collections.abc import Coroutine, Sequence
from typing import Any, final

from dualpath_jax.cluster.jobs import JobError, ReadOutcome

Part = Coroutine[Any, Any, ReadOutcome]


def predicted_left_s(parts: int, arrived_s: Sequence[float], now_s: float) -> float:
    """Seconds until the last of `parts` comes, by how the others came; `arrived_s` begins with when the reads did.

    The newest interval counts, since the first one may hold the wait for other requests' reads. A part that is late
    is expected to be as late again.
    """
    come = len(arrived_s) - 1
    if come >= parts:
        return 0.0
    elapsed_s = now_s - arrived_s[-1]
    if not come:
        return parts * elapsed_s
    interval_s = arrived_s[-1] - arrived_s[-2]
    next_s = interval_s - elapsed_s if elapsed_s < interval_s else elapsed_s
    return next_s + (parts - come - 1) * interval_s


@final
class Arrivals:
    """Runs the parts, a task each, all begun in order, until they have ended or `stop` is called."""

    def __init__(self, parts: Sequence[Part]) -> None:
        self._arrived_s = [asyncio.get_running_loop().time()]
        self._tasks = [asyncio.create_task(part) for part in parts]
        for task in self._tasks:
            task.add_done_callback(self._note)

    def _note(self, task: "asyncio.Task[ReadOutcome]") -> None:
        if not task.cancelled() and task.exception() is None:
            self._arrived_s.append(task.get_loop().time())

    @property
    def parts(self) -> int:
        return len(self._tasks)

    @property
    def left_s(self) -> float:
        """Seconds until the last part comes, predicted; 0 once all have."""
        return predicted_left_s(self.parts, self._arrived_s, asyncio.get_running_loop().time())

    @property
    def outcomes(self) -> list[ReadOutcome]:
        """What has come so far."""
        return [task.result() for task in self._tasks if task.done() and not task.cancelled() and not task.exception()]

    async def part(self, index: int) -> ReadOutcome:
        """Waits for a part, and raises what made it fail, JobError where it was stopped. At once where it has come."""
        task = self._tasks[index]
        if not task.done():
            await asyncio.wait({task})
        if task.cancelled():
            raise JobError("the reads were stopped")
        return task.result()

    async def stop(self) -> None:
        """End what still runs; returns once nothing does. Safe to call twice."""
        for task in self._tasks:
            task.cancel()
        await asyncio.wait(self._tasks)
