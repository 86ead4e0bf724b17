"""The service over real gRPC, with nodes that are scripted by hand."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack

import grpc
import pytest

from dualpath_scheduler.service import (
    InvalidRequest,
    NodeClient,
    RegistrationRefused,
    RequestFailed,
    SchedulerClient,
    SchedulerServer,
    SchedulerUnavailable,
    layout_of,
)
from dualpath_scheduler.service import scheduler_pb2 as pb
from dualpath_storage import BlockWrite, open_store
from dualpath_storage.keys import chain_keys, token_bytes
from tests.service.support import BLOCK, ScriptedNode, expected, make_spec, node_info, prompt, root, tokens

pytestmark = pytest.mark.usefixtures("no_task_left_behind")


@pytest.fixture
async def stack(no_task_left_behind: None) -> AsyncIterator[AsyncExitStack]:
    """What is entered here ends with the test, the last first."""
    async with AsyncExitStack() as stack:
        yield stack


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


async def test_a_whole_life_with_two_prefill_nodes(stack: AsyncExitStack) -> None:
    address = await serve(stack, beta_tokens=20)
    client = connect(stack, address)
    nodes = await join(stack, address, "prefill-0", "prefill-1", "decode-0")
    reply = await client.wait_ready(2, 1, deadline_s=5)
    assert [node.node_id for node in reply.nodes] == ["decode-0", "prefill-0", "prefill-1"]

    messages = [prompt(10 + index, max_tokens=1 + index % 5) for index in range(20)]
    results = await asyncio.gather(*(collect(client, message) for message in messages))
    for message, (ids, finished) in zip(messages, results, strict=True):
        assert ids == expected(message)
        assert (finished.attempts, finished.prompt_tokens) == (1, len(message.tokens))
        assert finished.timings.arrival <= finished.timings.assigned <= finished.timings.end
    assert all(node.assignments for node in nodes)
    assert len(nodes[0].assignments) + len(nodes[1].assignments) == len(nodes[2].assignments) == 20
    assert (await client.describe()).running_requests == 0


async def test_tokens_come_one_by_one(stack: AsyncExitStack) -> None:
    address = await serve(stack)
    client = connect(stack, address)
    await join(stack, address, "prefill-0", "decode-0", pace_s=0.05)
    events = [event async for event in client.generate(prompt(max_tokens=4))]
    assert [len(event.tokens) for event in events] == [1, 1, 1, 1, 0]


async def test_a_node_that_is_killed_is_replaced(stack: AsyncExitStack) -> None:
    address = await serve(stack, lease_s=0.6)
    client = connect(stack, address)
    await join(stack, address, "prefill-0")
    (doomed,) = await join(stack, address, "decode-0", pace_s=0.2)
    message = prompt(10, max_tokens=6, forced_tokens=tokens(6, start=10))
    stream = client.generate(message)
    ids = [token.token async for event in _first(stream, 2) for token in event.tokens]
    await doomed.die()
    await join(stack, address, "decode-1")
    async for event in stream:
        ids += [token.token for token in event.tokens]
    assert ids == expected(message)
    assert (event.finished.attempts, event.finished.decode_node) == (2, "decode-1")


async def _first(stream: AsyncIterator[pb.GenerateEvent], count: int) -> AsyncIterator[pb.GenerateEvent]:
    for _ in range(count):
        yield await anext(stream)


async def test_a_node_that_leaves_is_replaced_at_once(stack: AsyncExitStack) -> None:
    address = await serve(stack, lease_s=100.0)
    client = connect(stack, address)
    (leaving, _) = await join(stack, address, "prefill-0", "decode-0", hold=True)
    generation = asyncio.create_task(collect(client, prompt()))
    await asyncio.wait_for(leaving.got_work.wait(), 5)
    await leaving.die(leave=True)
    await join(stack, address, "prefill-0", incarnation=2)
    await join(stack, address, "decode-0", incarnation=2)
    ids, finished = await generation
    assert ids == expected(prompt())
    assert finished.attempts >= 2


async def test_without_a_replacement_the_error_names_the_node(
    stack: AsyncExitStack, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dualpath_scheduler.service.lifecycle.ABSENCE_GRACE_S", 0.2)
    address = await serve(stack, lease_s=0.4)
    client = connect(stack, address)
    (doomed, _) = await join(stack, address, "prefill-0", "decode-0", hold=True)
    generation = asyncio.create_task(collect(client, prompt()))
    await asyncio.wait_for(doomed.got_work.wait(), 5)
    await doomed.die()
    with pytest.raises(
        RequestFailed, match=r"no prefill node lives: prefill node prefill-0 died at \d{4}-.*silent for"
    ):
        await generation


async def test_a_client_that_leaves_cancels_on_both_sides(stack: AsyncExitStack) -> None:
    address = await serve(stack)
    client = connect(stack, address)
    nodes = await join(stack, address, "prefill-0", "decode-0", hold=True)
    generation = asyncio.create_task(collect(client, prompt(request_id="left")))
    for node in nodes:
        await asyncio.wait_for(node.got_work.wait(), 5)
    generation.cancel()
    with pytest.raises(asyncio.CancelledError):
        await generation
    for node in nodes:
        await asyncio.wait_for(node.got_cancellation.wait(), 5)
        (cancellation,) = node.cancellations
        assert (cancellation.request_id, cancellation.reason) == ("left", "the client has gone away")
    assert (await client.describe()).running_requests == 0


async def test_a_client_whose_connection_drops_is_noticed(stack: AsyncExitStack) -> None:
    address = await serve(stack)
    client, other = connect(stack, address), connect(stack, address)
    (node, _) = await join(stack, address, "prefill-0", "decode-0", hold=True)
    generation = asyncio.create_task(collect(client, prompt()))
    await asyncio.wait_for(node.got_work.wait(), 5)
    await client.close()
    with pytest.raises((SchedulerUnavailable, asyncio.CancelledError)):
        await generation
    await asyncio.wait_for(node.got_cancellation.wait(), 5)
    assert (await other.describe()).running_requests == 0


async def test_closing_the_iterator_early_cancels(stack: AsyncExitStack) -> None:
    address = await serve(stack)
    client = connect(stack, address)
    (_, node) = await join(stack, address, "prefill-0", "decode-0", pace_s=0.05)
    stream = client.generate(prompt(max_tokens=50))
    await anext(stream)
    await stream.aclose()
    await asyncio.wait_for(node.got_cancellation.wait(), 5)


async def test_invalid_requests_fail_for_their_caller_only(stack: AsyncExitStack) -> None:
    address = await serve(stack)
    client = connect(stack, address)
    await join(stack, address, "prefill-0", "decode-0", pace_s=0.02)
    good = asyncio.create_task(collect(client, prompt(10, max_tokens=9)))
    with pytest.raises(InvalidRequest, match=r"^max_tokens = 55: expected 1 to 54 \(max_context_tokens 64"):
        await collect(client, prompt(10, max_tokens=55))
    with pytest.raises(InvalidRequest, match=r"^the prompt is empty: expected 1 to 63 tokens$"):
        await collect(client, prompt(0))
    assert (await good)[0] == expected(prompt(10, max_tokens=9))


async def test_a_restarted_scheduler_finishes_what_its_client_retries(stack: AsyncExitStack) -> None:
    first = SchedulerServer(make_spec())
    stack.push_async_callback(first.close)
    address = await first.start()
    client = connect(stack, address)
    nodes = await join(stack, address, "prefill-0", "decode-0", pace_s=0.1)
    message = prompt(10, max_tokens=8, request_id="again", forced_tokens=tokens(8, start=10))
    stream = client.generate(message, reconnect_s=20)
    ids = [token.token async for event in _first(stream, 3) for token in event.tokens]
    assert len(ids) == 3
    await first.close()
    await serve(stack, bind=address)
    async for event in stream:
        ids += [token.token for token in event.tokens]
    assert ids == expected(message)
    assert [node.forgotten for node in nodes] == [1, 1]
    assert list(nodes[1].assignments[-1].tokens) == [*message.tokens, *ids[:3]]


async def test_without_reconnection_the_caller_is_told(stack: AsyncExitStack) -> None:
    server = SchedulerServer(make_spec())
    stack.push_async_callback(server.close)
    client = connect(stack, await server.start())
    generation = asyncio.create_task(collect(client, prompt()))
    await until(client, lambda reply: reply.running_requests == 1)
    await server.close()
    with pytest.raises(SchedulerUnavailable, match="the scheduler shuts down; the request can be submitted again"):
        await generation
    with pytest.raises(SchedulerUnavailable, match=r"no scheduler answers at 127\.0\.0\.1:"):
        await client.describe()


class _Cut:
    """A stream that breaks after its first event, while the call goes on behind it."""

    def __init__(self, call: object) -> None:
        self.call = call
        self.events = 0

    def __aiter__(self) -> "_Cut":
        return self

    async def __anext__(self) -> pb.GenerateEvent:
        self.events += 1
        if self.events > 1:
            lost = grpc.StatusCode.UNAVAILABLE
            raise grpc.aio.AioRpcError(lost, grpc.aio.Metadata(), grpc.aio.Metadata(), details="reset")
        return await self.call.read()

    def cancel(self) -> None:
        """The scheduler does not hear of it."""


async def test_a_request_that_is_resumed_does_not_meet_its_former_self(stack: AsyncExitStack) -> None:
    address = await serve(stack)
    client = connect(stack, address)
    await join(stack, address, "prefill-0", "decode-0", pace_s=0.2)
    original = client._stub.Generate
    cuts = []

    def cut_once(request: pb.GenerateRequest, timeout: float) -> object:
        call = original(request, timeout=timeout)
        if cuts:
            return call
        cuts.append(_Cut(call))
        return cuts[0]

    client._stub.Generate = cut_once
    message = prompt(10, max_tokens=4, request_id="mine")
    ids, finished = await collect(client, message, reconnect_s=5)
    assert ids == expected(message)
    assert finished.prompt_tokens == 10
    cuts[0].call.cancel()


async def test_polls_end_when_the_scheduler_closes(stack: AsyncExitStack) -> None:
    server = SchedulerServer(make_spec(lease_s=100.0))
    stack.push_async_callback(server.close)
    node = NodeClient(await server.start(), node_id="decode-0", incarnation=1)
    stack.push_async_callback(node.close)
    await node.register(node_info("decode-0"))
    request = pb.FetchRequest(node_id="decode-0", incarnation=1, max_wait_s=40)
    poll = node._stub.Fetch(request, timeout=50)
    await asyncio.sleep(0.1)
    await server.close()
    with pytest.raises(grpc.aio.AioRpcError) as ended:
        await poll
    assert ended.value.code() is grpc.StatusCode.UNAVAILABLE
    assert "the scheduler shuts down" in (ended.value.details() or "")


async def test_a_forgotten_node_registers_again_by_itself(stack: AsyncExitStack) -> None:
    """As after a stall that was longer than the lease."""
    address = await serve(stack, lease_s=0.3)
    node = NodeClient(address, node_id="decode-0", incarnation=1)
    stack.push_async_callback(node.close)
    client = connect(stack, address)
    assert await node.register(node_info("decode-0")) == pytest.approx(0.3)
    await until(client, lambda reply: not reply.nodes)
    keys = chain_keys(root(), tokens(BLOCK), BLOCK)
    await node.report(published=[pb.Published(key=keys[0], parent=root())])
    reply = await client.describe()
    assert [info.node_id for info in reply.nodes] == ["decode-0"]
    assert reply.indexed_blocks == 1


async def test_the_server_refuses_what_it_does_not_know_in_grpc_terms(stack: AsyncExitStack) -> None:
    address = await serve(stack)
    node = NodeClient(address, node_id="decode-0", incarnation=1)
    stack.push_async_callback(node.close)
    with pytest.raises(grpc.aio.AioRpcError) as refused:
        await node._stub.Fetch(pb.FetchRequest(node_id="decode-0", incarnation=1), timeout=5)
    assert refused.value.code() is grpc.StatusCode.FAILED_PRECONDITION
    assert "this scheduler has not heard of it" in (refused.value.details() or "")


async def test_a_node_that_does_not_fit_is_refused(stack: AsyncExitStack) -> None:
    address = await serve(stack)
    await join(stack, address, "prefill-0")
    stranger = NodeClient(address, node_id="decode-0", incarnation=1)
    stack.push_async_callback(stranger.close)
    with pytest.raises(RegistrationRefused, match="weights_version is 9, but prefill-0 have 1"):
        await stranger.register(node_info("decode-0", identity={"weights_version": 9}))


async def test_a_node_that_finds_no_scheduler_gives_up_in_time(stack: AsyncExitStack) -> None:
    node = NodeClient("127.0.0.1:1", node_id="decode-0", incarnation=1, patience_s=0.3)
    stack.push_async_callback(node.close)
    with pytest.raises(SchedulerUnavailable, match=r"node decode-0 found no scheduler at 127.0.0.1:1 for 0.3 s"):
        await node.register(node_info("decode-0"))


async def test_waiting_for_a_cluster_that_does_not_come_says_what_is_there(stack: AsyncExitStack) -> None:
    address = await serve(stack)
    client = connect(stack, address)
    await join(stack, address, "prefill-0")
    with pytest.raises(
        SchedulerUnavailable,
        match=r"not ready after 0.2 s: 1 of 1 prefill and 0 of 2 decode nodes have registered at .* \(prefill-0\)",
    ):
        await client.wait_ready(1, 2, deadline_s=0.2)


async def test_a_port_that_is_taken_is_an_error(stack: AsyncExitStack) -> None:
    address = await serve(stack)
    second = SchedulerServer(make_spec(), bind=address)
    with pytest.raises(OSError, match=f"the scheduler cannot listen on {address}"):
        await second.start()
    await second.close()


@pytest.mark.parametrize("scheme", ["file", "memory"])
async def test_the_index_is_rebuilt_from_the_store(stack: AsyncExitStack, scheme: str, tmp_path) -> None:
    url = f"file://{tmp_path}/kv" if scheme == "file" else "memory://rebuilt"
    layout = layout_of(make_spec())
    store = open_store(url, layout)
    stack.push_async_callback(store.close)
    ids = tokens(3 * BLOCK)
    keys = chain_keys(root(), ids, BLOCK)
    writes = [
        BlockWrite(key, parent, token_bytes(ids[at * BLOCK : (at + 1) * BLOCK]), memoryview(bytes(layout.block_bytes)))
        for at, (key, parent) in enumerate(zip(keys, [root(), *keys], strict=False))
    ]
    assert all(result.ok for result in await store.put(writes, deadline_s=5))

    address = await serve(stack, url=url)
    client = connect(stack, address)
    (node, _) = await join(stack, address, "prefill-0", "decode-0")
    assert (await client.describe()).indexed_blocks == 3
    await collect(client, prompt(tokens=[*ids, 50]))
    assignment = node.assignments[0]
    assert assignment.prefill_side_blocks + assignment.decode_side_blocks == 3


async def test_many_clients_are_served_in_order(stack: AsyncExitStack) -> None:
    """Fairness: what was submitted first is assigned first, however many wait."""
    address = await serve(stack, beta_tokens=1)
    client = connect(stack, address)
    messages = [prompt(4, max_tokens=2, request_id=f"r{index:02}") for index in range(40)]
    generations = []
    for count, message in enumerate(messages, 1):
        generations.append(asyncio.create_task(collect(client, message)))
        await until(client, lambda reply, count=count: reply.running_requests == count)
    (_, decode) = await join(stack, address, "prefill-0", "decode-0")
    await asyncio.gather(*generations)
    assert [assignment.request_id for assignment in decode.assignments] == [message.request_id for message in messages]


async def test_long_prompts_pass(stack: AsyncExitStack) -> None:
    """A message of several megabytes, far above gRPC's own limit of 4 MiB."""
    address = await serve(stack)
    client = connect(stack, address)
    with pytest.raises(InvalidRequest, match="the prompt has 3000000 tokens: expected at most 63"):
        await collect(client, prompt(tokens=[2**31] * 3_000_000))
