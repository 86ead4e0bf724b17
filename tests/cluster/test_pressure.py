"""Buffers that are full, buffers that are still written to, and counters that must agree with what was read."""

import asyncio
import time

import pytest

from dualpath_scheduler import policy
from dualpath_scheduler.policy import ReadPlan
from tests.cluster.harness import Cluster, running, small_spec
from tests.cluster.oracle import expected_tokens, random_prompt

BLOCK_TOKENS = 8


def read_bytes(cluster: Cluster) -> int:
    return sum(node.services.traffic.stats().snic_read_bytes for node in cluster.nodes.values())


def written_bytes(cluster: Cluster) -> int:
    return sum(node.services.traffic.stats().snic_written_bytes for node in cluster.nodes.values())


@pytest.mark.parametrize("own_share", [0.0, 0.5, 1.0])
async def test_requests_that_lose_blocks_share_the_smallest_buffer_and_all_finish(tmp_path, monkeypatch, own_share):
    """Each has reserved for its plan and needs more as its reads fail; none may keep a part while it waits."""

    def split(snapshot):
        own = int(own_share * snapshot.hit_blocks)
        return ReadPlan(own, snapshot.hit_blocks - own)

    monkeypatch.setattr(policy, "read_plan_for", lambda *_: split)
    prompts = [random_prompt(200, seed=seed) for seed in range(8)]
    async with running(small_spec(tmp_path)) as cluster:
        await asyncio.gather(*(cluster.generate(prompt, 1) for prompt in prompts))
        await cluster.quiet()
    spec = small_spec(
        tmp_path,
        host_buffer_blocks=32,
        engine__decode_pages=32,
        storage__url=f"faulty+file://{tmp_path / 'kv'}?flip=0.1&truncate=0.1&seed=3",
    )
    async with running(spec) as cluster:
        async with asyncio.timeout(30):
            results = await asyncio.gather(*(cluster.generate(prompt, 6) for prompt in prompts))
        await cluster.quiet()
        stats = [node.services.arena.stats for node in cluster.nodes.values()]
    assert [result.tokens for result in results] == [expected_tokens(spec, prompt, 6) for prompt in prompts]
    assert sum(result.recomputed_blocks for result in results) > 40
    assert [result.attempts for result in results] == [1] * 8
    assert [(s.free, s.reserved, s.quarantined) for s in stats] == [(32, 0, 0)] * 2


async def test_slots_rest_as_long_as_a_read_that_is_too_late_writes_into_them(tmp_path, monkeypatch):
    """The device answers a second after the deadline; until then nobody gets the slots, and then everybody may."""
    monkeypatch.setattr(policy, "read_plan_for", lambda *_: lambda s: ReadPlan(s.hit_blocks, 0))
    prompt, other = random_prompt(61), random_prompt(61, seed=1)
    async with running(small_spec(tmp_path)) as cluster:
        await cluster.generate(prompt, 1)
        await cluster.quiet()
    hanging = f"faulty+file://{tmp_path / 'kv'}?hang=1&overrun_s=1.0&seed=1"
    spec = small_spec(
        tmp_path,
        storage__url=hanging,
        storage__read_deadline_s=0.1,
        storage__write_deadline_s=0.1,
        host_buffer_blocks=32,
    )
    async with running(spec) as cluster:
        result = await cluster.generate(prompt, 3)
        resting = cluster.nodes["prefill-0"].services.arena.stats.quarantined  # where nothing else holds slots
        meanwhile = await cluster.generate(other, 3)
        async with asyncio.timeout(10):
            while any(node.services.arena.stats.free < 32 for node in cluster.nodes.values()):  # noqa: ASYNC110
                await asyncio.sleep(0.02)
    assert resting == 8
    assert result.tokens == expected_tokens(spec, prompt, 3)
    assert meanwhile.tokens == expected_tokens(spec, other, 3)


async def test_waiting_for_a_full_buffer_takes_no_time_of_the_processor(tmp_path):
    """Whoever waits for slots is woken; nobody asks again and again."""
    prompts = [random_prompt(200, seed=seed) for seed in range(6)]
    spec = small_spec(tmp_path, host_buffer_blocks=32, engine__decode_pages=32)
    async with running(spec) as cluster:
        decode = cluster.nodes["decode-0"].services.arena
        taken = await decode.reserve(32, deadline_s=5)
        waiting = [asyncio.create_task(cluster.generate(prompt, 2)) for prompt in prompts]
        await asyncio.sleep(0.2)
        before = time.thread_time()
        await asyncio.sleep(0.5)
        spent_s = time.thread_time() - before
        assert not any(task.done() for task in waiting)
        taken.release()
        async with asyncio.timeout(20):
            results = await asyncio.gather(*waiting)
    assert spent_s < 0.1
    assert [result.tokens for result in results] == [expected_tokens(spec, prompt, 2) for prompt in prompts]


async def test_bytes_read_are_those_of_the_hits_and_zero_exactly_when_nothing_was_hit(tmp_path):
    spec = small_spec(tmp_path)
    history: list[int] = []
    written_blocks = 0
    async with running(spec) as cluster:
        block_bytes = cluster.nodes["decode-0"].services.engine.layout.block_bytes
        for turn, length in enumerate((5, 2, 40, 1, 17, 3)):
            prompt = [*history, *random_prompt(length, seed=turn)]
            stranger = random_prompt(30, seed=100 + turn)
            for tokens, is_new in ((prompt, False), (stranger, True)):
                before = read_bytes(cluster)
                result = await cluster.generate(tokens, 3)
                await cluster.quiet()
                assert read_bytes(cluster) - before == result.hit_tokens // BLOCK_TOKENS * block_bytes
                assert result.hit_tokens == (0 if is_new else max(0, len(history) - 1) // BLOCK_TOKENS * BLOCK_TOKENS)
                assert result.hit_tokens + BLOCK_TOKENS * result.recomputed_blocks <= result.prompt_tokens
                # Of what is fed, which is all but the last token, the full blocks that were not hit are written.
                written_blocks += (len(tokens) + 2 - result.hit_tokens) // BLOCK_TOKENS
                assert written_bytes(cluster) == written_blocks * block_bytes
                if not is_new:
                    history = [*prompt, *result.tokens]
        assert sum(node.stats.dropped_blocks for node in cluster.nodes.values()) == 0
        assert (await cluster.client.describe()).indexed_blocks == written_blocks
