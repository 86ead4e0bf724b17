"""Reading a run of a prompt's blocks from storage, for either side."""

import asyncio
import logging
import time
from collections.abc import Sequence

from dualpath_jax.cluster.arrivals import Arrivals
from dualpath_jax.cluster.jobs import Job, JobError, ReadOutcome
from dualpath_jax.cluster.layer_groups import read_parts
from dualpath_jax.cluster.reporter import Reporter
from dualpath_jax.cluster.services import NodeServices
from dualpath_jax.engine.host_buffers import Reservation
from dualpath_storage import BlockResult, Status, StoreError
from dualpath_storage.store import BlockRead

log = logging.getLogger(__name__)


def start_reads(
    services: NodeServices, reporter: Reporter, job: Job, *, first: int, reservation: Reservation, slots: slice
) -> Arrivals:
    """Begin to read and verify blocks `first, first + 1, ...` of the prompt into slots of a reservation.

    All parts are queued at once, so that storage goes on from one to the next and no later request comes between. The
    usable run of a part ends at the first block that was not read and verified. What made it end is said to the
    scheduler, which forgets the key at once, and a damaged block is deleted, so that it can be stored anew.

    A part is a JobError where a timed-out read may still write into a buffer: the buffers must rest, and the request
    is better off with others.
    """
    layout, views = services.engine.layout, reservation.views()[slots]
    parts = read_parts(services.spec, layout.layers)
    job.planned_reads = 0  # the traffic manager counts them from here on
    reads = [
        [
            # Not a range of all layers: whole blocks have a checksum of their own, and a tier keeps them.
            job.read(first + i, view[layout.layer_span(*layers)], layers if len(parts) > 1 else None)
            for i, view in enumerate(views)
        ]
        for layers in parts
    ]
    return Arrivals([_read_part(services, reporter, job, first, reservation, part) for part in enumerate(reads)])


async def _read_part(
    services: NodeServices,
    reporter: Reporter,
    job: Job,
    first: int,
    reservation: Reservation,
    numbered: tuple[int, Sequence[BlockRead]],
) -> ReadOutcome:
    part, reads = numbered
    if not reads:
        return ReadOutcome(0)
    start = time.time()
    deadline_s = services.spec.storage.read_deadline_s
    need = (job.assignment.serial, part)
    with reservation.touching():
        results = await services.traffic.read(
            services.store, reads, deadline_s=deadline_s, need=need, hold=reservation.hold
        )
    end = time.time()
    verified = next((i for i, result in enumerate(results) if not result.ok), len(results))
    if verified == len(results):
        return ReadOutcome(verified, start, end)
    reporter.lost(reads[verified].key)
    if results[verified].status is Status.CORRUPT:
        await _delete(services, job, reads[verified].key)
    what = f"{job.label}: block {first + verified} {results[verified].status.value} after {deadline_s} s"
    await _let_buffers_rest(f"{what} ({results[verified].detail})", results, patience_s=deadline_s / 2)
    return ReadOutcome(verified, start, end)


async def _delete(services: NodeServices, job: Job, key: bytes) -> None:
    try:
        await services.store.delete([key])
    except StoreError as error:  # a later write finds it damaged and replaces it
        log.warning("%s: damaged block %s stays: %s", job.label, key.hex(), error)


async def _let_buffers_rest(what: str, results: Sequence[BlockResult], *, patience_s: float) -> None:
    """Wait for reads that outlived their deadline; raises JobError where they go on."""
    busy = {result.quiet for result in results if result.quiet is not None and not result.quiet.done()}
    if busy:  # a read that ends a little late costs less than another attempt of the request
        _, busy = await asyncio.wait(busy, timeout=patience_s)
    if busy:
        raise JobError(f"{what} and its buffer is still being written to")
