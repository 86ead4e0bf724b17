"""The attempts that a node has on its hands."""

import asyncio
from collections.abc import Iterator

from dualpath_jax.cluster.jobs import Job, JobKey


class JobTable:
    """Attempts by key; a peer may ask for one that the scheduler has not told this node of yet."""

    def __init__(self) -> None:
        self._jobs: dict[JobKey, Job] = {}
        self._arrivals: dict[JobKey, asyncio.Event] = {}

    def __iter__(self) -> Iterator[Job]:
        """All attempts, as of now: the table may change meanwhile."""
        return iter(list(self._jobs.values()))

    def __len__(self) -> int:
        return len(self._jobs)

    def add(self, job: Job) -> None:
        self._jobs[job.key] = job
        if (arrival := self._arrivals.get(job.key)) is not None:
            arrival.set()

    def remove(self, job: Job) -> None:
        self._jobs.pop(job.key, None)

    async def expect(self, key: JobKey, *, deadline_s: float) -> Job:
        """The attempt, once it is here. Raises TimeoutError where it has not come by the deadline."""
        if key not in self._jobs:
            arrival = self._arrivals.setdefault(key, asyncio.Event())
            try:
                async with asyncio.timeout(deadline_s):
                    await arrival.wait()
            finally:
                self._arrivals.pop(key, None)
        if key not in self._jobs:
            raise TimeoutError(f"request {key[0]} (attempt {key[1]}) ended before it could be asked about")
        return self._jobs[key]
