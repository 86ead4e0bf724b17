"""The DRAM tier in a cluster: what is in memory is not read from storage again, and everything agrees."""

import asyncio

import numpy as np
import pytest

from dualpath_configs import MODES
from dualpath_jax.cluster.services import node_services
from dualpath_jax.engine.build import build_engine
from dualpath_scheduler.service import SchedulerServer
from dualpath_storage import BlockWrite, StoreError
from tests.cluster.harness import Cluster, running, small_spec
from tests.cluster.oracle import expected_tokens, random_prompt
from tests.cluster.test_faults import FAULTS, conversation

ONE_PATH = {"mode__dual_path": False, "mode__scheduling": False}  # reads are the prefill node's
PLENTY = 1 << 24


def _read(cluster: Cluster, name: str) -> tuple[int, int]:
    """Blocks that a node read from storage and from memory."""
    services = cluster.nodes[name].services
    stats, size = services.traffic.stats(), services.engine.layout.block_bytes
    assert stats.snic_read_bytes % size == stats.memory_read_bytes % size == 0
    return stats.snic_read_bytes // size, stats.memory_read_bytes // size


async def _end(cluster: Cluster) -> None:
    await cluster.quiet()
    stats = [node.services.arena.stats for node in cluster.nodes.values()]
    assert [(s.reserved, s.quarantined) for s in stats] == [(0, 0)] * len(stats)
    tiers = [node.services.tier for node in cluster.nodes.values()]
    assert not any(block.holds for tier in tiers for block in tier._blocks.values())


async def test_the_second_reader_of_a_block_reads_nothing_from_storage(tmp_path):
    spec = small_spec(tmp_path, storage__dram_bytes=PLENTY, **ONE_PATH)
    prompt = random_prompt(45)
    async with running(spec) as cluster:
        await cluster.generate(prompt, 1)
        await cluster.quiet()
        counts = []
        for _ in range(3):
            result = await cluster.generate(prompt, 4)
            assert (result.tokens, result.hit_tokens) == (expected_tokens(spec, prompt, 4), 40)
            counts.append(_read(cluster, "prefill-0"))
        await _end(cluster)
    assert counts == [(5, 0), (5, 5), (5, 10)]


async def test_many_requests_that_share_a_prefix_load_it_once(tmp_path):
    spec = small_spec(tmp_path, storage__dram_bytes=PLENTY, host_buffer_blocks=512, **ONE_PATH)
    prefix = random_prompt(80)
    prompts = [[*prefix, *random_prompt(9, seed=i)] for i in range(10)]
    async with running(spec) as cluster:
        await cluster.generate(prefix, 2)
        await cluster.quiet()
        results = await asyncio.gather(*(cluster.generate(prompt, 5) for prompt in prompts))
        counts = _read(cluster, "prefill-0")
        await _end(cluster)
    for prompt, result in zip(prompts, results, strict=True):
        assert result.tokens == expected_tokens(spec, prompt, 5)
        assert result.hit_tokens == 80
    assert counts == (10, 90)


async def test_without_a_tier_each_of_them_loads_it(tmp_path):
    spec = small_spec(tmp_path, **ONE_PATH)
    prompt = random_prompt(45)
    async with running(spec) as cluster:
        await cluster.generate(prompt, 1)
        await cluster.quiet()
        await asyncio.gather(*(cluster.generate(prompt, 1) for _ in range(4)))
        assert _read(cluster, "prefill-0") == (20, 0)
        assert cluster.nodes["prefill-0"].services.tier is None


async def test_turns_read_where_their_blocks_lie_in_memory(tmp_path):
    """The decode node holds what it wrote: a session never asks storage."""
    spec = small_spec(tmp_path, storage__dram_bytes=PLENTY)
    async with running(spec) as cluster:
        history = []
        for turn in range(5):
            append = random_prompt(11 + turn, seed=turn)
            result = await cluster.generate([*history, *append], 9)
            stored = max(0, len(history) - 1) // 8
            assert result.tokens == expected_tokens(spec, [*history, *append], 9)
            assert result.hit_tokens == 8 * stored
            assert (result.prefill_side_blocks, result.decode_side_blocks) == (0, stored)
            history += [*append, *result.tokens]
            await cluster.quiet()
        assert _read(cluster, "decode-0")[0] == _read(cluster, "prefill-0")[0] == 0
        assert _read(cluster, "decode-0")[1] > 0


@pytest.mark.parametrize("blocks", [1, 5, 1000])
@pytest.mark.parametrize("mode", sorted(MODES))
async def test_tiers_of_any_size_agree_in_every_mode(tmp_path, mode, blocks):
    size = 3 * 8 * 10 * 4
    spec = small_spec(tmp_path, mode=mode, storage__dram_bytes=blocks * size, prefill_nodes=2)
    async with running(spec) as cluster:
        await asyncio.gather(*(conversation(cluster, seed) for seed in range(4)))
        await _end(cluster)
        assert all(len(node.services.tier) <= blocks for node in cluster.nodes.values())


async def test_blocks_that_a_plan_counts_on_stay_in_memory_until_they_are_read(tmp_path):
    spec = small_spec(tmp_path, storage__dram_bytes=12 * 3 * 8 * 10 * 4, **ONE_PATH)
    prompt, random = random_prompt(100), np.random.default_rng(0)
    async with running(spec) as cluster:
        for _ in range(2):
            await cluster.generate(prompt, 1)
            await cluster.quiet()
        assert _read(cluster, "prefill-0") == (12, 0)
        node = cluster.nodes["prefill-0"]
        size = node.services.engine.layout.block_bytes
        with await node.services.arena.reserve(node.services.arena.blocks, deadline_s=1):
            waiting = asyncio.create_task(cluster.generate(prompt, 1))
            while not len(node.jobs):  # noqa: ASYNC110
                await asyncio.sleep(0.01)
            others = [BlockWrite(random.bytes(32), bytes(32), b"", memoryview(bytes(size))) for _ in range(20)]
            await node.services.store.put(others, deadline_s=10)
        await waiting
        assert _read(cluster, "prefill-0") == (12, 12)
        await _end(cluster)


async def test_a_damaged_block_hurts_nobody_who_has_it_in_memory(tmp_path):
    spec = small_spec(tmp_path, storage__dram_bytes=PLENTY, **ONE_PATH)
    prompt = random_prompt(45)
    async with running(spec) as cluster:
        await cluster.generate(prompt, 1)
        await cluster.quiet()
        await cluster.generate(prompt, 1)
        for file in (tmp_path / "kv").rglob("*.kv"):
            file.write_bytes(b"rubbish")
        result = await cluster.generate(prompt, 4)
        assert (result.tokens, result.hit_tokens, result.recomputed_blocks) == (expected_tokens(spec, prompt, 4), 40, 0)


@pytest.mark.parametrize("rates", [dict.fromkeys(FAULTS, 0.05), *({fault: 1.0} for fault in FAULTS)], ids=str)
async def test_tiers_over_a_faulty_store_agree_and_end(tmp_path, rates):
    query = "&".join(f"{name}={rate}" for name, rate in {**rates, "seed": 7, "delay_s": 0.01}.items())
    spec = small_spec(
        tmp_path,
        storage__url=f"faulty+file://{tmp_path / 'kv'}?{query}",
        storage__read_deadline_s=0.2,
        storage__write_deadline_s=0.2,
        storage__dram_bytes=20 * 3 * 8 * 10 * 4,
    )
    async with running(spec) as cluster:
        async with asyncio.timeout(60):
            await asyncio.gather(*(conversation(cluster, seed) for seed in range(4)))
        await _end(cluster)


async def test_a_scheduler_that_restarts_hears_again_what_is_in_memory(tmp_path):
    spec = small_spec(tmp_path, storage__dram_bytes=PLENTY)
    prompt = random_prompt(45)
    async with running(spec) as cluster:
        await cluster.generate(prompt, 1)
        await cluster.quiet()
        await cluster.server.close()
        again = SchedulerServer(spec, bind=cluster.address)
        await again.start()
        try:
            await cluster.client.wait_ready(1, 1, deadline_s=20)
            await asyncio.sleep(spec.scheduling.lease_s / 2)  # the next report, at the latest
            result = await cluster.generate(prompt, 1)
            await cluster.quiet()
        finally:
            await again.close()
        assert (result.prefill_side_blocks, result.decode_side_blocks) == (0, 5)
        assert [_read(cluster, name)[0] for name in ("prefill-0", "decode-0")] == [0, 0]


async def test_a_tier_that_holds_no_block_is_refused(tmp_path):
    spec = small_spec(tmp_path, storage__dram_bytes=100)
    with pytest.raises(StoreError, match="dram_bytes is 100: expected 0, no DRAM tier, or at least one block"):
        async with node_services(spec, build_engine(spec, "prefill"), bind="127.0.0.1:0"):
            pass
