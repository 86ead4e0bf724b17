"""A cluster whose storage is an S3 server."""

import pytest

from dualpath_storage import StoreError
from tests.cluster.harness import running, small_spec
from tests.cluster.oracle import expected_tokens, random_prompt
from tests.seaweedfs import SeaweedFS


async def test_two_turns_hit_what_is_in_s3_and_agree(tmp_path, seaweedfs: SeaweedFS):
    spec = small_spec(tmp_path, storage__url=seaweedfs.url())
    async with running(spec) as cluster:
        prompt = random_prompt(45)
        first = await cluster.generate(prompt, 9)
        await cluster.quiet()
        longer = [*prompt, *first.tokens, *random_prompt(11, seed=1)]
        second = await cluster.generate(longer, 9)
        read = sum(node.services.traffic.stats().snic_read_bytes for node in cluster.nodes.values())
        block_bytes = cluster.nodes["prefill-0"].services.engine.layout.block_bytes
    stored = (45 + 9 - 1) // 8
    assert first.tokens == expected_tokens(spec, prompt, 9)
    assert second.tokens == expected_tokens(spec, longer, 9)
    assert (first.hit_tokens, second.hit_tokens) == (0, 8 * stored)
    assert read == stored * block_bytes


async def test_a_cluster_that_starts_later_finds_the_blocks(tmp_path, seaweedfs: SeaweedFS):
    spec, prompt = small_spec(tmp_path, storage__url=seaweedfs.url()), random_prompt(45)
    for hit_tokens in (0, 40):
        async with running(spec) as cluster:
            result = await cluster.generate(prompt, 5)
            await cluster.quiet()
        assert result.tokens == expected_tokens(spec, prompt, 5)
        assert result.hit_tokens == hit_tokens


async def test_damaged_and_failing_reads_of_s3_are_computed_again(tmp_path, seaweedfs: SeaweedFS):
    url = seaweedfs.url()
    spec = small_spec(tmp_path, storage__url=f"faulty+{url}&flip=0.3&error=0.2&lose=0.1&seed=3")
    async with running(spec) as cluster:
        for turn in range(6):
            prompt = random_prompt(100, seed=turn // 3)
            result = await cluster.generate(prompt, 5)
            await cluster.quiet()
            assert result.tokens == expected_tokens(spec, prompt, 5)


async def test_a_bucket_that_does_not_exist_is_said_before_anything_serves(tmp_path, seaweedfs: SeaweedFS):
    spec = small_spec(tmp_path, storage__url=f"s3://nosuchbucket/p?endpoint={seaweedfs.endpoint}")
    with pytest.raises(StoreError, match="bucket 'nosuchbucket' is not at endpoint"):
        async with running(spec):
            pass
