"""Reading a run of a prompt's blocks from storage, for either side."""

import asyncio
import logging
import time

from dualpath_jax.cluster.jobs import Job, JobError, ReadOutcome
from dualpath_jax.cluster.reporter import Reporter
from dualpath_jax.cluster.services import NodeServices
from dualpath_jax.engine.host_buffers import Reservation
from dualpath_storage import Status, StoreError

log = logging.getLogger(__name__)


async def read_blocks(
    services: NodeServices, reporter: Reporter, job: Job, *, first: int, reservation: Reservation, slots: slice
) -> ReadOutcome:
    """Read and verify blocks `first, first + 1, ...` of the prompt into slots of a reservation, through the SNIC.

    The usable run ends at the first block that was not read and verified. What made it end is said to the scheduler,
    which forgets the key at once, and a damaged block is deleted, so that it can be stored anew.

    Raises JobError where a timed-out read may still write into a buffer: the buffers must rest, and the request is
    better off with others.
    """
    into = reservation.views()[slots]
    if not into:
        return ReadOutcome(0)
    job.planned_reads = 0  # the traffic manager counts them from here on
    start = time.time()
    reads = [job.read(first + i, view) for i, view in enumerate(into)]
    deadline_s = services.spec.storage.read_deadline_s
    need = (job.assignment.serial,)
    with reservation.touching():
        results = await services.traffic.read(
            services.store, reads, deadline_s=deadline_s, need=need, hold=reservation.hold
        )
    job.memory.close()
    end = time.time()
    verified = next((i for i, result in enumerate(results) if not result.ok), len(results))
    if verified == len(results):
        return ReadOutcome(verified, start, end)
    key, failure = reads[verified].key, results[verified]
    reporter.lost(key)
    if failure.status is Status.CORRUPT:
        try:
            await services.store.delete([key])
        except StoreError as error:  # a later write finds it damaged and replaces it
            log.warning("%s: damaged block %s stays: %s", job.label, key.hex(), error)
    busy = {result.quiet for result in results if result.quiet is not None and not result.quiet.done()}
    if busy:  # a read that ends a little late costs less than another attempt of the request
        _, busy = await asyncio.wait(busy, timeout=deadline_s / 2)
    if busy:
        raise JobError(
            f"{job.label}: block {first + verified} {failure.status.value} after {deadline_s} s ({failure.detail}) and "
            "its buffer is still being written to"
        )
    return ReadOutcome(verified, start, end)
