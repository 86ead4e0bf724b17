"""The Decode service: what prefill nodes ask of a decode node."""

import asyncio
from typing import TypeVar

import grpc

from dualpath_jax.cluster import peer_pb2 as pb
from dualpath_jax.cluster import peer_pb2_grpc
from dualpath_jax.cluster.decode_jobs import DecodeJob
from dualpath_jax.cluster.job_table import JobTable
from dualpath_jax.cluster.jobs import JobError
from dualpath_jax.cluster.peers import handle_message, region_handle
from dualpath_jax.cluster.services import NodeServices
from dualpath_jax.transfer import Lane, RegionWrite, TransferError

T = TypeVar("T")
Context = grpc.aio.ServicerContext


class DecodePeerService(peer_pb2_grpc.DecodeServicer):
    """Answers from the node's attempts; `patience_s` bounds the wait for an assignment that is still on its way."""

    def __init__(self, services: NodeServices, jobs: JobTable, *, patience_s: float) -> None:
        self._services = services
        self._jobs = jobs
        self._patience_s = patience_s

    async def Attach(self, request: pb.RequestRef, context: Context) -> pb.AttachReply:  # noqa: N802
        job = await self._job(request, context)
        attached = await self._result(job.attached, job, context)
        return pb.AttachReply(buffer=handle_message(attached.handle))

    async def AwaitReads(self, request: pb.ReadsRequest, context: Context) -> pb.ReadsReply:  # noqa: N802
        job = await self._job(request.request, context)
        reads = await self._result(job.reads, job, context)
        try:
            outcome = await reads.part(request.part)
        except JobError as error:
            await context.abort(grpc.StatusCode.ABORTED, f"{job.label} ended on this node: {error}")
            raise AssertionError("abort raises") from None
        return pb.ReadsReply(
            verified_blocks=outcome.verified_blocks, read_start=outcome.read_start, read_end=outcome.read_end
        )

    async def Push(self, request: pb.PushRequest, context: Context) -> pb.PushReply:  # noqa: N802
        job = await self._job(request.request, context)
        attached = await self._result(job.attached, job, context)
        layout, stage = self._services.engine.layout, region_handle(request.stage)
        span = layout.layer_block_bytes
        batch = [
            RegionWrite(
                attached.views[block][layout.layer_span(layer, layer + 1)],
                stage,
                request.offset_bytes
                + (layer - request.first_layer) * request.layer_stride_bytes
                + (block - request.first_block) * span,
            )
            for layer in range(request.first_layer, request.last_layer)
            for block in range(request.first_block, request.last_block)
        ]
        try:
            with attached.reservation.touching():
                await self._services.traffic.send(
                    request.peer,
                    batch,
                    engine=job.engine,
                    lane=Lane.LOAD,
                    need=(request.first_layer, job.assignment.serial),
                    deadline_s=self._services.spec.scheduling.transfer_deadline_s,
                )
        except (TransferError, RuntimeError) as error:  # RuntimeError: the attempt ended and its slots are free
            await context.abort(grpc.StatusCode.UNAVAILABLE, str(error))
        return pb.PushReply()

    async def Handover(self, request: pb.HandoverRequest, context: Context) -> pb.HandoverReply:  # noqa: N802
        job = await self._job(request.request, context)
        if not job.handover.done():
            job.handover.set_result(request)
        return pb.HandoverReply()

    async def _job(self, ref: pb.RequestRef, context: Context) -> DecodeJob:
        """The attempt; the prefill side may hear of it first, so it is waited for."""
        key = (ref.request_id, ref.attempt)
        deadline_s = min(self._patience_s, context.time_remaining() or self._patience_s)
        try:
            job = await self._jobs.expect(key, deadline_s=deadline_s)
        except TimeoutError:
            await context.abort(grpc.StatusCode.NOT_FOUND, f"request {key[0]} (attempt {key[1]}) is not on this node")
            raise AssertionError("abort raises") from None
        assert isinstance(job, DecodeJob)
        return job

    async def _result(self, future: "asyncio.Future[T]", job: DecodeJob, context: Context) -> T:
        """A stage of an attempt, without letting this call's end cancel it."""
        try:
            return await asyncio.shield(future)
        except asyncio.CancelledError:
            if not future.cancelled():
                raise
            await context.abort(grpc.StatusCode.ABORTED, f"{job.label} ended on this node")
            raise AssertionError("abort raises") from None
