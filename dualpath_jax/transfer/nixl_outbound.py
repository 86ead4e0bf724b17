"""The writing end of NIXL transfers: asks the owner of the memory, posts what it grants, and says when it is over."""

import asyncio
import time
from collections import deque
from collections.abc import Sequence
from itertools import count
from typing import Any, TypeVar, final

from dualpath_jax.transfer import wire
from dualpath_jax.transfer.base import Failure, Lane, RegionWrite, TransferError
from dualpath_jax.transfer.nixl_agent import AgentGoneError, NixlAgent, PeerGoneError, Put
from dualpath_jax.transfer.nixl_lane import SETTLE_S, NixlLane
from dualpath_jax.transfer.nixl_memory import address_of
from dualpath_jax.transfer.nixl_pb2 import (
    NIXL_STEP_ASK,
    NIXL_STEP_ASK_AGAIN,
    NIXL_STEP_GIVEN_UP,
    NIXL_STEP_OVER,
    NixlAnswer,
    NixlAnswers,
    NixlRequest,
    NixlRequests,
    NixlStep,
)
from dualpath_jax.transfer.peer_stream import PeerStream
from dualpath_jax.transfer.tasks import settle
from dualpath_jax.transfer.window import Window

T = TypeVar("T")

PATH = "/dualpath.transfer.NixlTransfer/Write"

POSTED_BYTES = 32 * 1024 * 1024
"""Of one peer and lane. Batches beyond have asked already, so that the next one is posted as soon as one has ended."""

MOST_POSTS = 4
"""Posts of one batch before its failure is passed up: agents are replaced, if rarely, while others use them."""


@final
class NixlBatch:
    """A batch between its first request and its last."""

    def __init__(self, number: int, batch: Sequence[RegionWrite]) -> None:
        self.number = number
        self.writes = batch
        self.pieces = wire.pieces_of(batch)
        self.size_bytes = sum(self.pieces.size_bytes)
        self.started_s = time.monotonic()
        self.asked = False
        self.put: Put | None = None
        self.unsure = False
        """Whether an earlier post of it may have left bytes on their way."""
        self.agent: NixlAgent | None = None
        loop = asyncio.get_running_loop()
        self.answer: asyncio.Future[NixlAnswer] = loop.create_future()
        self.failed: asyncio.Future[Exception] = loop.create_future()

    @property
    def over(self) -> bool:
        """Whether nothing of it is under way."""
        if self.put is None:
            return True
        return not self.unsure and self.put.done.done() and self.put.done.exception() is None

    def finish(self, error: Exception | None) -> None:
        """The stream has ended, or the batch was refused."""
        if error is not None and not self.failed.done():
            self.failed.set_result(error)


@final
class NixlOutbound(PeerStream[NixlBatch]):
    """One peer, one lane."""

    def __init__(self, peer: str, options: Sequence[tuple[str, int]], lane: Lane, agents: NixlLane) -> None:
        self._lane = lane
        self._agents = agents
        self._numbers = count(1)
        self._requests: deque[NixlRequest] = deque()
        self._posted = Window(POSTED_BYTES)
        self._metadata: tuple[str, bytes] = ("", b"")  # the peer's agent, as heard last
        super().__init__(peer, PATH, options)

    async def write(self, batch: Sequence[RegionWrite], deadline_s: float) -> None:
        """As `Transport.write`, for a batch that is not empty."""
        outgoing = NixlBatch(next(self._numbers), batch)
        self._pending[outgoing.number] = outgoing
        try:
            await self._write(outgoing, asyncio.get_running_loop().time() + deadline_s, min(SETTLE_S, deadline_s / 4))
        except TimeoutError:
            raise self._timed_out(deadline_s) from None
        finally:
            if outgoing.put is not None and not outgoing.put.done.done():
                await settle([asyncio.create_task(self._stop(outgoing, outgoing.put))])
            if self._withdraw(outgoing) and outgoing.asked:
                self._request(outgoing, NIXL_STEP_OVER if outgoing.over else NIXL_STEP_GIVEN_UP)

    async def _write(self, batch: NixlBatch, until_s: float, settle_s: float) -> None:
        """Raises TransferError, and TimeoutError so early that the write can still be stopped by the deadline."""
        self._request(batch, NIXL_STEP_ASK)
        answer = await _result(batch, batch.answer, until_s)
        failure = ""
        for _ in range(MOST_POSTS):
            try:
                async with asyncio.timeout_at(until_s - settle_s), self._posted.slot(batch.size_bytes):
                    await _result(batch, self._post(batch, answer), until_s - settle_s)
                return
            except AgentGoneError:  # ended under this write, for the sake of another one
                batch.unsure = True
                continue
            except PeerGoneError as error:
                failure = str(error)
            self._agents.forget(answer.agent)
            batch.answer = asyncio.get_running_loop().create_future()
            self._request(batch, NIXL_STEP_ASK_AGAIN)
            answer = await _result(batch, batch.answer, until_s)
        raise TransferError(Failure.PEER_LOST, self.peer, f"posted {MOST_POSTS} times in vain: {failure}")

    def _post(self, batch: NixlBatch, answer: NixlAnswer) -> "asyncio.Future[None]":
        if batch.failed.done():  # while it waited for its turn
            raise batch.failed.result()
        sources = [write.source for write in batch.writes]
        agent = self._agents.agent(sources)
        name, metadata = self._metadata
        if name != answer.agent:
            raise PeerGoneError("the peer has replaced its NIXL agent")
        agent.meet(name, metadata)
        if len(answer.address) != len(sources):
            raise PeerGoneError(f"the peer granted {len(answer.address)} pieces of {len(sources)}")
        here = [address_of(source) for source in sources]
        batch.agent, batch.put = agent, agent.put(name, here, answer.address, batch.pieces.size_bytes)
        return batch.put.done

    async def _stop(self, batch: NixlBatch, put: Put) -> None:
        """Returns once NIXL reads the batch's sources no more: at once, if the peer takes what is under way."""
        await asyncio.wait({put.done}, timeout=SETTLE_S)
        if not put.done.done() and batch.agent is not None:
            self._agents.end(batch.agent)

    def _request(self, batch: NixlBatch, step: NixlStep) -> None:
        pieces = batch.pieces if step == NIXL_STEP_ASK else None
        self._requests.append(NixlRequest(batch=batch.number, step=step, pieces=pieces, lane=self._lane))
        self._wake.set()

    def _next_message(self) -> bytes | None:
        message, pieces = NixlRequests(), 0
        while self._requests and pieces < wire.MAX_BATCH_PIECES // 2:
            request = self._requests.popleft()
            if request.step == NIXL_STEP_ASK:
                batch = self._pending.get(request.batch)
                if batch is None:  # cancelled before anybody heard of it
                    continue
                batch.asked = True
                pieces += len(batch.writes)
            message.requests.append(request)
        return message.SerializeToString() if message.requests else None

    def _handle(self, message: bytes) -> None:
        for answer in wire.parse(NixlAnswers, message).answers:
            self._take(answer)

    def _take(self, answer: NixlAnswer) -> None:
        if answer.metadata:
            self._agents.reach(self.peer, answer.agent)
            self._metadata = answer.agent, answer.metadata
        batch = self._pending.get(answer.batch)
        if batch is None:
            return
        if answer.refusal:
            del self._pending[answer.batch]
            batch.finish(TransferError(Failure.REFUSED, self.peer, answer.refusal))
        elif not batch.answer.done():
            batch.answer.set_result(answer)


async def _result(batch: NixlBatch, future: "asyncio.Future[T]", until_s: float) -> T:
    """What the future brings, if the batch does not fail before. Raises TimeoutError."""
    loop = asyncio.get_running_loop()
    either: set[asyncio.Future[Any]] = {future, batch.failed}
    await asyncio.wait(either, timeout=until_s - loop.time(), return_when=asyncio.FIRST_COMPLETED)
    if future.done():
        return future.result()
    if batch.failed.done():
        raise batch.failed.result()
    raise TimeoutError
