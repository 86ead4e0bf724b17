"""What both roles of a node share: joining the scheduler, fetching work, running attempts, reporting, stopping."""

import abc
import asyncio
import logging
import time
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import final

from dualpath_jax.cluster.job_table import JobTable
from dualpath_jax.cluster.jobs import Job, JobError
from dualpath_jax.cluster.node_stats import NodeStats
from dualpath_jax.cluster.reporter import Reporter
from dualpath_jax.cluster.services import NodeServices
from dualpath_jax.engine.host_buffers import ReservationTimeout
from dualpath_jax.transfer import TransferError
from dualpath_jax.transfer.endpoint import stop_server
from dualpath_scheduler.service import NodeClient
from dualpath_scheduler.service import scheduler_pb2 as pb

log = logging.getLogger(__name__)

FETCH_WAIT_S = 2.0
PERSIST_PATIENCE_S = 2.0
EXPECTED_FAILURES = (JobError, TransferError, ReservationTimeout, TimeoutError)


@final
@dataclass(frozen=True)
class Speeds:
    """Tokens that one engine prefills in a second, cached ones counted, and those that it computes; 0: it does none."""

    tokens_per_s: float = 0.0
    new_tokens_per_s: float = 0.0


async def run_together(*loops: Coroutine[object, object, None]) -> None:
    """Run loops until one fails; the others are cancelled, and the first failure is raised as it was."""
    try:
        async with asyncio.TaskGroup() as group:
            for loop in loops:
                group.create_task(loop)
    except BaseExceptionGroup as failures:
        raise failures.exceptions[0] from None


class Node(abc.ABC):
    """One node: a loop that fetches, a loop that works, a loop that reports, and a task for each attempt."""

    role: "pb.Role"

    def __init__(self, services: NodeServices, *, node_id: str, scheduler: str) -> None:
        self.services = services
        self.spec = services.spec
        self.node_id = node_id
        self.incarnation = time.time_ns()
        self.jobs = JobTable()
        self.stats = NodeStats(services.traffic)
        self._background: set[asyncio.Task[None]] = set()
        self._seen = 0
        self._client = NodeClient(
            scheduler, node_id=node_id, incarnation=self.incarnation, on_forgotten=self._start_anew
        )
        self.reporter = Reporter(
            self._client, self.queues, heartbeat_s=self.spec.scheduling.lease_s / 4, tier=services.tier
        )

    @abc.abstractmethod
    async def prepare(self) -> Speeds:
        """Compile and measure, before joining."""

    @abc.abstractmethod
    def new_job(self, assignment: pb.Assignment) -> Job:
        """The role's view of an assignment."""

    @abc.abstractmethod
    async def serve(self, job: Job) -> None:
        """Bring one attempt through this side. Frees everything in every exit, cancellation included."""

    @abc.abstractmethod
    async def work(self) -> None:
        """The loop that keeps the device busy, until cancelled."""

    @abc.abstractmethod
    async def close(self) -> None:
        """Let go of what the role holds beyond the services; the loops have ended."""

    async def run(self, ready: Callable[[str], None] | None = None) -> None:
        """Serve until cancelled; `ready` is told the node's address once it has joined."""
        speeds = await self.prepare()
        await self.services.server.start()
        await self.services.transport.start()
        try:
            await self._client.register(self._info(speeds))
            if ready is not None:
                ready(self.services.transport.address)
            await run_together(self._fetch_forever(), self.work(), self.reporter.run())
        finally:
            await self._stop()

    async def _fetch_forever(self) -> None:
        while True:
            reply = await self._client.fetch(self.queues(), max_wait_s=FETCH_WAIT_S)
            for cancellation in reply.cancellations:
                self._cancel(cancellation)
            for assignment in reply.assignments:
                self._seen = max(self._seen, assignment.serial)
                self._accept(assignment)

    def _accept(self, assignment: pb.Assignment) -> None:
        job = self.new_job(assignment)
        self.jobs.add(job)
        job.task = asyncio.create_task(self._guard(job), name=job.label)
        # Not in the task: one that is cancelled before its first step runs nothing at all.
        job.task.add_done_callback(lambda _: self._ended(job))

    async def _guard(self, job: Job) -> None:
        try:
            await self.serve(job)
        except EXPECTED_FAILURES as error:
            log.warning("%s: %s failed: %s", self.node_id, job.label, error)
            self.reporter.progress(job, error=f"{self.node_id}: {error or type(error).__name__}")
        except Exception as error:
            log.exception("%s: %s failed", self.node_id, job.label)
            self.reporter.progress(job, error=f"{self.node_id}: {type(error).__name__}: {error}")

    def _ended(self, job: Job) -> None:
        job.memory.close()
        self.jobs.remove(job)
        job.end()

    def _cancel(self, cancellation: pb.Cancellation) -> None:
        for job in self.jobs:
            request_id, attempt = job.key
            if request_id == cancellation.request_id and attempt <= cancellation.attempt:
                log.info("%s: %s cancelled: %s", self.node_id, job.label, cancellation.reason)
                job.cancel()

    def _start_anew(self) -> None:
        """The scheduler has forgotten this node."""
        self._cancel_all()
        if self.services.tier is not None:
            self.services.tier.tell_all_again()

    def _cancel_all(self) -> None:
        """Nobody waits for the attempts of this node any more."""
        for job in self.jobs:
            job.cancel()

    def expect_reads(self, job: Job, blocks: slice) -> None:
        """This side is to read blocks of the prompt: those in memory stay until then, the others count as waiting."""
        keys = job.keys[blocks]
        if self.services.tier is not None:
            job.memory.enter_context(self.services.tier.holding(keys))
        job.planned_reads = sum(not self.services.store.resident(key) for key in keys)

    def in_background(self, work: Coroutine[object, object, None]) -> asyncio.Task[None]:
        """Run something that outlives an attempt; the node waits for it when it stops."""
        task = asyncio.create_task(work)
        self._background.add(task)
        task.add_done_callback(self._background.discard)
        return task

    async def _stop(self) -> None:
        self._cancel_all()
        running = [job.task for job in self.jobs if job.task is not None]
        await asyncio.gather(*running, return_exceptions=True)
        await self._end_background()
        await self.close()
        await stop_server(self.services.server, grace_s=0.2)
        await self._client.close()

    async def _end_background(self) -> None:
        """Blocks on their way to storage get a moment; those that need longer are only fewer hits later."""
        if self._background:
            await asyncio.wait(self._background, timeout=PERSIST_PATIENCE_S)
        for task in self._background:
            task.cancel()
        await asyncio.gather(*self._background, return_exceptions=True)

    def queues(self) -> pb.QueueReport:
        """Unfinished requests and their tokens per engine, and what waits for the storage card."""
        engines = [pb.EngineReport() for _ in range(self.services.engine.engines)]
        for job in self.jobs:
            engines[job.engine].seq += 1
            engines[job.engine].tok += job.total_tokens
        for index, report in enumerate(engines):
            report.free_tokens = max(0, self.services.engine.limits.decode_tokens - self._page_tokens(index))
        planned = sum(job.planned_reads for job in self.jobs) * self.spec.block_tokens
        read_q_tokens = self.services.traffic.read_queue_tokens + planned
        return pb.QueueReport(seen=self._seen, read_q_tokens=read_q_tokens, engines=engines)

    def _page_tokens(self, engine: int) -> int:
        block = self.spec.block_tokens
        return sum(-(-job.total_tokens // block) * block for job in self.jobs if job.engine == engine)

    def _info(self, speeds: Speeds) -> pb.NodeInfo:
        engine, layout = self.services.engine, self.services.engine.layout
        identity = engine.identity
        network, token_bytes = self.spec.network, layout.token_bytes
        snic = None if self.spec.mode.free_transfers else network.snic_bytes_per_s
        cnic = None if self.spec.mode.free_transfers else network.cnic_bytes_per_s
        return pb.NodeInfo(
            node_id=self.node_id,
            incarnation=self.incarnation,
            role=self.role,
            engines=engine.engines,
            address=self.services.transport.address,
            identity=pb.Identity(
                model_digest=identity.model_digest,
                weights_id=identity.weights_id,
                weights_version=identity.weights_version,
                layout_digest=identity.layout_digest,
                block_tokens=identity.block_tokens,
            ),
            vocab_size=engine.vocab_size,
            max_context_tokens=self.spec.max_context_tokens,
            tokens_per_s=speeds.tokens_per_s,
            new_tokens_per_s=speeds.new_tokens_per_s,
            snic_tokens_per_s=snic / token_bytes if snic else 0.0,
            cnic_tokens_per_s=cnic / token_bytes if cnic else 0.0,
            decode_tokens=engine.limits.decode_tokens if self.role == pb.ROLE_DECODE else 0,
        )
