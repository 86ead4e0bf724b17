"""The policies beyond the paper on real nodes: what they decide is done, and no token changes."""

from dualpath_scheduler.service import scheduler_pb2 as pb
from tests.cluster.harness import Cluster, running, small_spec
from tests.cluster.oracle import expected_tokens, random_prompt

SLOW = 20_000.0
"""Bytes a second; a burst lets through at once what these tests read."""


async def second_turn(cluster: Cluster):
    """The turn after one of 45 and 5 tokens, once that is stored: 6 blocks are hit."""
    prompt = random_prompt(45)
    first = await cluster.generate(prompt, 5)
    await cluster.quiet()
    prompt = [*prompt, *first.tokens, *random_prompt(10, seed=1)]
    second = await cluster.generate(prompt, 5)
    assert second.tokens == expected_tokens(cluster.spec, prompt, 5)
    return second


async def test_a_split_reads_on_both_sides(tmp_path):
    spec = small_spec(tmp_path, scheduling__read_plan="split", network__snic_bytes_per_s=SLOW)
    async with running(spec) as cluster:
        turn = await second_turn(cluster)
        read = [node.services.traffic.stats().snic_read_bytes for node in cluster.nodes.values()]
    assert (turn.hit_tokens, turn.prefill_side_blocks, turn.decode_side_blocks) == (48, 3, 3)
    assert read[0] == read[1] > 0


async def test_what_is_computed_sooner_is_not_loaded(tmp_path):
    spec = small_spec(tmp_path, scheduling__load_or_recompute=True, network__snic_bytes_per_s=SLOW)
    async with running(spec) as cluster:
        turn = await second_turn(cluster)
        read = [node.services.traffic.stats().snic_read_bytes for node in cluster.nodes.values()]
    assert (turn.hit_tokens, turn.recomputed_blocks) == (0, 0)
    assert read == [0, 0]


async def test_what_is_loaded_sooner_is_not_computed(tmp_path):
    spec = small_spec(tmp_path, scheduling__load_or_recompute=True, engine__fake_seconds_per_token=0.001)
    async with running(spec) as cluster:
        assert (await second_turn(cluster)).hit_tokens == 48


async def test_a_session_returns_to_the_node_that_holds_its_kv(tmp_path):
    spec = small_spec(tmp_path, decode_nodes=2, scheduling__decode_affinity=1.0, storage__dram_bytes=1_000_000)
    async with running(spec) as cluster:
        prompts = [random_prompt(45), random_prompt(45, seed=7)]
        first = [await cluster.generate(prompt, 5) for prompt in prompts]
        assert [turn.decode_node for turn in first] == ["decode-0", "decode-0"]  # nothing is held anywhere
        await cluster.quiet()
        # Another session makes that node's queue the longer one, by less than a turn of the first one holds.
        busy = cluster.client.generate(pb.GenerateRequest(tokens=random_prompt(3), max_tokens=20), deadline_s=60)
        await anext(busy)
        prompt = [*prompts[0], *first[0].tokens, *random_prompt(10, seed=1)]
        second = await cluster.generate(prompt, 5)
        assert [event async for event in busy][-1].finished.decode_node == "decode-0"
    assert second.decode_node == "decode-0"
    assert second.tokens == expected_tokens(spec, prompt, 5)
