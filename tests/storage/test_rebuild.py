"""The index from self-describing blocks: how long it takes, and that eviction and it stay of one mind."""

import time
from pathlib import Path

import numpy as np
import pytest

from dualpath_storage import PosixStore, PrefixIndex
from dualpath_storage.block_format import BlockFormat
from dualpath_storage.eviction import Eviction
from tests.storage.blocks import FILE_BYTES, LAYOUT, chain, put_all

DEPTH = 50


def fill(folder: Path, count: int) -> list[bytes]:
    """Blocks in chains of `DEPTH`, written as the store would, but for the syncs; returns their keys."""
    blocks, payload = BlockFormat(LAYOUT), memoryview(bytes(LAYOUT.block_bytes))
    raw = np.random.default_rng(0).bytes(32 * count)
    keys = [raw[start : start + 32] for start in range(0, len(raw), 32)]
    for number, key in enumerate(keys):
        parent = keys[number - 1] if number % DEPTH else bytes(32)
        path = folder / key.hex()[:2] / f"{key.hex()}.kv"
        path.write_bytes(blocks.pack_header(key, parent, b"", payload) + payload)
    return keys


async def rebuild_and_evict(folder: Path, count: int) -> float:
    """Seconds of a rebuild; then a tenth is evicted, and a second rebuild finds what the index says."""
    store = PosixStore(folder, LAYOUT)
    keys = fill(folder, count)
    index = PrefixIndex()
    start = time.monotonic()
    assert await index.rebuild(store) == count
    took_s = time.monotonic() - start
    chains = [keys[first : first + DEPTH] for first in range(0, count, DEPTH)]
    assert all(index.longest_prefix(chain) == DEPTH for chain in chains)

    policy = Eviction(index, block_bytes=FILE_BYTES, now_s=0.0, capacity_bytes=count * FILE_BYTES)
    policy.used(keys[count // 2 :], 1.0)
    gone = policy.choose(2.0, set)
    await store.delete([block.key for block in gone])
    policy.deleted(gone, 2.0)
    assert len(gone) == count * 15 // 100
    again = PrefixIndex()
    assert await again.rebuild(store) == len(index) == count - len(gone)
    assert [again.longest_prefix(chain) for chain in chains] == [index.longest_prefix(chain) for chain in chains]
    assert all(index.longest_prefix(chain) == DEPTH for chain in chains[len(chains) // 2 :])
    await store.close()
    return took_s


async def test_five_thousand_blocks(tmp_path: Path) -> None:
    assert await rebuild_and_evict(tmp_path / "store", 5000) < 2


@pytest.mark.long
async def test_a_hundred_thousand_blocks(tmp_path: Path) -> None:
    took_s = await rebuild_and_evict(tmp_path / "store", 100_000)
    print(f"{took_s:.1f} s")
    assert took_s < 10


async def test_what_failed_to_load_is_gone_until_it_is_written_anew(tmp_path: Path) -> None:
    store = PosixStore(tmp_path / "store", LAYOUT)
    blocks = chain(6)
    keys = [block.key for block in blocks]
    await put_all(store, blocks)
    (path,) = (tmp_path / "store").glob(f"*/{keys[2].hex()}.kv")
    path.write_bytes(path.read_bytes()[:-1])
    index = PrefixIndex()
    await index.rebuild(store)
    assert index.longest_prefix(keys) == 6, "a rebuild reads headers alone"
    (result,) = await store.get([blocks[2].read()], deadline_s=5)
    assert not result.ok
    index.discard(keys[2])
    await store.delete([keys[2]])
    again = PrefixIndex()
    await again.rebuild(store)
    assert again.longest_prefix(keys) == index.longest_prefix(keys) == 2
    await put_all(store, [blocks[2]])
    index.add(keys[2], blocks[2].parent)
    assert index.longest_prefix(keys) == 6
    await store.close()
