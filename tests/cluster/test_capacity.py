"""Stores that fill up: fewer hits, the same tokens, no errors."""

import asyncio
import contextlib
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from dualpath_storage.block_format import HEADER_BYTES
from tests.cluster.harness import Cluster, running, small_spec
from tests.cluster.oracle import expected_tokens, random_prompt
from tests.cluster.test_faults import conversation

SIZE = HEADER_BYTES + 3 * 8 * 10 * 4


def _stored(folder: Path) -> set[str]:
    return {path.stem for path in folder.rglob("*.kv")}


async def _settled(cluster: Cluster, folder: Path, most: int) -> set[str]:
    """What is stored once eviction has come to rest: `most` blocks or fewer, as many as the index has."""
    async with asyncio.timeout(10):
        while True:
            stored = _stored(folder)
            if len(stored) == (await cluster.client.describe()).indexed_blocks <= most:
                return stored
            await asyncio.sleep(0.05)


@pytest.mark.parametrize("dram_blocks", [0, 6])
@pytest.mark.parametrize("blocks", [1, 12, 40])
async def test_stores_of_any_capacity_agree(tmp_path, blocks, dram_blocks):
    spec = small_spec(
        tmp_path, storage__capacity_bytes=blocks * SIZE, storage__dram_bytes=dram_blocks * (SIZE - HEADER_BYTES)
    )
    async with running(spec) as cluster:
        await asyncio.gather(*(conversation(cluster, seed) for seed in range(6)))
        await cluster.quiet()
        await _settled(cluster, tmp_path / "kv", blocks)
        described = await cluster.client.describe()
        stats = [node.services.arena.stats for node in cluster.nodes.values()]
        assert described.evicted_blocks > 0
    assert [(s.reserved, s.quarantined) for s in stats] == [(0, 0)] * 2


async def test_what_is_left_after_eviction_is_still_hit(tmp_path):
    spec = small_spec(tmp_path, storage__capacity_bytes=20 * SIZE)
    old, young = random_prompt(100), random_prompt(100, seed=1)
    async with running(spec) as cluster:
        for prompt in (old, young):
            await cluster.generate(prompt, 1)
            await cluster.quiet()
        await _settled(cluster, tmp_path / "kv", 17)
        again = await cluster.generate(young, 3)
        before = await cluster.generate(old, 3)
    assert (again.tokens, again.hit_tokens) == (expected_tokens(spec, young, 3), 96)
    assert (before.tokens, before.hit_tokens) == (expected_tokens(spec, old, 3), 40)
    assert again.recomputed_blocks == before.recomputed_blocks == 0


async def test_blocks_expire(tmp_path):
    spec = small_spec(tmp_path, storage__time_to_live_s=0.5)
    async with running(spec) as cluster:
        await cluster.generate(random_prompt(100), 1)
        await cluster.quiet()
        assert await _settled(cluster, tmp_path / "kv", 0) == set()
        result = await cluster.generate(random_prompt(100), 3)
    assert (result.tokens, result.hit_tokens) == (expected_tokens(spec, random_prompt(100), 3), 0)


async def test_a_store_that_was_filled_by_others_is_brought_below_the_capacity(tmp_path):
    async with running(small_spec(tmp_path)) as cluster:
        await asyncio.gather(*(conversation(cluster, seed) for seed in range(4)))
        await cluster.quiet()
    assert len(_stored(tmp_path / "kv")) > 30
    async with running(small_spec(tmp_path, storage__capacity_bytes=30 * SIZE)) as cluster:
        await _settled(cluster, tmp_path / "kv", 26)
        await conversation(cluster, 0)


async def test_a_store_that_cannot_delete_keeps_its_blocks_and_the_cluster_serves(tmp_path, monkeypatch):
    def refuse(medium: object, key: bytes) -> None:
        raise OSError(30, "Read-only file system")

    monkeypatch.setattr("dualpath_storage.posix.PosixMedium.delete", refuse)
    spec = small_spec(tmp_path, storage__capacity_bytes=10 * SIZE)
    async with running(spec) as cluster:
        await conversation(cluster, 0)
        await cluster.quiet()
        await asyncio.sleep(0.3)
        described = await cluster.client.describe()
        assert described.indexed_blocks == len(_stored(tmp_path / "kv")) > 10
        assert described.evicted_blocks == 0


@contextlib.contextmanager
def _tmpfs(folder: Path, size: str) -> Iterator[None]:
    """A small file system; whoever may not mount one cannot run these tests."""
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(folder)]
    mounted = subprocess.run(command, capture_output=True, text=True, check=False)
    if mounted.returncode:
        pytest.skip(f"a tmpfs cannot be mounted here: {mounted.stderr.strip()}")
    try:
        yield
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)


@pytest.mark.skipif(os.geteuid() != 0, reason="mounting a file system needs root")
@pytest.mark.parametrize("capacity_bytes", [None, 60_000_000, 15_000_000])
async def test_a_file_system_of_20_megabytes(tmp_path, capacity_bytes):
    """More is written than it holds: without a capacity, with one that is too high, and with a good one."""
    with _tmpfs(tmp_path / "small", "20m"):
        spec = small_spec(
            tmp_path,
            storage__url=f"file://{tmp_path / 'small' / 'kv'}",
            storage__capacity_bytes=capacity_bytes,
            model__kv_lora_rank=510,
            host_buffer_blocks=256,
        )
        async with running(spec) as cluster:
            for first in range(0, 24, 8):
                prompts = [random_prompt(245, seed=seed) for seed in range(first, first + 8)]
                results = await asyncio.gather(*(cluster.generate(prompt, 3) for prompt in prompts))
                assert [result.tokens for result in results] == [expected_tokens(spec, p, 3) for p in prompts]
                await cluster.quiet()
            again = await cluster.generate(prompts[-1], 3)
            assert again.tokens == expected_tokens(spec, prompts[-1], 3)
            dropped = cluster.nodes["decode-0"].stats.dropped_blocks
            evicted = (await cluster.client.describe()).evicted_blocks
    assert (dropped > 0) == (capacity_bytes != 15_000_000)
    assert (evicted > 0) == (capacity_bytes is not None)
