"""Threads that block for a store, and batches that are spread over them.

Not `concurrent.futures`: the interpreter joins that module's threads when it exits, so one read that never returns (a
dead file server) would keep the process from ending. These are daemon threads. They also cost one queue entry a
thread and batch where an executor costs a future and a wake-up of the loop a block.
"""

import asyncio
import contextlib
import queue
import threading
import time
from collections.abc import Callable
from functools import partial
from typing import Generic, TypeVar, final

T = TypeVar("T")


@final
class WorkerPool:
    """At most `threads` daemon threads, started as they are needed."""

    def __init__(self, threads: int, name: str) -> None:
        self.threads = threads
        self._name = name
        self._jobs: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._started: list[threading.Thread] = []

    def submit(self, job: Callable[[], None]) -> None:
        """Run `job`, which must not raise, in a thread. Called from the event loop's thread."""
        if len(self._started) < self.threads:
            name = f"{self._name}-{len(self._started)}"
            self._started.append(threading.Thread(target=self._work, name=name, daemon=True))
            self._started[-1].start()
        self._jobs.put(job)

    async def call(self, function: Callable[[], T], timeout_s: float) -> T:
        """`function()`, run in a thread. Raises what it raises, or TimeoutError; it may run on after that."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[T] = loop.create_future()

        def job() -> None:
            try:
                settle = partial(future.set_result, function())
            except Exception as error:
                settle = partial(future.set_exception, error)
            with contextlib.suppress(RuntimeError):  # the loop is closed
                loop.call_soon_threadsafe(lambda: None if future.done() else settle())

        self.submit(job)
        async with asyncio.timeout(timeout_s):
            return await future

    async def close(self, timeout_s: float) -> None:
        """Let the threads finish what was submitted and end; those that are stuck longer are left behind."""
        loop = asyncio.get_running_loop()
        reports = asyncio.Semaphore(0)

        def report() -> None:
            with contextlib.suppress(RuntimeError):  # the loop is closed: this thread was stuck too long
                loop.call_soon_threadsafe(reports.release)

        threads, self._started = self._started, []
        for _ in threads:
            self._jobs.put(report)
            self._jobs.put(None)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                for _ in threads:
                    await reports.acquire()

    def _work(self) -> None:
        while (job := self._jobs.get()) is not None:
            job()
            del job  # else the thread would keep the last batch's buffers alive while it waits


@final
class Batch(Generic[T]):
    """`count` pieces of work, done by a pool's threads until all are done, the deadline, or cancellation.

    `work(index)` must not raise. After `run`: `results[index]` is None for work that was not done in time, and
    `quiet[index]` is there for work that still runs; its result goes to `late` (in its thread) before the future is
    done.
    """

    def __init__(self, count: int, work: Callable[[int], T], *, late: Callable[[T], None] | None = None) -> None:
        self.results: list[T | None] = [None] * count
        self.quiet: dict[int, asyncio.Future[None]] = {}
        self._work = work
        self._late = late
        self._loop = asyncio.get_running_loop()
        self._done = self._loop.create_future()
        self._lock = threading.Lock()
        self._next = 0
        self._end = count
        self._running: set[int] = set()

    async def run(self, pool: WorkerPool, deadline_at: float) -> asyncio.CancelledError | None:
        """Returns by `deadline_at` (`time.monotonic`), with the cancellation that it held back, if any.

        Once cancelled, no further work is begun, and what runs is waited for.
        """
        cancelled = None
        if self._end == 0:
            return None
        for _ in range(min(pool.threads, self._end)):
            pool.submit(self._work_off)
        while not self._done.done() and (left_s := deadline_at - time.monotonic()) > 0:
            try:
                await asyncio.wait([self._done], timeout=left_s)
            except asyncio.CancelledError as error:
                cancelled = error
                self._stop()
        self._abandon()
        return cancelled

    def _work_off(self) -> None:
        while (index := self._begin()) is not None:
            self._finish(index, self._work(index))

    def _begin(self) -> int | None:
        with self._lock:
            if self._next >= self._end:
                return None
            index = self._next
            self._next += 1
            self._running.add(index)
            return index

    def _finish(self, index: int, result: T) -> None:
        with self._lock:
            self._running.discard(index)
            quiet = self.quiet.get(index)
            if quiet is None:
                self.results[index] = result
            all_done = not self._running and self._next >= self._end
        if quiet is not None:
            if self._late is not None:
                self._late(result)
            self._notify(quiet)
        elif all_done:
            self._notify(self._done)

    def _notify(self, future: "asyncio.Future[None]") -> None:
        with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits any more
            self._loop.call_soon_threadsafe(_complete, future)

    def _stop(self) -> None:
        with self._lock:
            self._end = self._next
            if not self._running:
                _complete(self._done)

    def _abandon(self) -> None:
        with self._lock:
            self._end = self._next
            for index in self._running:
                self.quiet[index] = self._loop.create_future()


def _complete(future: "asyncio.Future[None]") -> None:
    if not future.done():
        future.set_result(None)
