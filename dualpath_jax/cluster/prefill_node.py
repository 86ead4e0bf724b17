"""A prefill node: reads its share, runs the layers of a batch group by group, and hands over."""

import asyncio
import time

from dualpath_jax.cluster import peer_pb2_grpc
from dualpath_jax.cluster.gather import gather
from dualpath_jax.cluster.jobs import Job
from dualpath_jax.cluster.node import Node, Speeds
from dualpath_jax.cluster.peers import DecodePeer
from dualpath_jax.cluster.prefill_jobs import PrefillJob
from dualpath_jax.cluster.prefill_pass import PassRunner, layer_groups
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
        per_group = self.spec.scheduling.layers_per_group if self.spec.mode.layerwise else layers
        self._runner = PassRunner(services, layer_groups(layers, per_group))
        self._time: AttentionTimeModel | None = None
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
            try:
                await self._end_sends(job)
            finally:  # an attempt that is ending may be cancelled yet
                job.gathered.reservation.release()

    def _say_first_token(self, job: PrefillJob, choice: TokenChoice) -> None:
        job.watch.mark("first_token")
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
        while True:
            batch = self._next_batch()
            if not batch:
                self._wake.clear()
                await self._wake.wait()
                continue
            for job, _ in batch:
                job.watch.marks.setdefault("prefill_start", time.time())
            choices = await self._runner.run(batch)
            for (job, size), choice in zip(batch, choices, strict=True):
                self._settle(job, size, choice)

    def _next_batch(self) -> list[tuple[PrefillJob, int]]:
        """The jobs of each engine's next batch, with the new tokens of each (paper: compute quota)."""
        assert self._time is not None
        batch = []
        for engine in range(self.services.engine.engines):
            jobs = [job for job in self._ready if job.engine == engine and job.runnable]
            pending = [(job.position, job.left_tokens) for job in jobs]
            sizes = pack_prefill(pending, self._time.seconds, self._limits)
            batch += list(zip(jobs, sizes, strict=False))
        return batch

    def _settle(self, job: PrefillJob, size: int, choice: TokenChoice | None) -> None:
        """After a pass: the job goes on with its next chunk, or has its first token."""
        job.position += size
        job.own_returned = True
        if choice is None or not job.runnable:
            return
        self._ready = [other for other in self._ready if other is not job]
        job.prefilled.set_result(choice)

    async def close(self) -> None:
        await asyncio.gather(*(peer.close() for peer in self._peers.values()))
