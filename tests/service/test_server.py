"""The service over real gRPC, with nodes that are scripted by hand."""

import asyncio
from contextlib import AsyncExitStack

import grpc
import pytest

from dualpath_scheduler.service import (
    InvalidRequest,
    NodeClient,
    RegistrationRefused,
    RequestFailed,
    SchedulerServer,
    SchedulerUnavailable,
)
from dualpath_scheduler.service import scheduler_pb2 as pb
from tests.service.scripted import collect, connect, expected, first_of, join, serve, until
from tests.service.support import make_spec, node_info, prompt, tokens

pytestmark = pytest.mark.usefixtures("no_task_left_behind")


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
    ids = [token.token async for event in first_of(stream, 2) for token in event.tokens]
    await doomed.die()
    await join(stack, address, "decode-1")
    async for event in stream:
        ids += [token.token for token in event.tokens]
    assert ids == expected(message)
    assert (event.finished.attempts, event.finished.decode_node) == (2, "decode-1")


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
