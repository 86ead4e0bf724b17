"""Blocks that are read a layer group at a time: prefill begins before the last group, and nothing else changes."""

import asyncio
from pathlib import Path

import pytest

from dualpath_jax.cluster import prefill_node
from dualpath_jax.cluster.joining import JoiningRule
from dualpath_jax.transfer import TrafficManager
from dualpath_scheduler import policy
from dualpath_scheduler.policy import ReadPlan
from dualpath_storage.block_format import HEADER_BYTES
from dualpath_storage.keys import chain_keys
from tests.cluster.harness import Cluster, running, small_spec
from tests.cluster.oracle import expected_tokens, random_prompt
from tests.cluster.test_faults import FAULTS, conversation

PROMPT = random_prompt(61)  # seven full blocks of eight, and five tokens
BLOCKS = 7
LAYERS = 3
SIDES = (0, 3, 7)  # blocks that the prefill side reads
SLOW = {  # a third of a second for PROMPT on either card, and a tenth to compute it
    "network__snic_bytes_per_s": 20e3,
    "network__burst_bytes": 1,
    "engine__fake_seconds_per_token": 0.001,
}


@pytest.fixture(params=SIDES)
def own(request, monkeypatch):
    """Blocks that the prefill side reads; the others are the decode side's."""

    def plan(snapshot):
        mine = min(request.param, snapshot.hit_blocks)
        return ReadPlan(mine, snapshot.hit_blocks - mine)

    monkeypatch.setattr(policy, "read_plan_for", lambda *_: plan)
    return request.param


def layers_spec(folder, **overrides):
    return small_spec(folder, scheduling__read_order="layers", **overrides)


async def stored(cluster: Cluster) -> None:
    await cluster.generate(PROMPT, 1)
    await cluster.quiet()


async def at_rest(cluster: Cluster) -> None:
    """Every slot is free, nothing is under way, and the accounts of reads are even."""
    await cluster.quiet()
    for node in cluster.nodes.values():
        stats = node.services.arena.stats
        assert (stats.reserved, stats.quarantined) == (0, 0)
        assert node.queues().read_q_tokens == 0
        assert node.services.traffic._storage._ahead.in_flight_bytes == 0


def read_bytes(cluster: Cluster) -> dict[str, int]:
    return {name: node.services.traffic.stats().snic_read_bytes for name, node in cluster.nodes.items()}


async def test_every_split_gives_the_same_tokens_for_the_same_bytes(tmp_path, own):
    spec = layers_spec(tmp_path)
    async with running(spec) as cluster:
        await stored(cluster)
        before = read_bytes(cluster)
        result = await cluster.generate(PROMPT, 6)
        await at_rest(cluster)
        after = read_bytes(cluster)
        block_bytes = cluster.nodes["prefill-0"].services.engine.layout.block_bytes
    assert result.tokens == expected_tokens(spec, PROMPT, 6)
    assert (result.hit_tokens, result.recomputed_blocks, result.attempts) == (8 * BLOCKS, 0, 1)
    read = {name: (after[name] - before[name]) // block_bytes for name in after}
    assert read == {"prefill-0": own, "decode-0": BLOCKS - own}


@pytest.mark.parametrize(
    ("own", "order"), [(0, "layers"), (7, "layers"), (3, "layers"), (3, "blocks")], indirect=["own"]
)
async def test_prefill_begins_before_the_last_layers_have_come(tmp_path, own, order):
    spec = small_spec(tmp_path, scheduling__read_order=order, **SLOW)
    async with running(spec) as cluster:
        await stored(cluster)
        result = await cluster.generate(PROMPT, 1)
        await at_rest(cluster)
    times = result.timings
    assert (times.prefill_start < times.read_end) == (order == "layers")
    assert times.read_end < times.first_token
    assert result.tokens == expected_tokens(spec, PROMPT, 1)


async def test_without_layerwise_prefill_blocks_are_read_whole(tmp_path, monkeypatch):
    spec = layers_spec(tmp_path, mode__layerwise=False)
    async with running(spec) as cluster:
        await stored(cluster)
        ranges = _note_ranges(monkeypatch)
        await cluster.generate(PROMPT, 1)
    assert ranges == [None] * BLOCKS


async def test_layers_of_all_blocks_are_asked_for_in_order(tmp_path, monkeypatch):
    spec = layers_spec(tmp_path)
    async with running(spec) as cluster:
        await stored(cluster)
        ranges = _note_ranges(monkeypatch)
        await cluster.generate(PROMPT, 1)
    assert ranges == [(layer, layer + 1) for layer in range(LAYERS) for _ in range(BLOCKS)]


def _note_ranges(monkeypatch) -> list[tuple[int, int] | None]:
    ranges: list[tuple[int, int] | None] = []
    read = TrafficManager.read

    async def noting(traffic, store, reads, **options):
        ranges.extend(one.layers for one in reads)
        return await read(traffic, store, reads, **options)

    monkeypatch.setattr(TrafficManager, "read", noting)
    return ranges


def prompt_keys(cluster: Cluster) -> list[bytes]:
    return chain_keys(cluster.nodes["decode-0"].services.engine.identity.root(), PROMPT, 8)


def block_file(cluster: Cluster, block: int) -> Path:
    key = prompt_keys(cluster)[block]
    folder = Path(cluster.spec.storage.url.removeprefix("file://"))
    (file,) = [path for path in folder.rglob("*") if path.is_file() and path.stem == key.hex()]
    return file


def flip(cluster: Cluster, block: int, layer: int) -> None:
    """Damage one layer of a stored block."""
    file = block_file(cluster, block)
    data = bytearray(file.read_bytes())
    data[HEADER_BYTES + layer * cluster.nodes["decode-0"].services.engine.layout.layer_block_bytes] ^= 1
    file.write_bytes(data)


@pytest.mark.parametrize(("block", "layer"), [(2, 0), (6, 1), (0, 2), (2, 2)])
async def test_a_block_that_is_damaged_in_any_layer_is_computed_again(tmp_path, own, block, layer):
    """In the first layers it is no hit; in later ones, which prefill may have begun without, the attempt ends."""
    spec = layers_spec(tmp_path, host_buffer_blocks=32)
    async with running(spec) as cluster:
        await stored(cluster)
        flip(cluster, block, layer)
        hurt = await cluster.generate(PROMPT, 5)
        await cluster.quiet()
        healed = await cluster.generate(PROMPT, 5)
        await at_rest(cluster)
    expected = expected_tokens(spec, PROMPT, 5)
    assert (hurt.tokens, healed.tokens) == (expected, expected)
    assert (hurt.hit_tokens, hurt.attempts) == (8 * block, 2 if layer else 1)
    assert (healed.hit_tokens, healed.recomputed_blocks, healed.attempts) == (8 * BLOCKS, 0, 1)


@pytest.mark.parametrize("own", [3], indirect=True)
async def test_a_later_layer_that_is_lost_while_prefill_runs_hurts_one_request(tmp_path, own, monkeypatch):
    """Both are in one pass when the last layers of one turn out to be damaged."""
    spec = layers_spec(tmp_path, engines_per_node=1, **SLOW)
    other = random_prompt(40, seed=4)
    monkeypatch.setattr(JoiningRule, "joins", lambda rule, job, alone: True)
    async with running(spec) as cluster:
        await asyncio.gather(cluster.generate(PROMPT, 1), cluster.generate(other, 1))
        await cluster.quiet()
        flip(cluster, 4, LAYERS - 1)
        hurt, whole = await asyncio.gather(cluster.generate(PROMPT, 4), cluster.generate(other, 4))
        await at_rest(cluster)
    assert hurt.tokens == expected_tokens(spec, PROMPT, 4)
    assert whole.tokens == expected_tokens(spec, other, 4)
    assert (hurt.attempts, hurt.hit_tokens, whole.attempts, whole.recomputed_blocks) == (2, 32, 1, 0)


@pytest.mark.parametrize("own", [3], indirect=True)
async def test_cancelled_between_layers_it_gives_everything_back(tmp_path, own, monkeypatch):
    """While some layers have come and some have not, before and after it has joined a pass."""
    spec = layers_spec(tmp_path, **SLOW)
    async with running(spec) as cluster:
        await stored(cluster)
        for joins in (False, True):
            monkeypatch.setattr(JoiningRule, "joins", lambda rule, job, alone, joins=joins: joins)
            request = asyncio.create_task(cluster.generate(PROMPT, 4))
            prefill = cluster.nodes["prefill-0"]
            async with asyncio.timeout(10):
                while not any(job.gathered is not None for job in prefill.jobs):  # noqa: ASYNC110
                    await asyncio.sleep(0.01)
            await asyncio.sleep(0.05)
            (job,) = prefill.jobs
            assert job.gathered.left_s > 0
            request.cancel()
            await asyncio.gather(request, return_exceptions=True)
            await at_rest(cluster)
        monkeypatch.undo()
        again = await cluster.generate(PROMPT, 4)
        await at_rest(cluster)
    assert again.tokens == expected_tokens(spec, PROMPT, 4)


@pytest.mark.parametrize("own", [3], indirect=True)
async def test_a_pass_goes_on_without_one_whose_reads_are_late(tmp_path, own, monkeypatch):
    """It joins again when all of it is there; nobody needs another attempt."""
    spec = layers_spec(tmp_path, engines_per_node=1, scheduling__compute_quota_s=0.05)
    other = random_prompt(40, seed=4)
    late = asyncio.Event()
    read, settled = TrafficManager.read, []

    async def hold_last_layers(traffic, store, reads, **options):
        if reads[0].layers == (LAYERS - 1, LAYERS) and reads[0].key in keys:
            await late.wait()
        return await read(traffic, store, reads, **options)

    settle = prefill_node.PrefillNode._settle

    def note(node, share):
        settled.append((len(share.job.tokens), share.left_behind))
        settle(node, share)

    async with running(spec) as cluster:
        await asyncio.gather(cluster.generate(PROMPT, 1), cluster.generate(other, 1))
        await cluster.quiet()
        keys = prompt_keys(cluster)
        joins = JoiningRule.joins
        monkeypatch.setattr(TrafficManager, "read", hold_last_layers)
        monkeypatch.setattr(
            JoiningRule, "joins", lambda rule, job, alone: joins(rule, job, alone=alone) if job.left_behind else True
        )
        monkeypatch.setattr(prefill_node.PrefillNode, "_settle", note)
        slow = asyncio.create_task(cluster.generate(PROMPT, 4))
        quick = await cluster.generate(other, 4)
        async with asyncio.timeout(10):
            while (len(PROMPT), True) not in settled:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        assert not slow.done()
        late.set()
        result = await slow
        await at_rest(cluster)
    assert quick.tokens == expected_tokens(spec, other, 4)
    assert result.tokens == expected_tokens(spec, PROMPT, 4)
    assert (result.attempts, result.hit_tokens) == (1, 8 * BLOCKS)
    assert settled[-1] == (len(PROMPT), False)


async def test_sessions_on_a_faulty_store_agree_and_end(tmp_path):
    async with running(layers_spec(tmp_path)) as cluster:
        await asyncio.gather(*(conversation(cluster, seed) for seed in range(4)))
        await cluster.quiet()
    query = "&".join(f"{fault}=0.03" for fault in FAULTS)
    deadlines = {"storage__read_deadline_s": 0.2, "storage__write_deadline_s": 0.2}
    spec = layers_spec(tmp_path, storage__url=f"faulty+file://{tmp_path / 'kv'}?{query}&seed=7", **deadlines)
    async with running(spec) as cluster:
        async with asyncio.timeout(60):
            lost = await asyncio.gather(*(conversation(cluster, seed) for seed in range(4)))
        await at_rest(cluster)
    assert sum(lost) > 0, "no fault struck"


async def test_what_lies_in_memory_is_taken_from_there(tmp_path, own):
    spec = layers_spec(tmp_path, storage__dram_bytes=1 << 20)
    async with running(spec) as cluster:
        await stored(cluster)
        result = await cluster.generate(PROMPT, 4)
        await at_rest(cluster)
        block_bytes = cluster.nodes["prefill-0"].services.engine.layout.block_bytes
        read = read_bytes(cluster)
        memory = cluster.nodes["decode-0"].services.traffic.stats().memory_read_bytes
    assert result.tokens == expected_tokens(spec, PROMPT, 4)
    assert (result.hit_tokens, result.attempts) == (8 * BLOCKS, 1)
    assert read == {"prefill-0": own * block_bytes, "decode-0": 0}  # the decode node wrote them
    assert memory == (BLOCKS - own) * block_bytes
