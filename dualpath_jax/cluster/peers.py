"""A prefill node's view of the decode nodes that it works with."""

from collections.abc import Awaitable
from dataclasses import dataclass
from typing import TypeVar

import grpc

from dualpath_jax.cluster import peer_pb2 as pb
from dualpath_jax.cluster import peer_pb2_grpc
from dualpath_jax.cluster.jobs import Job, JobError, ReadOutcome
from dualpath_jax.transfer import RegionHandle

T = TypeVar("T")

CHANNEL_OPTIONS = (("grpc.max_receive_message_length", 64 << 20), ("grpc.max_send_message_length", 64 << 20))


def handle_message(handle: RegionHandle) -> pb.RegionHandle:
    return pb.RegionHandle(region_id=handle.region_id, generation=handle.generation, size_bytes=handle.size_bytes)


def region_handle(message: pb.RegionHandle) -> RegionHandle:
    return RegionHandle(message.region_id, message.generation, message.size_bytes)


def request_ref(job: Job) -> pb.RequestRef:
    return pb.RequestRef(request_id=job.assignment.request_id, attempt=job.assignment.attempt)


@dataclass(frozen=True)
class Push:
    """Layers `[first_layer, last_layer)` of blocks `[first_block, last_block)`, and where they go in the stage."""

    stage: RegionHandle
    first_layer: int
    last_layer: int
    first_block: int
    last_block: int
    offset_bytes: int
    layer_stride_bytes: int


class DecodePeer:
    """One decode node. Every call has a deadline and raises JobError, naming the node, where it fails."""

    def __init__(self, node_id: str, address: str) -> None:
        self.node_id = node_id
        self.address = address
        self._channel = grpc.aio.insecure_channel(address, options=CHANNEL_OPTIONS)
        self._stub = peer_pb2_grpc.DecodeStub(self._channel)

    async def attach(self, job: Job, *, deadline_s: float) -> RegionHandle:
        """Wait for the decode node's host buffer slots; returns its buffer for the prompt's Full Blocks."""
        reply = await self._call(self._stub.Attach(request_ref(job), timeout=deadline_s), job)
        return region_handle(reply.buffer)

    async def await_reads(self, job: Job, part: int, *, deadline_s: float) -> ReadOutcome:
        """Wait for a part of the decode side's share of the reads."""
        message = pb.ReadsRequest(request=request_ref(job), part=part)
        reply = await self._call(self._stub.AwaitReads(message, timeout=deadline_s), job)
        return ReadOutcome(reply.verified_blocks, reply.read_start, reply.read_end)

    async def push(self, job: Job, push: Push, *, reply_to: str, deadline_s: float) -> None:
        """Have Layer Blocks written into this node's stage; returns when they lie there."""
        message = pb.PushRequest(
            request=request_ref(job),
            peer=reply_to,
            stage=handle_message(push.stage),
            first_layer=push.first_layer,
            last_layer=push.last_layer,
            first_block=push.first_block,
            last_block=push.last_block,
            offset_bytes=push.offset_bytes,
            layer_stride_bytes=push.layer_stride_bytes,
        )
        await self._call(self._stub.Push(message, timeout=deadline_s), job)

    async def hand_over(self, job: Job, *, first_token: int, computed_from_block: int, deadline_s: float) -> None:
        """Say that the prompt's KV is complete."""
        message = pb.HandoverRequest(
            request=request_ref(job), first_token=first_token, computed_from_block=computed_from_block
        )
        await self._call(self._stub.Handover(message, timeout=deadline_s), job)

    async def _call(self, call: Awaitable[T], job: Job) -> T:
        try:
            return await call
        except grpc.aio.AioRpcError as error:
            raise JobError(
                f"{job.label}: decode node {self.node_id} at {self.address} answered {error.code().name}: "
                f"{error.details()}"
            ) from error

    async def close(self) -> None:
        await self._channel.close(None)
