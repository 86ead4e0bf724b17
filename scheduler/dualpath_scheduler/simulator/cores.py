"""Engine groups that compute on the cores of one machine, and slow each other down."""

import abc
from typing import final

from dualpath_scheduler.simulator.loop import Event


class Worker(abc.ABC):
    """What computes on cores that it may have to share."""

    @abc.abstractmethod
    def respeed(self, now: float) -> Event:
        """The slowdown has changed: takes stock of what was done until now, and says anew when the work ends."""


@final
class Cores:
    """`count` cores; None: each worker has its own.

    Where those who work want more than there are, all of them take longer by the same factor.
    """

    def __init__(self, count: int | None) -> None:
        self._count = count
        self._working: dict[Worker, float] = {}
        self.slowdown = 1.0

    def enter(self, now: float, worker: Worker, wanted: float) -> list[Event]:
        """A worker begins, and keeps so many cores busy; returns when the others end now."""
        if self._count is None:
            return []
        self._working[worker] = wanted
        return self._share(now, worker)

    def leave(self, now: float, worker: Worker) -> list[Event]:
        """A worker has ended, or had; returns when the others end now."""
        if self._working.pop(worker, None) is None:
            return []
        return self._share(now, worker)

    def _share(self, now: float, changed: Worker) -> list[Event]:
        assert self._count is not None
        slowdown = max(1.0, sum(self._working.values()) / self._count)
        if slowdown == self.slowdown:
            return []
        self.slowdown = slowdown
        return [worker.respeed(now) for worker in self._working if worker is not changed]
