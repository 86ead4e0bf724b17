"""A cluster whose storage is an S3 server."""

import time

import numpy as np
import pytest
import tensorstore

from dualpath_storage import BlockWrite, KVLayout, Status, StoreError
from dualpath_storage.object_store import ObjectStore
from tests.cluster.harness import running, small_spec
from tests.cluster.oracle import expected_tokens, random_prompt
from tests.cluster.stores import (
    check_a_later_cluster_hits,
    check_a_second_turn_hits,
    check_bad_reads_are_computed_again,
)
from tests.seaweedfs import SeaweedFS, running_seaweedfs


async def test_two_turns_hit_what_is_in_s3_and_agree(tmp_path, seaweedfs: SeaweedFS):
    read_bytes, hit_bytes = await check_a_second_turn_hits(small_spec(tmp_path, storage__url=seaweedfs.url()))
    assert read_bytes == hit_bytes


async def test_a_cluster_that_starts_later_finds_the_blocks(tmp_path, seaweedfs: SeaweedFS):
    await check_a_later_cluster_hits(small_spec(tmp_path, storage__url=seaweedfs.url()))


async def test_damaged_and_failing_reads_of_s3_are_computed_again(tmp_path, seaweedfs: SeaweedFS):
    url = f"faulty+{seaweedfs.url()}&flip=0.3&error=0.2&lose=0.1&seed=3"
    await check_bad_reads_are_computed_again(small_spec(tmp_path, storage__url=url), turns=6)


async def test_a_bucket_that_does_not_exist_is_said_before_anything_serves(tmp_path, seaweedfs: SeaweedFS):
    spec = small_spec(tmp_path, storage__url=f"s3://nosuchbucket/p?endpoint={seaweedfs.endpoint}")
    with pytest.raises(StoreError, match="bucket 'nosuchbucket' is not at endpoint"):
        async with running(spec):
            pass


async def fill(url: str) -> None:
    """Write until the server takes no more. It says so by an error, again and again, until the writes' deadline."""
    layout = KVLayout.mla(layers=1, latent=1 << 18, rope=1 << 18, dtype="uint8", block_tokens=4)
    store, data, random = ObjectStore(url, layout), memoryview(bytes(layout.block_bytes)), np.random.default_rng(0)
    for _ in range(4):
        start = time.monotonic()
        writes = [BlockWrite(random.bytes(32), bytes(32), b"", data) for _ in range(8)]
        results = await store.put(writes, deadline_s=1.5)
        assert time.monotonic() - start < 2.5
        if not any(result.ok for result in results):
            assert {result.status for result in results} <= {Status.FAILED, Status.TIMED_OUT}
            assert any("InternalError" in result.detail for result in results)
            break
    else:
        pytest.fail("the server is not full")
    await store.close()


async def test_a_server_that_is_full_costs_hits_and_nothing_else(tmp_path, s3_credentials: None):
    prompt = random_prompt(45)
    with running_seaweedfs(room_bytes=8 << 20) as server:
        url = server.url()
        async with running(small_spec(tmp_path, storage__url=url)) as cluster:
            await cluster.generate(prompt, 1)
            await cluster.quiet()
        await fill(server.url())
        async with running(small_spec(tmp_path, storage__url=url, storage__write_deadline_s=0.5)) as cluster:
            longer = [*prompt, *random_prompt(40, seed=1)]
            for _ in range(2):
                result = await cluster.generate(longer, 5)
                await cluster.quiet()
                assert result.tokens == expected_tokens(cluster.spec, longer, 5)
                assert (result.hit_tokens, result.attempts) == (40, 1)
            assert sum(node.stats.dropped_blocks for node in cluster.nodes.values()) == 2 * ((85 + 4) // 8 - 5)


async def test_what_a_tier_holds_asks_nothing_of_s3(tmp_path, seaweedfs: SeaweedFS):
    one_path = {"mode__dual_path": False, "mode__scheduling": False}  # reads are the prefill node's
    spec = small_spec(tmp_path, storage__url=seaweedfs.url(), storage__dram_bytes=1 << 24, **one_path)
    prompt, requests = random_prompt(45), []
    async with running(spec) as cluster:
        await cluster.generate(prompt, 1)
        await cluster.quiet()
        for _ in range(3):
            requests.append(s3_reads())
            result = await cluster.generate(prompt, 1)
            await cluster.quiet()
            assert (result.tokens, result.hit_tokens) == (expected_tokens(spec, prompt, 1), 40)
        requests.append(s3_reads())
    made = np.diff(requests)
    assert made[0] >= 5
    assert list(made[1:]) == [0, 0]


def s3_reads() -> int:
    """Reads of S3 that TensorStore has made in this process."""
    name = "/tensorstore/kvstore/s3/read"
    (count,) = [each for each in tensorstore.experimental_collect_matching_metrics(name) if each["name"] == name]
    return int(count["values"][0]["value"])
