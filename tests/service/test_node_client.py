"""What a leader's client takes care of, so that a node's loop need not: lost replies, restarts, order."""

import asyncio
from collections.abc import AsyncIterator

import grpc
import pytest

from dualpath_configs import MODES
from dualpath_scheduler.service import NodeClient, SchedulerClient, SchedulerServer, SchedulerUnavailable
from dualpath_scheduler.service import scheduler_pb2 as pb
from tests.service.scripted import ScriptedNode, expected
from tests.service.support import make_spec, node_info, prompt, said

pytestmark = pytest.mark.usefixtures("no_task_left_behind")


@pytest.fixture
async def address(no_task_left_behind: None) -> AsyncIterator[str]:
    server = SchedulerServer(make_spec(lease_s=100.0))
    try:
        yield await server.start()
    finally:
        await server.close()


@pytest.fixture
async def users(address: str) -> AsyncIterator[SchedulerClient]:
    client = SchedulerClient(address)
    yield client
    await client.close()


class Flaky:
    """Stands in for a stub's method: the call takes place, and then its reply is lost so many times."""

    def __init__(self, method: object, losses: int) -> None:
        self.method = method
        self.losses = losses
        self.requests: list = []

    async def __call__(self, request: object, timeout: float) -> object:
        self.requests.append(request)
        reply = await self.method(request, timeout=timeout)
        if len(self.requests) <= self.losses:
            lost = grpc.StatusCode.UNAVAILABLE
            raise grpc.aio.AioRpcError(lost, grpc.aio.Metadata(), grpc.aio.Metadata(), details="reset")
        return reply


async def joined(address: str, node_id: str, **options: object) -> NodeClient:
    node = NodeClient(address, node_id=node_id, incarnation=1, **options)
    await node.register(node_info(node_id))
    return node


async def test_a_fetch_whose_reply_was_lost_brings_the_work_all_the_same(address: str, users: SchedulerClient) -> None:
    node = await joined(address, "prefill-0")
    async with ScriptedNode(address, "decode-0", hold=True) as decode:
        generation = asyncio.create_task(anext(users.generate(prompt())))
        fetching = asyncio.create_task(node.fetch(pb.QueueReport(), max_wait_s=0.1))
        await asyncio.wait_for(decode.got_work.wait(), 5)
        node._stub.Fetch = Flaky(node._stub.Fetch, 2)
        (assignment,) = (await fetching).assignments or (await node.fetch(pb.QueueReport(), max_wait_s=1)).assignments
        assert not (await node.fetch(pb.QueueReport(), max_wait_s=0)).assignments, "and only once"
        generation.cancel()
        await asyncio.gather(generation, return_exceptions=True)
        (cancellation,) = (await node.fetch(pb.QueueReport(), max_wait_s=5)).cancellations
        assert cancellation.request_id == assignment.request_id
        assert not (await node.fetch(pb.QueueReport(), max_wait_s=0)).cancellations
    await node.close()


async def test_a_report_whose_reply_was_lost_counts_once(address: str, users: SchedulerClient) -> None:
    node = await joined(address, "prefill-0")
    node._stub.Report = flaky = Flaky(node._stub.Report, 2)
    async with ScriptedNode(address, "decode-0", hold=True) as decode:
        stream = users.generate(prompt(max_tokens=3))
        generation = asyncio.create_task(anext(stream))
        fetching = asyncio.create_task(node.fetch(pb.QueueReport(), max_wait_s=5))
        (assignment,) = (await fetching).assignments
        progress = pb.Progress(request_id=assignment.request_id, attempt=1, tokens=said(7))
        await node.report(progress=[progress])
        assert [request.serial for request in flaky.requests] == [1, 1, 1]
        await decode.client.report(progress=[pb.Progress(request_id=assignment.request_id, attempt=1, finished=True)])
        first = await generation
        rest = [token.token async for event in stream for token in event.tokens]
        assert [token.token for token in first.tokens] + rest == [7]
    await node.close()


async def test_reports_arrive_in_the_order_of_the_calls(address: str, users: SchedulerClient) -> None:
    async with ScriptedNode(address, "prefill-0"), ScriptedNode(address, "decode-0", hold=True) as decode:
        generation = asyncio.create_task(_collect(users, prompt(max_tokens=21)))
        await asyncio.wait_for(decode.got_work.wait(), 5)
        (assignment,) = decode.assignments
        progress = [
            pb.Progress(request_id=assignment.request_id, attempt=1, tokens=said(index), finished=index == 19)
            for index in range(20)
        ]
        await asyncio.gather(*(decode.client.report(progress=[one]) for one in progress))
        assert (await generation)[1:] == list(range(20))


async def _collect(users: SchedulerClient, message: pb.GenerateRequest) -> list[int]:
    return [token.token async for event in users.generate(message) for token in event.tokens]


async def test_a_scheduler_that_comes_back_hears_of_blocks_but_not_of_old_attempts() -> None:
    server = SchedulerServer(make_spec())
    address = await server.start()
    forgotten: list[str] = []
    node = await joined(address, "decode-0", on_forgotten=lambda: forgotten.append("decode-0"))
    node._received = 2**63  # as if the first scheduler's clock had been far ahead
    await server.close()
    server = SchedulerServer(make_spec(mode=MODES["basic"]), bind=address)
    await server.start()
    users = SchedulerClient(address)

    node._stub.Report = flaky = Flaky(node._stub.Report, 0)
    progress = pb.Progress(request_id="mine", attempt=1, finished=True)
    await node.report(pb.QueueReport(seen=2**63), progress=[progress], published=[pb.Published(key=b"k", parent=b"p")])
    assert forgotten == ["decode-0"]
    assert (len(flaky.requests[-1].progress), len(flaky.requests[-1].published)) == (0, 1)
    assert not flaky.requests[-1].HasField("queues")
    assert (await users.describe()).indexed_blocks == 1

    async with ScriptedNode(address, "prefill-0", hold=True):
        generation = asyncio.create_task(_collect(users, prompt(request_id="mine")))
        while not (await users.describe()).running_requests:
            pass
        (assignment,) = (await node.fetch(pb.QueueReport(), max_wait_s=5)).assignments
        assert assignment.request_id == "mine"
        generation.cancel()
        await asyncio.gather(generation, return_exceptions=True)
    await node.close()
    await users.close()
    await server.close()


async def test_a_leader_that_goes_away_while_it_fetches_gets_nothing_assigned(
    address: str, users: SchedulerClient
) -> None:
    absent = await joined(address, "prefill-0")
    fetching = asyncio.create_task(absent.fetch(pb.QueueReport(), max_wait_s=30))
    async with ScriptedNode(address, "prefill-1") as present, ScriptedNode(address, "decode-0"):
        await asyncio.sleep(0.1)
        fetching.cancel()
        await asyncio.gather(fetching, return_exceptions=True)
        await asyncio.sleep(0.1)
        assert await asyncio.wait_for(_collect(users, prompt()), 5) == expected(prompt())
        assert len(present.assignments) == 1
    await absent.close()


async def test_patience_ends(address: str) -> None:
    node = await joined(address, "decode-0", patience_s=0.2)
    node._stub.Report = Flaky(node._stub.Report, 1000)
    with pytest.raises(SchedulerUnavailable, match=r"node decode-0 found no scheduler at .* for 0\.2 s: reset"):
        await node.report()
    await node.close()


async def test_a_client_speaks_for_its_own_node_only(address: str) -> None:
    node = NodeClient(address, node_id="decode-0", incarnation=1)
    with pytest.raises(ValueError, match=r"info is of node 'decode-1', incarnation 1: expected this client's own"):
        await node.register(node_info("decode-1"))
    with pytest.raises(ValueError, match="node decode-0 has not registered: call `register` first"):
        await node.fetch(pb.QueueReport(), max_wait_s=1)
    await node.close()


async def test_leaving_is_told(address: str, users: SchedulerClient) -> None:
    node = await joined(address, "decode-0")
    assert len((await users.describe()).nodes) == 1
    await node.close()
    assert not (await users.describe()).nodes
    await node.close()
