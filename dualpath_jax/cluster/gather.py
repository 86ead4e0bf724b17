"""Gathering a prompt's stored prefix on the prefill side: slots, this side's reads, the decode side's answers."""

from dualpath_jax.cluster.arrivals import Arrivals
from dualpath_jax.cluster.jobs import Job, ReadOutcome, Stopwatch
from dualpath_jax.cluster.layer_groups import read_parts
from dualpath_jax.cluster.peers import DecodePeer
from dualpath_jax.cluster.prefill_jobs import Gathered, PrefillJob
from dualpath_jax.cluster.reads import start_reads
from dualpath_jax.cluster.reporter import Reporter
from dualpath_jax.cluster.services import NodeServices


async def gather(services: NodeServices, reporter: Reporter, job: PrefillJob) -> Gathered:
    """Reserve slots and read this side's share, until the first part of both sides' shares is there.

    The caller stops what is still being read, and releases the reservation. Slots are reserved for the plan, all or
    nothing. Where the first part does not come whole, more blocks are to be computed than were planned: then
    everything is given back first and the larger number reserved, so that no attempt ever holds a part of the buffer
    while it waits for the rest. The usable prefix shrinks each time, so this ends.
    """
    assert job.peer is not None
    deadline_s = services.spec.scheduling.reservation_deadline_s
    own, usable = job.assignment.prefill_side_blocks, job.hit_blocks
    there = _their_reads(services, job, job.peer)
    try:
        while True:
            reservation = await services.arena.reserve(own + job.prompt_blocks - usable, deadline_s=deadline_s)
            here = start_reads(services, reporter, job, first=0, reservation=reservation, slots=slice(own))
            gathered = Gathered(reservation, tuple(reservation.blocks), own, usable, here, there)
            try:
                mine, theirs = await here.part(0), await there.part(0)
            except BaseException:
                await _give_back(gathered)
                raise
            mark_reads(job.watch, mine, theirs)
            covered = own + theirs.verified_blocks if mine.verified_blocks == own else mine.verified_blocks
            covered = min(covered, usable)
            if covered == usable:
                return gathered
            await _give_back(gathered)
            own, usable = min(own, covered), covered
    except BaseException:
        await there.stop()
        raise


async def _give_back(gathered: Gathered) -> None:
    """In this order, so that what is reserved next does not wait for what is being read."""
    try:
        await gathered.here.stop()
    finally:  # one that is cancelled meanwhile rests until its reads are over
        gathered.reservation.release()


def _their_reads(services: NodeServices, job: Job, peer: DecodePeer) -> Arrivals:
    deadline_s = services.spec.scheduling.request_deadline_s
    parts = len(read_parts(services.spec, services.engine.layout.layers))
    return Arrivals([peer.await_reads(job, part, deadline_s=deadline_s) for part in range(parts)])


def mark_reads(watch: Stopwatch, *outcomes: ReadOutcome) -> None:
    """Spread the time of reading over what was read."""
    for outcome in outcomes:
        if outcome.read_start:
            watch.marks["read_start"] = min(watch.marks.get("read_start", outcome.read_start), outcome.read_start)
            watch.marks["read_end"] = max(watch.marks.get("read_end", 0.0), outcome.read_end)
