"""Gathering a prompt's stored prefix on the prefill side: slots, this side's reads, the decode side's answer."""

import asyncio

from dualpath_jax.cluster.jobs import ReadOutcome
from dualpath_jax.cluster.prefill_jobs import Gathered, PrefillJob
from dualpath_jax.cluster.reads import read_blocks
from dualpath_jax.cluster.reporter import Reporter
from dualpath_jax.cluster.services import NodeServices


async def gather(services: NodeServices, reporter: Reporter, job: PrefillJob) -> Gathered:
    """Reserve slots, read this side's share, and learn what the decode side has; the caller releases the reservation.

    Slots are reserved for the plan, all or nothing. Where reads fail, more blocks are to be computed than were
    planned: then everything is given back first and the larger number reserved, so that no attempt ever holds a part
    of the buffer while it waits for the rest. The usable prefix shrinks each time, so this ends.
    """
    assert job.peer is not None
    deadline_s = services.spec.scheduling.reservation_deadline_s
    reads_deadline_s = services.spec.scheduling.request_deadline_s
    own, usable = job.assignment.prefill_side_blocks, job.hit_blocks
    decode_side: asyncio.Task[ReadOutcome] = asyncio.create_task(job.peer.await_reads(job, deadline_s=reads_deadline_s))
    try:
        while True:
            reservation = await services.arena.reserve(own + job.prompt_blocks - usable, deadline_s=deadline_s)
            try:
                here = await read_blocks(services, reporter, job, first=0, reservation=reservation, slots=slice(own))
                there = await decode_side
            except BaseException:
                reservation.release()
                raise
            _mark_reads(job, here, there)
            covered = own + there.verified_blocks if here.verified_blocks == own else here.verified_blocks
            covered = min(covered, usable)
            if covered == usable:
                return Gathered(reservation, tuple(reservation.blocks), own, usable)
            reservation.release()
            own, usable = min(own, covered), covered
    finally:
        decode_side.cancel()


def _mark_reads(job: PrefillJob, *outcomes: ReadOutcome) -> None:
    starts = [o.read_start for o in outcomes if o.read_start]
    if starts:
        earlier = job.watch.marks.get("read_start", starts[0])
        job.watch.marks["read_start"] = min(earlier, *starts)
        job.watch.marks["read_end"] = max(job.watch.marks.get("read_end", 0.0), *(o.read_end for o in outcomes))
