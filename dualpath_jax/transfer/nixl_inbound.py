"""The receiving end of one stream of NIXL requests: checks every batch, passes it through the gate, grants it."""

import asyncio
from collections.abc import AsyncIterable, Awaitable, Callable
from itertools import groupby
from typing import final

from dualpath_jax.transfer import wire
from dualpath_jax.transfer.base import InboundGate, Lane
from dualpath_jax.transfer.nixl_grants import Grant, Grants
from dualpath_jax.transfer.nixl_pb2 import (
    NIXL_STEP_ASK,
    NIXL_STEP_ASK_AGAIN,
    NIXL_STEP_GIVEN_UP,
    NixlAnswer,
    NixlAnswers,
    NixlRequest,
    NixlRequests,
)
from dualpath_jax.transfer.regions import RefusedError, RegionTable


@final
class NixlInbound:
    """Serves one stream. Each batch waits at the gate by itself, so that no engine's card holds up another's."""

    def __init__(self, regions: RegionTable, grants: Grants, gate: InboundGate | None) -> None:
        self._regions = regions
        self._grants = grants
        self._gate = gate
        self._waiting: dict[int, asyncio.Task[None]] = {}
        self._granted: dict[int, Grant] = {}
        self._told: tuple[str, int] = ("", 0)  # agent and version of the metadata that was sent last
        self._answers: asyncio.Queue[NixlAnswer] = asyncio.Queue()

    async def run(self, messages: AsyncIterable[bytes], send: Callable[[bytes], Awaitable[None]]) -> None:
        """Reads the stream to its end, or until cancelled; leaves no task behind. Raises ValueError for nonsense."""
        answering = asyncio.create_task(self._send_answers(send))
        try:
            async for message in messages:
                for request in wire.parse(NixlRequests, message).requests:
                    self._accept(request)
        finally:
            for grant in self._granted.values():
                grant.left = True
            tasks = [answering, *self._waiting.values()]
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    def _accept(self, request: NixlRequest) -> None:
        number = request.batch
        if request.step == NIXL_STEP_ASK:
            task = self._waiting[number] = asyncio.create_task(self._ask(request))
            task.add_done_callback(lambda _: self._waiting.pop(number, None))
        elif request.step == NIXL_STEP_ASK_AGAIN:
            self._told = ("", 0)
            if number in self._granted:
                self._granted[number].posted_again()
            self._give(number)
        else:
            self._over(number, given_up=request.step == NIXL_STEP_GIVEN_UP)

    async def _ask(self, request: NixlRequest) -> None:
        try:
            lane = Lane(request.lane)
            pieces = self._regions.resolve(request.pieces)
            if self._gate is not None:
                for engine, share in groupby(pieces, key=lambda piece: piece[0].engine):
                    await self._gate(engine, lane, sum(size for _, _, size in share))
        except (RefusedError, ValueError, IndexError) as error:
            self._refuse(request.batch, str(error))
            return
        except Exception as error:  # its writer must hear of it rather than wait for the deadline
            self._refuse(request.batch, f"{type(error).__name__}: {error}")
            return
        self._granted[request.batch] = Grant(pieces, self._grants.lane(lane))
        self._give(request.batch)

    def _give(self, number: int) -> None:
        grant = self._granted.get(number)
        try:
            if grant is None:
                raise RefusedError(f"batch {number} was not granted before")
            addresses = self._grants.give(grant)
        except (RefusedError, RuntimeError) as error:
            self._granted.pop(number, None)
            self._refuse(number, str(error))
            return
        agent, metadata = grant.agent, b""
        if self._told != (agent.name, agent.version):
            self._told, metadata = (agent.name, agent.version), agent.metadata
        self._answers.put_nowait(NixlAnswer(batch=number, address=addresses, agent=agent.name, metadata=metadata))

    def _refuse(self, number: int, reason: str) -> None:
        self._answers.put_nowait(NixlAnswer(batch=number, refusal=reason))

    def _over(self, number: int, *, given_up: bool) -> None:
        waiting = self._waiting.get(number)
        if waiting is not None:
            waiting.cancel()
        grant = self._granted.pop(number, None)
        if grant is not None and (given_up or grant.unsure):
            grant.left = True
        elif grant is not None:
            self._grants.end(grant)

    async def _send_answers(self, send: Callable[[bytes], Awaitable[None]]) -> None:
        while True:
            message = NixlAnswers(answers=[await self._answers.get()])
            pieces = len(message.answers[0].address)
            while pieces < wire.MAX_BATCH_PIECES and not self._answers.empty():
                answer = self._answers.get_nowait()
                message.answers.append(answer)
                pieces += len(answer.address)
            await send(message.SerializeToString())
