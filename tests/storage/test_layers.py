"""A layer range is read and verified alone: its bytes, its damage, and no more of the device than that."""

from itertools import combinations
from pathlib import Path

import pytest
import tensorstore

from dualpath_storage import BlockRead, BlockResult, Faults, FaultyStore, KVLayout, MemoryStore
from dualpath_storage.block_format import HEADER_BYTES
from dualpath_storage.medium_store import MediumStore
from tests.servers import bytes_received_over_tcp
from tests.storage.blocks import LAYOUT, OTHER_LAYOUT, Block, chain, overwrite, put_all, raw
from tests.storage.conftest import OpenAgain

RANGES = list(combinations(range(LAYOUT.layers + 1), 2))
LAYER = LAYOUT.layer_block_bytes


def read_of(block: Block, layers: tuple[int, int], layout: KVLayout = LAYOUT) -> BlockRead:
    size_bytes = (layers[1] - layers[0]) * layout.layer_block_bytes
    return BlockRead(block.key, block.tokens, memoryview(bytearray(size_bytes)), layers)


async def read_ranges(store: MediumStore, block: Block) -> dict[tuple[int, int], BlockResult]:
    """Each range of a block, in one batch; what is OK has the right bytes."""
    reads = [read_of(block, layers) for layers in RANGES]
    results = await store.get(reads, deadline_s=20)
    for read, layers, result in zip(reads, RANGES, results, strict=True):
        assert not result.ok or read.into == block.data[LAYOUT.layer_span(*layers)]
    return dict(zip(RANGES, results, strict=True))


async def test_every_range_of_a_block(store: MediumStore) -> None:
    blocks = chain(3)
    await put_all(store, blocks)
    for block in blocks:
        assert {result.status.value for result in (await read_ranges(store, block)).values()} == {"ok"}


async def test_damage_is_seen_in_the_ranges_that_hold_it_and_in_no_other(store: MediumStore) -> None:
    (block,) = chain(1)
    await put_all(store, [block])
    whole = raw(store, block)
    for layer in range(LAYOUT.layers):
        for position in (layer * LAYER, (layer + 1) * LAYER - 1):
            damaged = bytearray(whole)
            damaged[HEADER_BYTES + position] ^= 1
            overwrite(store, block, bytes(damaged))
            for layers, result in (await read_ranges(store, block)).items():
                within = layers[0] <= layer < layers[1]
                assert result.status.value == ("corrupt" if within else "ok"), (layers, position)
                assert not within or result.detail == f"layer {layer}'s checksum does not hold"


async def test_a_damaged_header_spoils_every_range(store: MediumStore) -> None:
    (block,) = chain(1)
    await put_all(store, [block])
    whole = raw(store, block)
    for offset in (0, 20, 50, 120, 300, HEADER_BYTES - 1):
        damaged = bytearray(whole)
        damaged[offset] ^= 1
        overwrite(store, block, bytes(damaged))
        assert {result.status.value for result in (await read_ranges(store, block)).values()} == {"corrupt"}, offset


async def test_a_truncated_block_has_the_layers_that_are_whole(store: MediumStore) -> None:
    (block,) = chain(1)
    await put_all(store, [block])
    whole = raw(store, block)
    for size in (0, 1, HEADER_BYTES - 1, HEADER_BYTES, *(HEADER_BYTES + n * LAYER - 1 for n in (1, 2, 3))):
        if not size and store.url.startswith("mooncake:"):
            continue  # which has no empty objects
        overwrite(store, block, whole[:size])
        complete = (size - HEADER_BYTES) // LAYER
        for layers, result in (await read_ranges(store, block)).items():
            assert result.ok == (layers[1] <= complete), (size, layers)
            assert result.ok or "truncated" in result.detail


async def test_a_range_of_another_block_or_layout_or_of_other_tokens_is_corrupt(
    store: MediumStore, open_again: OpenAgain
) -> None:
    first, second = chain(2)
    await put_all(store, [first, second])
    (result,) = await open_again(OTHER_LAYOUT).get([read_of(first, (1, 2))], deadline_s=5)
    assert OTHER_LAYOUT.digest.hex() in result.detail
    other_tokens = BlockRead(first.key, second.tokens, memoryview(bytearray(LAYER)), (1, 2))
    (result,) = await store.get([other_tokens], deadline_s=5)
    assert (result.status.value, result.detail) == ("corrupt", "was written for other tokens")
    overwrite(store, first, raw(store, second))
    assert {result.status.value for result in (await read_ranges(store, first)).values()} == {"corrupt"}


async def test_ranges_and_whole_blocks_in_one_batch(store: MediumStore) -> None:
    blocks = chain(4)
    await put_all(store, blocks[:3])
    reads = [blocks[0].read(), read_of(blocks[1], (1, 3)), read_of(blocks[3], (0, 1)), blocks[2].read()]
    results = await store.get(reads, deadline_s=20)
    assert [result.status.value for result in results] == ["ok", "ok", "missing", "ok"]
    assert reads[1].into == blocks[1].data[LAYER:]
    assert [reads[0].into, reads[3].into] == [blocks[0].data, blocks[2].data]


async def test_bad_ranges_are_refused(store: MediumStore) -> None:
    (block,) = chain(1)
    for layers, complaint in (((1, 1), "at least one"), ((2, 1), "expected a range"), ((0, 4), "expected a range")):
        with pytest.raises(ValueError, match=complaint):
            await store.get([BlockRead(block.key, block.tokens, memoryview(bytearray(LAYER)), layers)], deadline_s=5)
    whole = memoryview(bytearray(LAYOUT.block_bytes))
    with pytest.raises(ValueError, match=f"has {LAYOUT.block_bytes} bytes .*expected {LAYER} contiguous"):
        await store.get([BlockRead(block.key, block.tokens, whole, (1, 2))], deadline_s=5)


def bytes_read_by_this_process(url: str) -> int:
    """What read calls returned so far, from page cache or not, and what came from object stores; for Mooncake, what
    came over connections that are still there."""
    if url.startswith("mooncake:"):
        return bytes_received_over_tcp()
    fields = dict(line.split(": ") for line in Path("/proc/self/io").read_text().splitlines())
    counters = [
        counter
        for driver in ("s3", "gcs")
        for counter in tensorstore.experimental_collect_matching_metrics(f"/tensorstore/kvstore/{driver}/bytes_read")
    ]
    return int(fields["rchar"]) + sum(value["value"] for counter in counters for value in counter["values"])


async def test_one_layer_of_eight_moves_an_eighth_of_the_bytes(open_again: OpenAgain) -> None:
    layout = KVLayout.mla(layers=8, latent=448, rope=64, dtype="uint8", block_tokens=64)  # 256 KiB a block
    store = open_again(layout)
    if isinstance(store, MemoryStore) or store.url.startswith("tensorstore+memory:"):
        pytest.skip("nothing to count: the bytes come from this process's memory")
    blocks = chain(10, layout=layout)
    await put_all(store, blocks)
    start = bytes_read_by_this_process(store.url)
    results = await store.get([read_of(block, (5, 6), layout) for block in blocks], deadline_s=20)
    part_bytes = bytes_read_by_this_process(store.url) - start
    whole = await store.get([block.read() for block in blocks], deadline_s=20)
    whole_bytes = bytes_read_by_this_process(store.url) - start - part_bytes
    assert all(result.ok for result in [*results, *whole])
    assert whole_bytes >= 10 * layout.block_bytes
    assert 0.125 < part_bytes / whole_bytes < 0.17


@pytest.mark.parametrize("fault", ["flip", "swap", "truncate"])
async def test_a_bad_device_never_gives_wrong_layers(fault: str) -> None:
    blocks = chain(20)
    inner = MemoryStore(LAYOUT)
    await put_all(inner, blocks)
    store = FaultyStore(inner, Faults(**{fault: 0.5}))
    results = [result for block in blocks for result in (await read_ranges(store, block)).values()]
    assert {result.status.value for result in results} == {"ok", "corrupt"}
    await store.close()
