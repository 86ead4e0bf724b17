"""The contract of `BlockStore`, line by line, on every store."""

import asyncio

import numpy as np
import pytest

from dualpath_storage import BlockRead, BlockWrite, StoreError
from dualpath_storage.medium_store import MediumStore
from tests.storage.blocks import FILE_BYTES, LAYOUT, OTHER_LAYOUT, chain, overwrite, put_all, raw, statuses
from tests.storage.conftest import OpenAgain


async def test_what_was_put_is_read(store: MediumStore) -> None:
    blocks = chain(40)
    await put_all(store, blocks)
    assert await statuses(store, blocks) == ["ok"] * 40


async def test_results_are_in_the_order_of_the_reads(store: MediumStore) -> None:
    blocks = chain(6)
    await put_all(store, blocks[::2])
    assert await statuses(store, blocks[::-1]) == ["missing", "ok"] * 3


async def test_a_bad_block_never_fails_its_neighbours(store: MediumStore) -> None:
    blocks = chain(5)
    await put_all(store, blocks)
    overwrite(store, blocks[1], b"rubbish")
    overwrite(store, blocks[3], raw(store, blocks[2]))
    assert await statuses(store, blocks) == ["ok", "corrupt", "ok", "corrupt", "ok"]


async def test_other_tokens_under_a_key_are_corrupt(store: MediumStore) -> None:
    first, second = chain(2)
    await put_all(store, [first])
    read = BlockRead(first.key, second.tokens, memoryview(bytearray(LAYOUT.block_bytes)))
    (result,) = await store.get([read], deadline_s=5)
    assert (result.status.value, result.detail) == ("corrupt", "was written for other tokens")


async def test_another_layout_under_a_key_is_corrupt(store: MediumStore, open_again: OpenAgain) -> None:
    (block,) = chain(1)
    await put_all(store, [block])
    (result,) = await open_again(OTHER_LAYOUT).get([block.read()], deadline_s=5)
    assert result.status.value == "corrupt"
    assert OTHER_LAYOUT.digest.hex() in result.detail


async def test_reads_fill_buffers_of_any_item_type(store: MediumStore) -> None:
    (block,) = chain(1)
    await put_all(store, [block])
    array = np.zeros((LAYOUT.layers, LAYOUT.layer_block_bytes // 4), np.float32)
    (result,) = await store.get([block.read(array.data)], deadline_s=5)
    assert result.ok
    assert array.tobytes() == block.data


async def test_reads_touch_nothing_beyond_their_buffers(store: MediumStore) -> None:
    blocks = chain(3)
    await put_all(store, blocks)
    overwrite(store, blocks[1], raw(store, blocks[1]) + b"x" * 100)
    arena = bytearray(5 * LAYOUT.block_bytes)
    slots = [memoryview(arena)[i * LAYOUT.block_bytes :][: LAYOUT.block_bytes] for i in range(5)]
    await store.get([block.read(slot) for block, slot in zip(blocks, slots[1:4], strict=True)], deadline_s=5)
    assert not any(slots[0])
    assert not any(slots[4])
    assert slots[1] == blocks[0].data
    assert slots[3] == blocks[2].data


async def test_writing_again_is_ok_and_changes_nothing(store: MediumStore) -> None:
    (block,) = chain(1)
    await put_all(store, [block])
    before = raw(store, block)
    other_data = BlockWrite(block.key, block.parent, block.tokens, memoryview(bytes(LAYOUT.block_bytes)))
    (result,) = await store.put([other_data], deadline_s=5)
    assert result.ok
    assert raw(store, block) == before


async def test_writing_over_a_damaged_block_repairs_it(store: MediumStore) -> None:
    (block,) = chain(1)
    await put_all(store, [block])
    whole = raw(store, block)
    overwrite(store, block, whole[:-1] + bytes([whole[-1] ^ 1]))
    assert await statuses(store, [block]) == ["corrupt"]
    await put_all(store, [block])
    assert await statuses(store, [block]) == ["ok"]


async def test_one_key_twice_in_a_batch(store: MediumStore) -> None:
    blocks = chain(2)
    await put_all(store, [*blocks, *blocks])
    assert await statuses(store, [*blocks, *blocks]) == ["ok"] * 4


async def test_empty_batches_are_fine(store: MediumStore) -> None:
    assert await store.get([], deadline_s=1) == []
    assert await store.put([], deadline_s=1) == []
    assert await store.contains([]) == []
    await store.delete([])


async def test_contains_and_delete(store: MediumStore) -> None:
    blocks = chain(4)
    await put_all(store, blocks[:3])
    await store.delete([blocks[1].key, blocks[3].key])
    assert await store.contains([block.key for block in blocks]) == [True, False, True, False]
    assert await statuses(store, blocks) == ["ok", "missing", "ok", "missing"]
    await put_all(store, [blocks[1]])
    assert await statuses(store, [blocks[1]]) == ["ok"]


async def test_contains_does_not_verify(store: MediumStore) -> None:
    (block,) = chain(1)
    await put_all(store, [block])
    overwrite(store, block, b"rubbish")
    assert await store.contains([block.key]) == [True]


async def test_scan_finds_each_block_of_its_layout_once(store: MediumStore, open_again: OpenAgain) -> None:
    blocks, others = chain(300), chain(5, layout=OTHER_LAYOUT)
    other_store = open_again(OTHER_LAYOUT)
    await put_all(store, blocks)
    await put_all(other_store, others)
    found = [stored async for stored in store.scan()]
    assert len(found) == 300
    assert {(stored.key, stored.parent) for stored in found} == {(block.key, block.parent) for block in blocks}
    assert {stored.size_bytes for stored in found} == {FILE_BYTES}
    assert {stored.key async for stored in other_store.scan()} == {block.key for block in others}


async def test_scan_skips_damaged_headers(store: MediumStore) -> None:
    blocks = chain(5)
    await put_all(store, blocks)
    whole = raw(store, blocks[1])
    overwrite(store, blocks[1], whole[:60] + bytes([whole[60] ^ 4]) + whole[61:])
    overwrite(store, blocks[2], whole[:1000])
    overwrite(store, blocks[3], raw(store, blocks[0]))
    assert {stored.key async for stored in store.scan()} == {blocks[0].key, blocks[4].key}


async def test_scan_of_an_empty_store(store: MediumStore) -> None:
    assert [stored async for stored in store.scan()] == []


async def test_a_passed_deadline_times_everything_out(store: MediumStore) -> None:
    blocks = chain(3)
    await put_all(store, blocks)
    results = await store.get([block.read() for block in blocks], deadline_s=0)
    for result in results:
        assert result.status.value in ("ok", "timed_out")
        if result.quiet is not None:
            await asyncio.wait_for(result.quiet, 5)


async def test_what_was_put_is_found_after_a_restart(store: MediumStore, open_again: OpenAgain) -> None:
    blocks = chain(8)
    await put_all(store, blocks)
    await store.close()
    again = open_again()
    assert {stored.key async for stored in again.scan()} == {block.key for block in blocks}
    assert await statuses(again, blocks) == ["ok"] * 8


async def test_many_batches_at_once(store: MediumStore) -> None:
    chains = [chain(10, seed=seed) for seed in range(12)]
    await asyncio.gather(*(put_all(store, blocks) for blocks in chains))
    found = await asyncio.gather(*(statuses(store, blocks) for blocks in chains for _ in range(3)))
    assert found == [["ok"] * 10] * 36


async def test_close_waits_for_what_runs_and_refuses_what_comes(store: MediumStore) -> None:
    blocks = chain(50)
    writing = asyncio.create_task(store.put([block.write() for block in blocks], deadline_s=20))
    await asyncio.sleep(0)
    await asyncio.gather(store.close(), store.close())
    assert writing.done()
    assert all(result.ok for result in writing.result())
    with pytest.raises(StoreError, match="is closed"):
        await store.get([blocks[0].read()], deadline_s=1)
    with pytest.raises(StoreError, match="is closed"):
        await store.contains([blocks[0].key])
    await store.close()


async def test_misuse_is_refused_before_anything_begins(store: MediumStore) -> None:
    good, bad = chain(2)
    size = LAYOUT.block_bytes
    strided = memoryview(bytearray(2 * size))[::2]
    for into, complaint in (
        (memoryview(bytearray(size - 1)), f"has {size - 1} bytes"),
        (strided, "contiguous: False"),
        (memoryview(bytes(size)), "is read-only"),
    ):
        with pytest.raises(ValueError, match=complaint):
            await store.get([good.read(), BlockRead(bad.key, bad.tokens, into)], deadline_s=5)
    with pytest.raises(ValueError, match="expected 32"):
        await store.get([BlockRead(b"short", bad.tokens, memoryview(bytearray(size)))], deadline_s=5)
    too_long = BlockWrite(bad.key, bad.parent, bad.tokens, memoryview(bytes(size + 1)))
    with pytest.raises(ValueError, match=f"has {size + 1} bytes"):
        await store.put([good.write(), too_long], deadline_s=5)
    with pytest.raises(ValueError, match="expected 32"):
        await store.put([good.write(), BlockWrite(bad.key, b"", bad.tokens, memoryview(bad.data))], deadline_s=5)
    assert await store.contains([good.key]) == [False]
