"""What a cluster must do with any store."""

from dualpath_configs import ClusterSpec
from tests.cluster.harness import running
from tests.cluster.oracle import expected_tokens, random_prompt


async def check_a_second_turn_hits(spec: ClusterSpec) -> tuple[int, int]:
    """It agrees, and hits all full blocks of the first; returns the bytes that were read, and those of hit blocks."""
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
    return read, stored * block_bytes


async def check_a_later_cluster_hits(spec: ClusterSpec) -> None:
    """What one cluster stored is there for the next."""
    prompt = random_prompt(45)
    for hit_tokens in (0, 40):
        async with running(spec) as cluster:
            result = await cluster.generate(prompt, 5)
            await cluster.quiet()
        assert result.tokens == expected_tokens(spec, prompt, 5)
        assert result.hit_tokens == hit_tokens


async def check_bad_reads_are_computed_again(spec: ClusterSpec, *, turns: int) -> None:
    """On a faulty store every turn agrees."""
    async with running(spec) as cluster:
        for turn in range(turns):
            prompt = random_prompt(100, seed=turn // 3)
            result = await cluster.generate(prompt, 5)
            await cluster.quiet()
            assert result.tokens == expected_tokens(spec, prompt, 5)
