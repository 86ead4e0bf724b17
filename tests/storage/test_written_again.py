"""Over a network a block that a store wrote itself is not read when it is written again: reads need the bytes."""

from typing import Any

import pytest

from dualpath_storage.object_store import ObjectStore
from tests.storage.blocks import LAYOUT, chain, overwrite, put_all, raw, statuses


async def test_a_block_of_its_own_is_not_read_again(monkeypatch: pytest.MonkeyPatch) -> None:
    store, other = (ObjectStore("tensorstore+memory://again", LAYOUT) for _ in range(2))
    reads: list[bytes] = []
    for one in (store, other):
        read = one.medium.read_whole

        def noted(key: bytes, *rest: Any, read: Any = read, **more: Any) -> Any:
            reads.append(key)
            return read(key, *rest, **more)

        monkeypatch.setattr(one.medium, "read_whole", noted)
    blocks = chain(3)
    await put_all(store, blocks)
    await put_all(store, blocks)
    assert reads == []
    await put_all(other, blocks)
    assert sorted(reads) == sorted(block.key for block in blocks)
    await store.delete([blocks[0].key])
    await put_all(store, blocks)
    assert await statuses(store, blocks) == ["ok"] * 3
    for one in (store, other):
        await one.close()


async def test_a_block_of_its_own_that_was_found_damaged_is_replaced() -> None:
    store = ObjectStore("tensorstore+memory://damaged", LAYOUT)
    (block,) = chain(1)
    await put_all(store, [block])
    overwrite(store, block, raw(store, block)[:-1] + b"?")
    assert await statuses(store, [block]) == ["corrupt"]
    await put_all(store, [block])
    assert await statuses(store, [block]) == ["ok"]
    await store.close()
