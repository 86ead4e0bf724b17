"""Agreement of whole clusters on the Flax engine with the no-cache reference, on every path that KV can take."""

import asyncio
import itertools
from collections.abc import Iterator

import jax
import pytest
from jax.experimental.compilation_cache import compilation_cache

from dualpath_jax.engine.flax_engine import keep_compiled_programs
from dualpath_scheduler import policy
from dualpath_scheduler.policy import ReadPlan, ReadSnapshot
from tests.cluster.flax_cluster import BLOCK, Asked, check, flax_spec, prompt
from tests.cluster.harness import Cluster, running

LAYERS = 3
ENGINES = (1, 2, 4)


@pytest.fixture(autouse=True, scope="module")
def compiled_once(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Clusters of one shape share their compiled programs."""
    keys = (
        "jax_compilation_cache_dir",
        "jax_persistent_cache_min_compile_time_secs",
        "jax_persistent_cache_min_entry_size_bytes",
    )
    before = {key: getattr(jax.config, key) for key in keys}
    keep_compiled_programs(tmp_path_factory.mktemp("programs"))
    yield
    for key, value in before.items():
        jax.config.update(key, value)
    compilation_cache.reset_cache()


class Split:
    """A read plan that gives the first `own` hit blocks to the prefill side."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.own = 0
        monkeypatch.setattr(policy, "read_plan_for", lambda *_: self.plan)

    def plan(self, snapshot: ReadSnapshot) -> ReadPlan:
        own = min(self.own, snapshot.hit_blocks)
        return ReadPlan(own, snapshot.hit_blocks - own)


async def _ask(cluster: Cluster, tokens: list[int], count: int) -> Asked:
    return Asked(tokens, await cluster.generate(tokens, count))


async def _read_bytes(cluster: Cluster) -> dict[str, int]:
    return {name: node.services.traffic.stats().snic_read_bytes for name, node in cluster.nodes.items()}


@pytest.mark.parametrize(("layers_per_group", "read_order"), [(1, "blocks"), (2, "layers"), (LAYERS, "blocks")])
async def test_every_split_of_the_reads_gives_the_same_bits_and_agrees(
    tmp_path, monkeypatch, layers_per_group, read_order
):
    split = Split(monkeypatch)
    spec = flax_spec(tmp_path, scheduling__layers_per_group=layers_per_group, scheduling__read_order=read_order)
    tokens, hit_blocks = prompt(1, 45), 5
    async with running(spec) as cluster:
        cold = await _ask(cluster, tokens, 12)
        await cluster.quiet()
        block_bytes = cluster.nodes["prefill-0"].services.engine.layout.block_bytes
        warm, reads = [], [await _read_bytes(cluster)]
        for split.own in range(hit_blocks + 1):
            warm.append(await _ask(cluster, tokens, 12))
            await cluster.quiet()
            reads.append(await _read_bytes(cluster))
    check(spec, [cold, *warm])
    assert [one.result.hit_tokens for one in warm] == [hit_blocks * BLOCK] * (hit_blocks + 1)
    for own, (before, after) in enumerate(itertools.pairwise(reads)):
        read = {name: after[name] - before[name] for name in after}
        assert read == {"prefill-0": own * block_bytes, "decode-0": (hit_blocks - own) * block_bytes}
    # The same bytes went into the same program, wherever they came from.
    assert [one.result.choices for one in warm] == [warm[0].result.choices] * len(warm)


async def test_both_orders_of_reading_give_the_same_bits(tmp_path, monkeypatch):
    split = Split(monkeypatch)
    split.own, tokens, results = 2, prompt(1, 45), []
    for order in ("blocks", "blocks", "layers"):
        spec = flax_spec(tmp_path, scheduling__layers_per_group=1, scheduling__read_order=order)
        async with running(spec) as cluster:
            results.append(await cluster.generate(tokens, 12))
            await cluster.quiet()
    assert [result.hit_tokens for result in results] == [0, 5 * BLOCK, 5 * BLOCK]
    assert results[1].choices == results[2].choices


@pytest.mark.parametrize("engines", ENGINES)
async def test_many_requests_at_once_in_chunks_agree(tmp_path, engines):
    spec = flax_spec(tmp_path, engines_per_node=engines)
    lengths = [1, 7, 8, 9, 31, 32, 33, 64, 90, 100, 17, 50]
    prompts = [prompt(10 + i, length) for i, length in enumerate(lengths)]
    async with running(spec) as cluster:
        cold = await asyncio.gather(*(_ask(cluster, tokens, 5 + i % 4) for i, tokens in enumerate(prompts)))
        await cluster.quiet()
        longer = [[*one.prompt, *one.result.tokens, *prompt(30 + i, 3)] for i, one in enumerate(cold)]
        warm = await asyncio.gather(*(_ask(cluster, tokens, 4) for tokens in longer))
    check(spec, [*cold, *warm])
    assert {one.result.prefill_engine for one in cold} == set(range(engines))
    assert {one.result.decode_engine for one in cold} == set(range(engines))
    for before, after in zip(cold, warm, strict=True):
        assert after.result.hit_tokens == (len(before.prompt) + len(before.result.tokens) - 1) // BLOCK * BLOCK


async def test_a_session_of_many_turns_over_a_full_restart_agrees(tmp_path):
    spec = flax_spec(tmp_path)
    history: list[int] = []
    asked = []
    for life in range(2):
        async with running(spec) as cluster:
            for turn in range(6):
                tokens = [*history, *prompt(100 * life + turn, 4 + turn)]
                one = await _ask(cluster, tokens, 3)
                await cluster.quiet()
                assert one.result.hit_tokens == max(0, len(history) - 1) // BLOCK * BLOCK
                asked.append(one)
                history = [*tokens, *one.result.tokens]
            read = sum((await _read_bytes(cluster)).values())
            assert read > 0
    check(spec, asked)


async def test_blocks_in_memory_agree_and_cost_storage_nothing(tmp_path):
    spec = flax_spec(tmp_path, storage__dram_bytes=2**20)
    tokens = prompt(3, 60)
    async with running(spec) as cluster:
        cold = await _ask(cluster, tokens, 8)
        await cluster.quiet()
        warm = [await _ask(cluster, tokens, 8), await _ask(cluster, [*tokens, *cold.result.tokens, 5], 8)]
        await cluster.quiet()
        from_memory = sum(node.services.traffic.stats().memory_read_bytes for node in cluster.nodes.values())
        block_bytes = cluster.nodes["decode-0"].services.engine.layout.block_bytes
        assert sum((await _read_bytes(cluster)).values()) == 0  # the decode node wrote them and reads them
    check(spec, [cold, *warm])
    assert [one.result.hit_tokens for one in warm] == [56, 64]
    assert from_memory == (7 + 8) * block_bytes


async def test_bfloat16_kv_agrees_within_its_own_epsilon(tmp_path):
    """With dense layers only: which experts a token goes to is not continuous in KV that is rounded."""
    dense = {"model__num_hidden_layers": 2, "model__first_k_dense_replace": 2, "model__kv_dtype": "bfloat16"}
    spec = flax_spec(tmp_path, **dense)
    tokens = prompt(2, 70)
    async with running(spec) as cluster:
        cold = await _ask(cluster, tokens, 8)
        await cluster.quiet()
        warm = await _ask(cluster, tokens, 8)
    check(spec, [cold, warm])
    assert warm.result.hit_tokens == 64
