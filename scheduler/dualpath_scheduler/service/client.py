"""The users' client: generate, describe, wait until the cluster is there."""

import asyncio
import time
from collections.abc import AsyncIterator
from typing import final

import grpc

from dualpath_scheduler.service import scheduler_pb2 as pb
from dualpath_scheduler.service import scheduler_pb2_grpc as pb_grpc
from dualpath_scheduler.service.channel import CLIENT_OPTIONS, in_words
from dualpath_scheduler.service.errors import RequestFailed, SchedulerUnavailable
from dualpath_scheduler.service.resume import remaining

_CALL_DEADLINE_S = 10.0
_PAUSE_S = 0.1


@final
class SchedulerClient:
    """A connection to the scheduler at `address` (`host:port`); made within a running event loop."""

    def __init__(self, address: str) -> None:
        self._address = address
        self._channel = grpc.aio.insecure_channel(address, options=CLIENT_OPTIONS)
        self._stub = pb_grpc.SchedulerStub(self._channel)

    async def close(self) -> None:
        """Ends what is running. Safe to call twice."""
        await self._channel.close(None)

    async def generate(
        self, request: pb.GenerateRequest, *, deadline_s: float = 900.0, reconnect_s: float = 0.0
    ) -> AsyncIterator[pb.GenerateEvent]:
        """Events of one request: tokens as they come, at last one with `finished`. Closing the iterator cancels it.

        Where the scheduler is lost, the request is submitted again with the tokens that have come already, for up to
        `reconnect_s` each time; 0 leaves that to the caller.

        Raises InvalidRequest, RequestFailed (the request ended with an error, or not within `deadline_s`),
        SchedulerUnavailable.
        """
        end_s = time.monotonic() + deadline_s
        emitted: list[int] = []
        rest: pb.GenerateRequest | None = request
        lost_since_s: float | None = None
        while rest is not None:
            try:
                async for event in self._attempt(rest, end_s):
                    lost_since_s = None
                    emitted.extend(token.token for token in event.tokens)
                    yield _as_asked(event, request)
                return
            except SchedulerUnavailable:
                now = time.monotonic()
                lost_since_s = lost_since_s or now
                if now >= min(lost_since_s + reconnect_s, end_s):
                    raise
            await asyncio.sleep(_PAUSE_S)
            rest = _again(request, emitted)
        yield pb.GenerateEvent(finished=pb.Finished(prompt_tokens=len(request.tokens)))

    async def describe(self) -> pb.DescribeReply:
        """Limits and nodes. Raises SchedulerUnavailable."""
        try:
            return await self._stub.Describe(pb.DescribeRequest(), timeout=_CALL_DEADLINE_S)
        except grpc.aio.AioRpcError as error:
            raise in_words(error, self._address) from None

    async def wait_ready(self, prefill_nodes: int, decode_nodes: int, *, deadline_s: float) -> pb.DescribeReply:
        """Returns once so many nodes of each role live. Raises SchedulerUnavailable, with what is there by then."""
        end_s = time.monotonic() + deadline_s
        while True:
            try:
                reply = await self.describe()
                found = [sum(n.role == role for n in reply.nodes) for role in (pb.ROLE_PREFILL, pb.ROLE_DECODE)]
                if found[0] >= prefill_nodes and found[1] >= decode_nodes:
                    return reply
                state = (
                    f"{found[0]} of {prefill_nodes} prefill and {found[1]} of {decode_nodes} decode nodes have "
                    f"registered at {self._address} ({', '.join(n.node_id for n in reply.nodes) or 'none'})"
                )
            except SchedulerUnavailable as error:
                state = str(error)
            if time.monotonic() > end_s:
                raise SchedulerUnavailable(f"the cluster is not ready after {deadline_s:g} s: {state}")
            await asyncio.sleep(_PAUSE_S)

    async def _attempt(self, request: pb.GenerateRequest, end_s: float) -> AsyncIterator[pb.GenerateEvent]:
        left_s = max(0.0, end_s - time.monotonic())
        call = self._stub.Generate(request, timeout=left_s)
        try:
            async for event in call:
                if event.finished.error:
                    raise RequestFailed(event.finished.error, event.finished)
                yield event
                if event.HasField("finished"):
                    return
            raise SchedulerUnavailable(f"the scheduler at {self._address} ended the stream without a result")
        except grpc.aio.AioRpcError as error:
            if error.code() is grpc.StatusCode.DEADLINE_EXCEEDED:
                raise RequestFailed("the request did not end within the deadline of the call") from None
            raise in_words(error, self._address) from None
        finally:
            call.cancel()


def _as_asked(event: pb.GenerateEvent, request: pb.GenerateRequest) -> pb.GenerateEvent:
    """The last event of a request that was submitted again speaks of the prompt as the caller knows it."""
    if event.HasField("finished"):
        event.finished.prompt_tokens = len(request.tokens)
        event.finished.hit_tokens = min(event.finished.hit_tokens, event.finished.prompt_tokens)
    return event


def _again(request: pb.GenerateRequest, emitted: list[int]) -> pb.GenerateRequest | None:
    """What is left to submit; under a new id, since a scheduler that has not noticed yet still runs the old one."""
    rest = remaining(request, emitted)
    if rest is not None:
        rest.request_id = ""
    return rest
