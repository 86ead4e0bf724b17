"""Nodes that are scripted by hand, and what tests of the service over gRPC share."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack

from dualpath_scheduler.service import NodeClient, SchedulerClient, SchedulerServer
from dualpath_scheduler.service import scheduler_pb2 as pb
from tests.service.support import VOCAB, make_spec, node_info, said


class ScriptedNode:
    """A node that speaks the protocol through a NodeClient and generates token i as `(prompt length + i) % VOCAB`.

    So the text that a client must get does not depend on who generates it or how often it is retried. A node that is
    told to `hold` takes assignments and says nothing.
    """

    def __init__(
        self, address: str, node_id: str, *, hold: bool = False, pace_s: float = 0.0, **fields: object
    ) -> None:
        self.info = node_info(node_id, **fields)
        self.hold = hold
        self.pace_s = pace_s
        self.assignments: list[pb.Assignment] = []
        self.cancellations: list[pb.Cancellation] = []
        self.forgotten = 0
        self.got_work = asyncio.Event()
        self.got_cancellation = asyncio.Event()
        self._seen = 0
        self._running: dict[tuple[str, int], asyncio.Task[None]] = {}
        self._loop: asyncio.Task[None] | None = None
        self.client = NodeClient(
            address,
            node_id=node_id,
            incarnation=self.info.incarnation,
            on_forgotten=self._forget,
            patience_s=10.0,
        )

    async def __aenter__(self) -> "ScriptedNode":
        await self.client.register(self.info)
        self._loop = asyncio.create_task(self._fetch_forever())
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.die()

    async def die(self, *, leave: bool = False) -> None:
        """Stops at once; without `leave`, as a killed process does."""
        tasks = [task for task in (self._loop, *self._running.values()) if task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        if not leave:
            self.client._info = None
        await self.client.close()

    def _forget(self) -> None:
        self.forgotten += 1
        for task in self._running.values():
            task.cancel()

    async def _fetch_forever(self) -> None:
        while True:
            queues = pb.QueueReport(
                seen=self._seen,
                engines=[pb.EngineReport(free_tokens=self.info.decode_tokens) for _ in range(self.info.engines)],
            )
            reply = await self.client.fetch(queues, max_wait_s=0.2)
            for cancellation in reply.cancellations:
                self._cancel(cancellation)
            for assignment in reply.assignments:
                self._seen = max(self._seen, assignment.serial)
                self.assignments.append(assignment)
                self.got_work.set()
                if not self.hold:
                    key = assignment.request_id, assignment.attempt
                    self._running[key] = asyncio.create_task(self._serve(assignment))

    def _cancel(self, cancellation: pb.Cancellation) -> None:
        self.cancellations.append(cancellation)
        self.got_cancellation.set()
        for (request_id, attempt), task in self._running.items():
            if request_id == cancellation.request_id and attempt <= cancellation.attempt:
                task.cancel()

    async def _serve(self, assignment: pb.Assignment) -> None:
        start, count = len(assignment.tokens), assignment.max_tokens
        ids = [(start + index) % VOCAB for index in range(count)]
        if self.info.role == pb.ROLE_PREFILL:
            await self._say(assignment, ids[:1])
            return
        for token in ids[1:]:
            await asyncio.sleep(self.pace_s)
            await self._say(assignment, [token])
        await self._say(assignment, [], finished=True)

    async def _say(self, assignment: pb.Assignment, ids: list[int], **fields: object) -> None:
        progress = pb.Progress(
            request_id=assignment.request_id, attempt=assignment.attempt, tokens=said(*ids), **fields
        )
        await self.client.report(progress=[progress])


def expected(message: pb.GenerateRequest) -> list[int]:
    """What scripted nodes generate."""
    return [(len(message.tokens) + index) % VOCAB for index in range(message.max_tokens)]


async def serve(stack: AsyncExitStack, bind: str = "127.0.0.1:0", **spec: object) -> str:
    server = SchedulerServer(make_spec(**spec), bind=bind)
    stack.push_async_callback(server.close)
    return await server.start()


def connect(stack: AsyncExitStack, address: str) -> SchedulerClient:
    client = SchedulerClient(address)
    stack.push_async_callback(client.close)
    return client


async def join(stack: AsyncExitStack, address: str, *names: str, **fields: object) -> list[ScriptedNode]:
    return [await stack.enter_async_context(ScriptedNode(address, name, **fields)) for name in names]


async def until(client: SchedulerClient, holds: Callable[[pb.DescribeReply], bool]) -> None:
    """Waits until what the scheduler says of itself holds."""
    async with asyncio.timeout(10):
        while True:
            if holds(await client.describe()):
                return
            await asyncio.sleep(0.01)


async def collect(
    client: SchedulerClient, message: pb.GenerateRequest, **options: float
) -> tuple[list[int], pb.Finished]:
    ids: list[int] = []
    async for event in client.generate(message, **options):
        ids += [token.token for token in event.tokens]
    assert event.HasField("finished")
    return ids, event.finished


async def first_of(stream: AsyncIterator[pb.GenerateEvent], count: int) -> AsyncIterator[pb.GenerateEvent]:
    for _ in range(count):
        yield await anext(stream)
