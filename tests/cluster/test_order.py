"""Publish after durable, durable after complete; sides of a request that end without each other; two writers."""

import asyncio
import errno

import pytest

from dualpath_jax.transfer import TrafficManager, TransferError
from dualpath_scheduler.service import scheduler_pb2 as pb
from dualpath_storage.posix import PosixMedium
from tests.cluster.harness import Cluster, running, small_spec
from tests.cluster.oracle import expected_tokens, random_prompt

PROMPT = random_prompt(61)  # seven full blocks of eight, and five tokens


async def nothing_is_held(cluster: Cluster) -> None:
    """Every slot of every host buffer is free again."""
    await cluster.quiet()
    stats = [node.services.arena.stats for node in cluster.nodes.values()]
    assert [(s.reserved, s.quarantined) for s in stats] == [(0, 0)] * len(stats)


async def indexed(cluster: Cluster) -> int:
    return (await cluster.client.describe()).indexed_blocks


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EIO])
async def test_a_store_that_takes_nothing_costs_hits_and_nothing_else(tmp_path, monkeypatch, code):
    def refuse(*args, **kwargs):
        raise OSError(code, "no more")

    monkeypatch.setattr(PosixMedium, "stage", refuse)
    spec = small_spec(tmp_path)
    async with running(spec) as cluster:
        for _ in range(2):
            result = await cluster.generate(PROMPT, 12)
            await nothing_is_held(cluster)
            assert result.tokens == expected_tokens(spec, PROMPT, 12)
            assert (result.hit_tokens, result.attempts) == (0, 1)
        assert await indexed(cluster) == 0
        assert sum(node.stats.dropped_blocks for node in cluster.nodes.values()) == 2 * 9


async def test_a_block_is_published_only_once_it_is_durable(tmp_path, monkeypatch):
    """The commit of every write waits; meanwhile the same prompt finds nothing, and afterwards all of it."""
    durable = asyncio.Event()
    write = TrafficManager.write

    async def late(self, *args, **kwargs):
        await durable.wait()
        return await write(self, *args, **kwargs)

    monkeypatch.setattr(TrafficManager, "write", late)
    spec = small_spec(tmp_path)
    async with running(spec) as cluster:
        first = await cluster.generate(PROMPT, 4)
        second = await cluster.generate(PROMPT, 4)
        assert (second.hit_tokens, await indexed(cluster)) == (0, 0)
        durable.set()
        await nothing_is_held(cluster)
        third = await cluster.generate(PROMPT, 4)
        assert (third.hit_tokens, await indexed(cluster)) == (56, 8)
    assert first.tokens == second.tokens == third.tokens == expected_tokens(spec, PROMPT, 4)


@pytest.mark.parametrize("after_sends", range(3))
async def test_a_prefill_that_fails_half_way_ends_its_decode_side_too(tmp_path, monkeypatch, after_sends):
    """Some layers have arrived in the decode node's buffer when the prefill side gives up."""
    count = 0
    send = TrafficManager.send

    async def failing(self, *args, **kwargs):
        nonlocal count
        count += 1
        if count == after_sends + 1:
            raise TransferError("the cable was pulled")
        return await send(self, *args, **kwargs)

    spec = small_spec(tmp_path)
    async with running(spec) as cluster:
        await cluster.generate(PROMPT[:30], 1)
        await nothing_is_held(cluster)
        before = await indexed(cluster)
        monkeypatch.setattr(TrafficManager, "send", failing)
        result = await cluster.generate(PROMPT, 20)
        await nothing_is_held(cluster)
        assert await indexed(cluster) == 10 > before
        again = await cluster.generate(PROMPT, 20)
    assert result.attempts == 2
    assert result.tokens == again.tokens == expected_tokens(spec, PROMPT, 20)
    assert (again.hit_tokens, again.recomputed_blocks) == (56, 0)


async def test_a_decode_side_carries_on_when_its_prefill_node_leaves_after_the_handover(tmp_path):
    spec = small_spec(tmp_path, engine__fake_seconds_per_token=0.003)
    async with running(spec) as cluster:
        request = pb.GenerateRequest(tokens=PROMPT, max_tokens=60)
        tokens, finished = [], None
        async for event in cluster.client.generate(request, deadline_s=30):
            tokens += [token.token for token in event.tokens]
            finished = event.finished if event.HasField("finished") else None
            if len(tokens) == 5:  # beyond the first, which the prefill side says
                cluster.tasks["prefill-0"].cancel()
        assert finished is not None
        assert finished.attempts == 1
    assert tokens == expected_tokens(spec, PROMPT, 60)


@pytest.mark.parametrize("after_s", [0.03, 0.08, 0.15])
async def test_what_is_cancelled_while_its_layers_travel_hurts_nobody_who_gets_its_slots(tmp_path, after_s):
    """On slow cards and the smallest host buffer, so that the next requests get the very slots that were written to."""
    spec = small_spec(
        tmp_path,
        host_buffer_blocks=32,
        engine__decode_pages=32,
        network__cnic_bytes_per_s=300e3,
        network__burst_bytes=1024,
    )
    long = random_prompt(240, seed=1)
    async with running(spec) as cluster:
        doomed = asyncio.create_task(cluster.generate(long, 8))
        await asyncio.sleep(after_s)
        doomed.cancel()
        prompts = [random_prompt(200, seed=seed) for seed in (2, 3)]
        results = await asyncio.gather(*(cluster.generate(prompt, 8) for prompt in prompts))
        await nothing_is_held(cluster)
        warm = await asyncio.gather(*(cluster.generate(prompt, 8) for prompt in prompts))
    assert doomed.cancelled()
    for prompt, cold, again in zip(prompts, results, warm, strict=True):
        assert cold.tokens == again.tokens == expected_tokens(spec, prompt, 8)
        assert again.hit_tokens == 192


async def test_two_nodes_write_the_same_blocks_at_once(tmp_path):
    spec = small_spec(tmp_path, decode_nodes=2, prefill_nodes=2)
    async with running(spec) as cluster:
        results = await asyncio.gather(*(cluster.generate(PROMPT, 12) for _ in range(4)))
        await nothing_is_held(cluster)
        again = await cluster.generate(PROMPT, 12)
        assert await indexed(cluster) == 9
    assert {result.decode_node for result in results} == {"decode-0", "decode-1"}
    assert [result.tokens for result in [*results, again]] == [expected_tokens(spec, PROMPT, 12)] * 5
    assert (again.hit_tokens, again.recomputed_blocks) == (56, 0)
