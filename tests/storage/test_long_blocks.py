"""Blocks that are read in several pieces, whose checksum is computed as they come."""

import os

import pytest

from dualpath_storage import Faults, FaultyStore, KVLayout
from dualpath_storage.block_format import HEADER_BYTES
from dualpath_storage.medium_store import MediumStore
from dualpath_storage.posix_reads import PIECE_BYTES
from tests.storage.blocks import chain, overwrite, put_all, raw, statuses
from tests.storage.conftest import OpenAgain

LAYOUT = KVLayout.mla(layers=5, latent=2000, rope=48, dtype="uint8", block_tokens=64)  # 640 KiB: two pieces and a half
BOUNDARIES = (PIECE_BYTES, 2 * PIECE_BYTES, LAYOUT.block_bytes)


@pytest.fixture
def store(open_again: OpenAgain) -> MediumStore:
    return open_again(LAYOUT)


async def test_blocks_are_read_whole(store: MediumStore) -> None:
    blocks = chain(3, layout=LAYOUT)
    await put_all(store, blocks)
    assert await statuses(store, blocks) == ["ok"] * 3


async def test_damage_in_any_piece_is_seen(store: MediumStore) -> None:
    (block,) = chain(1, layout=LAYOUT)
    await put_all(store, [block])
    whole = raw(store, block)
    for offset in (0, *(boundary - 1 for boundary in BOUNDARIES), *BOUNDARIES[:2]):
        damaged = bytearray(whole)
        damaged[HEADER_BYTES + offset] ^= 16
        overwrite(store, block, bytes(damaged))
        (result,) = await store.get([block.read()], deadline_s=5)
        assert result.detail == f"layer {offset // LAYOUT.layer_block_bytes}'s checksum does not hold"


async def test_a_block_that_ends_early_or_goes_on_is_corrupt(store: MediumStore) -> None:
    (block,) = chain(1, layout=LAYOUT)
    await put_all(store, [block])
    whole = raw(store, block)
    ends = [HEADER_BYTES + boundary + more for boundary in (0, *BOUNDARIES) for more in (-1, 0, 1)]
    for end in (0, 1, *ends):
        if not end and store.url.startswith("mooncake:"):
            continue  # which has no empty objects
        overwrite(store, block, (whole + b"x")[:end])
        assert await statuses(store, [block]) == ["ok" if end == len(whole) else "corrupt"], end


async def test_a_file_system_that_reads_a_little_at_a_time(store: MediumStore, monkeypatch: pytest.MonkeyPatch) -> None:
    if not store.url.startswith("file://") or store.url.endswith("direct=1"):
        pytest.skip("reads that go on where the last one ended are the page cache's")
    blocks = chain(2, layout=LAYOUT)
    await put_all(store, blocks)
    preadv = os.preadv

    def read_a_little(descriptor: int, buffers: list[memoryview], offset: int) -> int:
        first = next(buffer for buffer in buffers if len(buffer))
        return preadv(descriptor, [memoryview(first)[:100_000]], offset)

    monkeypatch.setattr(os, "preadv", read_a_little)
    assert await statuses(store, blocks) == ["ok"] * 2


async def test_a_device_that_flips_bits_does_so_before_the_checksum(store: MediumStore) -> None:
    blocks = chain(3, layout=LAYOUT)
    await put_all(store, blocks)
    bad = FaultyStore(store, Faults(flip=1))
    assert await statuses(bad, blocks) == ["corrupt"] * 3
    await bad.close()
