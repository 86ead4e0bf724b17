"""A prefill node: reads its share, runs the layers of a batch group by group, and hands over."""

import asyncio
import contextlib
import time

from dualpath_jax.cluster import peer_pb2_grpc
from dualpath_jax.cluster.gather import gather, mark_reads
from dualpath_jax.cluster.jobs import Job
from dualpath_jax.cluster.joining import JoiningRule
from dualpath_jax.cluster.layer_groups import prefill_groups, read_parts
from dualpath_jax.cluster.node import Node, Speeds
from dualpath_jax.cluster.peers import DecodePeer
from dualpath_jax.cluster.prefill_jobs import Gathered, PrefillJob
from dualpath_jax.cluster.prefill_pass import Entry, PassRunner, Share
from dualpath_jax.cluster.reporter import token_message
from dualpath_jax.cluster.services import NodeServices
from dualpath_jax.engine.attention_time import AttentionTimeModel, measure
from dualpath_jax.engine.base import TokenChoice
from dualpath_scheduler.policy import PrefillLimits, pack_prefill
from dualpath_scheduler.service import scheduler_pb2 as pb


class PrefillNode(Node):
    """The prefill side of requests."""

    role = pb.ROLE_PREFILL

    def __init__(self, services: NodeServices, *, node_id: str, scheduler: str) -> None:
        super().__init__(services, node_id=node_id, scheduler=scheduler)
        layers = services.engine.layout.layers
        self._runner = PassRunner(services, prefill_groups(self.spec, layers), read_parts(self.spec, layers))
        self._time: AttentionTimeModel | None = None
        self._joining: JoiningRule | None = None
        self._ready: list[PrefillJob] = []
        self._wake = asyncio.Event()
        self._peers: dict[str, DecodePeer] = {}
        limits = services.engine.limits
        self._limits = PrefillLimits(
            quota_s=self.spec.scheduling.compute_quota_s,
            new_tokens=limits.prefill_tokens,
            prefix_tokens=limits.prefix_tokens,
            block_tokens=self.spec.block_tokens,
            prefix_unit_tokens=self.spec.engine.shard_tokens,
        )
        peer_pb2_grpc.add_NodeServicer_to_server(self.stats, services.server)

    async def prepare(self) -> Speeds:
        engine, device = self.services.engine, self.services.device
        await device.run(engine.warm_up_prefill, self._runner.groups)
        self._time = await device.run(measure, engine, self._runner.groups)
        self._joining = JoiningRule(self._time, self._limits)
        return Speeds(self._time.tokens_per_s, self._time.new_tokens_per_s)

    def new_job(self, assignment: pb.Assignment) -> PrefillJob:
        job = PrefillJob(assignment, assignment.prefill_engine, self.spec.block_tokens)
        self.expect_reads(job, slice(assignment.prefill_side_blocks))
        return job

    def _peer(self, assignment: pb.Assignment) -> DecodePeer:
        """The decode node of an assignment; a node that moved gets a new connection."""
        if assignment.decode_address not in self._peers:
            self._peers[assignment.decode_address] = DecodePeer(assignment.decode_node, assignment.decode_address)
        return self._peers[assignment.decode_address]

    async def serve(self, job: Job) -> None:
        assert isinstance(job, PrefillJob)
        scheduling = self.spec.scheduling
        job.peer = self._peer(job.assignment)
        # The decode side's slots come first: whoever holds slots here can therefore always run to its end.
        job.buffer = await job.peer.attach(job, deadline_s=2 * scheduling.reservation_deadline_s)
        job.gathered = await gather(self.services, self.reporter, job)
        reading = asyncio.create_task(self._follow_reads(job, job.gathered))
        try:
            job.position = job.gathered.usable * self.spec.block_tokens
            self._ready.append(job)
            self._wake.set()
            choice = await job.prefilled
            self._say_first_token(job, choice)
            await asyncio.gather(*job.sends)
            await job.peer.hand_over(
                job,
                first_token=choice.token,
                computed_from_block=job.gathered.usable,
                deadline_s=scheduling.transfer_deadline_s,
            )
        finally:
            self._forget(job)
            reading.cancel()
            try:
                await asyncio.gather(job.gathered.stop(), self._end_sends(job))
            finally:  # an attempt that is ending may be cancelled yet
                job.gathered.reservation.release()

    async def _follow_reads(self, job: PrefillJob, gathered: Gathered) -> None:
        """Each part that comes may let the job join a pass; one that does not come ends the attempt."""
        try:
            for part in range(gathered.here.parts):
                await gathered.part(part)
                self._wake.set()
        except Exception as error:
            job.fail(error)
        job.memory.close()

    def _say_first_token(self, job: PrefillJob, choice: TokenChoice) -> None:
        job.watch.mark("first_token")
        mark_reads(job.watch, *job.blocks.here.outcomes, *job.blocks.there.outcomes)
        self.reporter.progress(
            job,
            tokens=[token_message(choice)],
            timings=job.watch.timings(),
            hit_tokens=job.blocks.usable * self.spec.block_tokens,
            recomputed_blocks=job.hit_blocks - job.blocks.usable,
        )

    def _forget(self, job: PrefillJob) -> None:
        self._ready = [other for other in self._ready if other is not job]
        job.prefilled.cancel()

    async def _end_sends(self, job: PrefillJob) -> None:
        for send in job.sends:
            send.cancel()
        await asyncio.gather(*job.sends, return_exceptions=True)

    async def work(self) -> None:
        """Pack, run, settle, for ever."""
        assert self._joining is not None
        while True:
            batch = self._next_batch()
            if not batch:
                await self._wait_for_work(self._joining)
                continue
            for entry in batch:
                entry.job.watch.marks.setdefault("prefill_start", time.time())
            shares = await self._runner.run(batch)
            if any(share.runs for share in shares):
                self._joining.note(shares, self._runner.computed_s)
            for share in shares:
                self._settle(share)

    def _next_batch(self) -> list[Entry]:
        """The jobs of each engine's next batch, with the new tokens of each (paper: compute quota)."""
        assert self._time is not None
        assert self._joining is not None
        now_s, alone, batch = asyncio.get_running_loop().time(), len(self.jobs) == 1, []
        for engine in range(self.services.engine.engines):
            mine = [job for job in self._ready if job.engine == engine and job.runnable]
            jobs = [job for job in mine if self._joining.joins(job, alone=alone)]
            pending = [(job.position, job.left_tokens) for job in jobs]
            sizes = pack_prefill(pending, self._time.seconds, self._limits)
            for job, size in zip(jobs, sizes, strict=False):
                batch.append(Entry(job, size, now_s + self._joining.patience_s(job)))
        return batch

    async def _wait_for_work(self, joining: JoiningRule) -> None:
        """Until a job comes, or a part of one, or enough time has passed for the next one to join."""
        self._wake.clear()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(joining.wait_s([job for job in self._ready if job.runnable])):
                await self._wake.wait()

    def _settle(self, share: Share) -> None:
        """After a pass: the job goes on with its next chunk, or has its first token."""
        job = share.job
        if share.left_behind:
            job.left_behind = True
            for send in job.sends:
                send.add_done_callback(lambda _: self._wake.set())
            return
        job.position += share.tokens
        job.own_returned = True
        if share.choice is None or not job.runnable:
            return
        self._ready = [other for other in self._ready if other is not job]
        job.prefilled.set_result(share.choice)

    async def close(self) -> None:
        await asyncio.gather(*(peer.close() for peer in self._peers.values()))
