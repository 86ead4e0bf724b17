"""Schedulers that go and come back, and those who wait for them."""

import asyncio
from contextlib import AsyncExitStack

import grpc
import pytest

from dualpath_scheduler.service import (
    NodeClient,
    SchedulerServer,
    SchedulerUnavailable,
    layout_of,
)
from dualpath_scheduler.service import scheduler_pb2 as pb
from dualpath_storage import BlockWrite, open_store
from dualpath_storage.keys import chain_keys, token_bytes
from tests.service.scripted import collect, connect, expected, first_of, join, serve, until
from tests.service.support import BLOCK, make_spec, node_info, prompt, root, tokens

pytestmark = pytest.mark.usefixtures("no_task_left_behind")


async def test_a_restarted_scheduler_finishes_what_its_client_retries(stack: AsyncExitStack) -> None:
    first = SchedulerServer(make_spec())
    stack.push_async_callback(first.close)
    address = await first.start()
    client = connect(stack, address)
    nodes = await join(stack, address, "prefill-0", "decode-0", pace_s=0.1)
    message = prompt(10, max_tokens=8, request_id="again", forced_tokens=tokens(8, start=10))
    stream = client.generate(message, reconnect_s=20)
    ids = [token.token async for event in first_of(stream, 3) for token in event.tokens]
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
