"""A cluster whose KV crosses the compute network by NIXL."""

import asyncio

import pytest

from dualpath_jax.transfer import NixlTransport
from tests.cluster.harness import running, small_spec
from tests.cluster.oracle import expected_tokens, random_prompt
from tests.transfer.conftest import needs_nixl

pytestmark = needs_nixl


@pytest.mark.parametrize("mode", ["dualpath", "basic"])
async def test_turns_hit_and_agree_and_every_byte_of_their_kv_crosses_by_nixl(tmp_path, mode):
    spec = small_spec(tmp_path, network__transport="nixl", mode=mode)
    async with running(spec) as cluster:
        prompts = [random_prompt(45, seed=seed) for seed in range(4)]
        first = await asyncio.gather(*(cluster.generate(prompt, 9) for prompt in prompts))
        await cluster.quiet()
        longer = [
            [*prompt, *result.tokens, *random_prompt(11, seed=9)] for prompt, result in zip(prompts, first, strict=True)
        ]
        second = await asyncio.gather(*(cluster.generate(prompt, 9) for prompt in longer))
        transports = [node.services.transport for node in cluster.nodes.values()]
    for prompt, result in zip([*prompts, *longer], [*first, *second], strict=True):
        assert result.tokens == expected_tokens(spec, prompt, 9)
    assert all(result.hit_tokens == 8 * ((45 + 9 - 1) // 8) for result in second)
    assert all(isinstance(transport, NixlTransport) for transport in transports)
    assert not any(lane.replaced for transport in transports for lane in transport._sending.values())


async def test_requests_that_are_cancelled_while_their_kv_travels_hurt_nobody(tmp_path):
    spec = small_spec(tmp_path, network__transport="nixl", network__cnic_bytes_per_s=2e5)
    async with running(spec) as cluster:
        prompts = [random_prompt(100, seed=seed) for seed in range(6)]
        tasks = [asyncio.create_task(cluster.generate(prompt, 5)) for prompt in prompts]
        await asyncio.sleep(0.3)
        for task in tasks[::2]:
            task.cancel()
        kept = await asyncio.gather(*tasks[1::2])
        await cluster.quiet()
        for prompt, result in zip(prompts[1::2], kept, strict=True):
            assert result.tokens == expected_tokens(spec, prompt, 5)
        for node in cluster.nodes.values():
            assert node.services.arena.stats.free == node.services.arena.blocks
