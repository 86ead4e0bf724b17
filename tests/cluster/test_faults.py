"""Damaged, missing and late blocks: the usable prefix ends there, the rest is recomputed, the tokens are the same."""

import asyncio
from pathlib import Path

import pytest

from dualpath_scheduler import policy
from dualpath_scheduler.policy import ReadPlan
from dualpath_storage.keys import KVIdentity, chain_keys
from dualpath_storage.medium_store import MediumStore
from dualpath_storage.store import StoreError
from tests.cluster.harness import Cluster, running, small_spec
from tests.cluster.oracle import expected_tokens, random_prompt

PROMPT = random_prompt(61)  # seven full blocks of eight, and five tokens


def _block_file(cluster: Cluster, block: int) -> Path:
    """The file of a block of PROMPT."""
    identity: KVIdentity = cluster.nodes["decode-0"].services.engine.identity
    key = chain_keys(identity.root(), PROMPT, 8)[block]
    folder = Path(cluster.spec.storage.url.removeprefix("file://"))
    (file,) = [path for path in folder.rglob("*") if path.is_file() and path.stem == key.hex()]
    return file


def _flip(file: Path) -> None:
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 1
    file.write_bytes(data)


def _truncate(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:-10])


def _remove(file: Path) -> None:
    file.unlink()


def _swap(file: Path) -> None:
    other = next(path for path in file.parents[1].rglob(f"*{file.suffix}") if path.is_file() and path != file)
    file.write_bytes(other.read_bytes())


@pytest.mark.parametrize("damage", [_flip, _truncate, _remove, _swap])
@pytest.mark.parametrize("own", [0, 3, 7])
@pytest.mark.parametrize("block", [0, 2, 6])
async def test_a_bad_block_ends_the_usable_prefix(tmp_path, monkeypatch, damage, own, block):
    monkeypatch.setattr(
        policy, "read_plan_for", lambda *_: lambda s: ReadPlan(min(own, s.hit_blocks), max(0, s.hit_blocks - own))
    )
    spec = small_spec(tmp_path, host_buffer_blocks=32)
    async with running(spec) as cluster:
        await cluster.generate(PROMPT, 1)
        await cluster.quiet()
        damage(_block_file(cluster, block))
        hurt = await cluster.generate(PROMPT, 5)
        await cluster.quiet()
        healed = await cluster.generate(PROMPT, 5)
        await cluster.quiet()
        stats = [node.services.arena.stats for node in cluster.nodes.values()]
    expected = expected_tokens(spec, PROMPT, 5)
    assert (hurt.tokens, healed.tokens) == (expected, expected)
    assert (hurt.hit_tokens, hurt.recomputed_blocks, hurt.attempts) == (8 * block, 7 - block, 1)
    assert (healed.hit_tokens, healed.recomputed_blocks) == (56, 0)
    assert [(s.free, s.reserved, s.quarantined) for s in stats] == [(32, 0, 0)] * 2


async def test_one_bad_block_hurts_one_request(tmp_path):
    spec = small_spec(tmp_path)
    other = random_prompt(80, seed=5)
    async with running(spec) as cluster:
        await asyncio.gather(cluster.generate(PROMPT, 1), cluster.generate(other, 1))
        await cluster.quiet()
        _flip(_block_file(cluster, 1))
        hurt, whole = await asyncio.gather(cluster.generate(PROMPT, 5), cluster.generate(other, 5))
    assert hurt.tokens == expected_tokens(spec, PROMPT, 5)
    assert whole.tokens == expected_tokens(spec, other, 5)
    assert (hurt.recomputed_blocks, whole.recomputed_blocks, whole.hit_tokens) == (6, 0, 72)


async def test_a_damaged_block_that_cannot_be_deleted_is_recomputed(tmp_path, monkeypatch):
    async def refuse(store: MediumStore, keys: list[bytes]) -> None:
        raise StoreError("the disk is read-only")

    spec = small_spec(tmp_path)
    async with running(spec) as cluster:
        await cluster.generate(PROMPT, 1)
        await cluster.quiet()
        _flip(_block_file(cluster, 3))
        monkeypatch.setattr(MediumStore, "delete", refuse)
        hurt = await cluster.generate(PROMPT, 5)
    assert hurt.tokens == expected_tokens(spec, PROMPT, 5)
    assert (hurt.recomputed_blocks, hurt.attempts) == (4, 1)


FAULTS = ("delay", "hang", "error", "truncate", "flip", "swap", "lose")


async def conversation(cluster: Cluster, seed: int) -> int:
    """Six turns that must agree; returns the blocks that did not load, attempts that were given up included."""
    history: list[int] = []
    lost = 0
    for turn in range(6):
        append = random_prompt(14, seed=100 * seed + turn)
        result = await cluster.generate([*history, *append], 7)
        assert result.tokens == expected_tokens(cluster.spec, [*history, *append], 7)
        history += [*append, *result.tokens]
        lost += result.recomputed_blocks + result.attempts - 1
    return lost


@pytest.mark.parametrize("rates", [dict.fromkeys(FAULTS, 0.05), *({fault: 1.0} for fault in FAULTS)], ids=str)
async def test_sessions_on_a_faulty_store_agree_and_end(tmp_path, rates):
    async with running(small_spec(tmp_path)) as cluster:
        await asyncio.gather(*(conversation(cluster, seed) for seed in range(4)))
        await cluster.quiet()
    query = "&".join(f"{name}={rate}" for name, rate in {**rates, "seed": 7, "delay_s": 0.01}.items())
    spec = small_spec(
        tmp_path,
        storage__url=f"faulty+file://{tmp_path / 'kv'}?{query}",
        storage__read_deadline_s=0.2,
        storage__write_deadline_s=0.2,
    )
    async with running(spec) as cluster:
        async with asyncio.timeout(60):
            lost = await asyncio.gather(*(conversation(cluster, seed) for seed in range(4)))
        await cluster.quiet()
        stats = [node.services.arena.stats for node in cluster.nodes.values()]
    assert [(s.reserved, s.quarantined) for s in stats] == [(0, 0)] * 2
    if rates not in ({"delay": 1.0}, {"lose": 1.0}):  # what is there already is not lost by losing writes
        assert sum(lost) > 0, "no fault struck"
