"""A decode node: holds the prompt's KV while it arrives, decodes, and persists every block that is complete."""

import asyncio
from dataclasses import dataclass

import numpy as np

from dualpath_jax.cluster import peer_pb2_grpc
from dualpath_jax.cluster.decode_jobs import Attached, DecodeJob
from dualpath_jax.cluster.decode_peer import DecodePeerService
from dualpath_jax.cluster.jobs import Job
from dualpath_jax.cluster.node import Node, Speeds
from dualpath_jax.cluster.reads import start_reads
from dualpath_jax.cluster.reporter import token_message
from dualpath_jax.cluster.services import NodeServices
from dualpath_jax.engine.base import DecodeRequest, Slot, TokenChoice
from dualpath_jax.engine.host_buffers import Reservation
from dualpath_scheduler.service import scheduler_pb2 as pb
from dualpath_storage.store import BlockWrite, Status


@dataclass(frozen=True)
class Admission:
    """A prompt that waits for a slot: its KV lies in the host buffer."""

    job: DecodeJob
    request: DecodeRequest
    blocks: tuple[np.ndarray, ...]


@dataclass(frozen=True)
class StepResult:
    """What one turn on the device thread did."""

    admitted: list[tuple[Admission, Slot]]
    outputs: list[tuple[Slot, TokenChoice]]


class DecodeNode(Node):
    """The decode side of requests."""

    role = pb.ROLE_DECODE

    def __init__(self, services: NodeServices, *, node_id: str, scheduler: str) -> None:
        super().__init__(services, node_id=node_id, scheduler=scheduler)
        self._waiting: list[Admission] = []
        self._decoding: dict[Slot, DecodeJob] = {}
        self._releases: list[Slot] = []
        self._wake = asyncio.Event()
        peer_pb2_grpc.add_NodeServicer_to_server(self.stats, services.server)
        peer_pb2_grpc.add_DecodeServicer_to_server(
            DecodePeerService(services, self.jobs, patience_s=self.spec.scheduling.reservation_deadline_s),
            services.server,
        )

    async def prepare(self) -> Speeds:
        await self.services.device.run(self.services.engine.warm_up_decode)
        return Speeds()

    def new_job(self, assignment: pb.Assignment) -> DecodeJob:
        job = DecodeJob(assignment, assignment.decode_engine, self.spec.block_tokens)
        self.expect_reads(job, slice(assignment.prefill_side_blocks, job.hit_blocks))
        return job

    async def close(self) -> None:
        pass

    async def serve(self, job: Job) -> None:
        assert isinstance(job, DecodeJob)
        deadline_s = self.spec.scheduling.reservation_deadline_s
        try:
            reservation = await self.services.arena.reserve(job.prompt_blocks, deadline_s=deadline_s)
            try:
                computed_from = await self._receive(job, reservation)
                await self._generate(job, reservation, computed_from)
            finally:
                reservation.release()
            await job.finished
            self.reporter.progress(job, finished=True)
        finally:
            self._forget(job)

    async def _receive(self, job: DecodeJob, reservation: Reservation) -> int:
        """From the reservation to the handover; returns the first block that was computed anew."""
        transport = self.services.transport
        views = reservation.views()
        handle = transport.register(views, engine=job.engine)
        try:
            job.attached.set_result(Attached(reservation, tuple(views), handle))
            await self._read_share(job, reservation)
            async with asyncio.timeout(self.spec.scheduling.request_deadline_s):
                handover = await job.handover
        finally:
            # Whatever cancels the wait: the slots rest until no write can land in them any more.
            closing = self.in_background(transport.deregister(handle))
            reservation.hold(closing)
            await asyncio.shield(closing)
        job.append(handover.first_token)
        return handover.computed_from_block

    async def _read_share(self, job: DecodeJob, reservation: Reservation) -> None:
        """The prefill node is told of each part as it comes."""
        first = job.assignment.prefill_side_blocks
        slots = slice(first, job.hit_blocks)
        reads = start_reads(self.services, self.reporter, job, first=first, reservation=reservation, slots=slots)
        try:
            job.reads.set_result(reads)
            for part in range(reads.parts):
                await reads.part(part)
        finally:
            await reads.stop()
        job.memory.close()

    async def _generate(self, job: DecodeJob, reservation: Reservation, computed_from: int) -> None:
        """Persist what is new of the prompt, and take the request into the decode batch."""
        views = reservation.views()
        writes = [job.write(block, views[block]) for block in range(computed_from, len(job.keys))]
        if writes:
            reservation.hold(self._start_persisting(writes))
        if job.done:
            job.finished.set_result(None)
            return
        request = DecodeRequest(
            request=job.assignment.request_id,
            engine=job.engine,
            prompt_tokens=len(job.tokens),
            first_token=job.generated[0],
            max_tokens=job.assignment.max_tokens,
            sampling=job.sampling,
            forced_tokens=job.forced_tokens,
        )
        with reservation.touching():
            self._waiting.append(Admission(job, request, tuple(reservation.blocks)))
            self._wake.set()
            await job.inserted

    def _start_persisting(self, writes: list[BlockWrite]) -> "asyncio.Task[None]":
        self.stats.pending_blocks += len(writes)
        return self.in_background(self._persist(writes))

    async def _persist(self, writes: list[BlockWrite]) -> None:
        """Store blocks, then publish those that are durable: publish after durable, durable after complete."""
        deadline_s = self.spec.storage.write_deadline_s
        try:
            results = await self.services.traffic.write(self.services.store, writes, deadline_s=deadline_s)
            for write, result in zip(writes, results, strict=True):
                if result.ok:
                    self.reporter.published(write.key, write.parent)
                else:
                    self.stats.dropped_blocks += 1
                    if result.status is Status.FULL:
                        self.reporter.full()
            await self.reporter.delivered()
            quiet = [result.quiet for result in results if result.quiet is not None]
            if quiet:
                await asyncio.wait(quiet)
        finally:
            self.stats.pending_blocks -= len(writes)

    async def work(self) -> None:
        """Admit what has arrived, step, emit tokens, persist full blocks."""
        while True:
            if not (self._waiting or self._decoding or self._releases):
                self._wake.clear()
                await self._wake.wait()
            releases, self._releases = self._releases, []
            result = await self.services.device.run(self._turn, releases, list(self._waiting))
            for admission, slot in result.admitted:
                self._admitted(admission, slot)
            writes = [write for slot, choice in result.outputs for write in await self._emit(slot, choice)]
            if writes:
                self._start_persisting(writes)
            for job in [job for job in self._decoding.values() if job.done]:
                self._finish(job)

    def _turn(self, releases: list[Slot], waiting: list[Admission]) -> StepResult:
        """On the device thread. First in first out per engine: nobody overtakes a request that finds no room yet."""
        engine = self.services.engine
        for slot in releases:
            engine.release(slot)
        admitted, full = [], set()
        for admission in waiting:
            request = admission.request
            if request.engine in full or not engine.can_insert(request.engine, admission.job.total_tokens):
                full.add(request.engine)
                continue
            admitted.append((admission, engine.insert(request, admission.blocks)))
        return StepResult(admitted, engine.step())

    def _admitted(self, admission: Admission, slot: Slot) -> None:
        self._waiting = [other for other in self._waiting if other is not admission]
        if admission.job.inserted.cancelled():
            self._releases.append(slot)
            return
        admission.job.slot = slot
        self._decoding[slot] = admission.job
        admission.job.inserted.set_result(None)

    async def _emit(self, slot: Slot, choice: TokenChoice) -> list[BlockWrite]:
        """Send one token out; returns the write of the block that it completed, if it did."""
        job = self._decoding.get(slot)
        if job is None:
            return []
        job.append(choice.token)
        self.reporter.progress(job, tokens=[token_message(choice)])
        writes = []
        block = job.completed_block
        if block is not None:
            data = await self.services.device.run(self.services.engine.export_block, slot, block)
            writes.append(job.generated_write(block, data.data))
        return writes

    def _finish(self, job: DecodeJob) -> None:
        """After its last token, and after its last block is on its way to storage."""
        self._forget(job)
        if not job.finished.done():
            job.finished.set_result(None)

    def _forget(self, job: DecodeJob) -> None:
        """Take a job out of the batch; its slot is freed on the next turn."""
        self._waiting = [admission for admission in self._waiting if admission.job is not job]
        if job.slot is not None and self._decoding.pop(job.slot, None) is not None:
            self._releases.append(job.slot)
            self._wake.set()
