"""A cluster whose blocks are in a Mooncake Store, to which its nodes lend memory."""

import pytest

from tests.cluster.harness import running, small_spec
from tests.cluster.oracle import expected_tokens, random_prompt
from tests.mooncake import Mooncake


@pytest.mark.long  # each node's segment takes a second to close
async def test_two_turns_hit_what_nodes_lent_memory_for_and_agree(tmp_path, mooncake: Mooncake):
    spec = small_spec(tmp_path, storage__url=mooncake.url(segment_bytes=32 << 20))
    async with running(spec) as cluster:
        prompt = random_prompt(45)
        first = await cluster.generate(prompt, 9)
        await cluster.quiet()
        longer = [*prompt, *first.tokens, *random_prompt(11, seed=1)]
        second = await cluster.generate(longer, 9)
    stored = (45 + 9 - 1) // 8
    assert first.tokens == expected_tokens(spec, prompt, 9)
    assert second.tokens == expected_tokens(spec, longer, 9)
    assert (first.hit_tokens, second.hit_tokens) == (0, 8 * stored)


async def test_damaged_and_failing_reads_are_computed_again(tmp_path, mooncake: Mooncake):
    spec = small_spec(tmp_path, storage__url=f"faulty+{mooncake.url()}&flip=0.3&error=0.2&lose=0.1&seed=3")
    async with running(spec) as cluster:
        for turn in range(4):
            prompt = random_prompt(100, seed=turn // 3)
            result = await cluster.generate(prompt, 5)
            await cluster.quiet()
            assert result.tokens == expected_tokens(spec, prompt, 5)


async def test_a_cluster_that_starts_later_finds_what_other_nodes_hold(tmp_path, mooncake: Mooncake):
    spec, prompt = small_spec(tmp_path, storage__url=mooncake.url()), random_prompt(45)
    for hit_tokens in (0, 40):
        async with running(spec) as cluster:
            result = await cluster.generate(prompt, 5)
            await cluster.quiet()
        assert result.tokens == expected_tokens(spec, prompt, 5)
        assert result.hit_tokens == hit_tokens
