"""What object stores have beyond the contract of every store: byte ranges, names, foreign objects, many blocks."""

import subprocess
import sys
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import tensorstore

from dualpath_storage import BlockRead, Faults, FaultyStore, KVLayout, PosixStore, open_store
from dualpath_storage.block_format import HEADER_BYTES
from dualpath_storage.object_medium import Found
from dualpath_storage.object_store import ObjectStore
from tests.storage.blocks import FILE_BYTES, LAYOUT, chain, overwrite, put_all, raw, statuses
from tests.storage.conftest import OBJECT_KINDS, object_url

NEVER = float("inf")


@pytest.fixture(params=OBJECT_KINDS)
async def store(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[ObjectStore]:
    store = ObjectStore(object_url(request.param, request, tmp_path), LAYOUT)
    yield store
    await store.close()


async def test_a_read_of_some_layers_moves_the_header_and_their_bytes(
    store: ObjectStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    (block,) = chain(1)
    await put_all(store, [block])
    size = LAYOUT.layer_block_bytes
    moved: list[int] = []
    fetch = store.medium._fetch  # type: ignore[attr-defined]

    def counted(*args: object) -> list[Found]:
        parts = fetch(*args)
        moved.extend(len(part.value) for part in parts)
        return parts

    monkeypatch.setattr(store.medium, "_fetch", counted)
    for layer, expected in ((0, [HEADER_BYTES + size]), (1, [HEADER_BYTES, size]), (2, [HEADER_BYTES, size])):
        header, payload = bytearray(HEADER_BYTES), bytearray(size)
        skip_bytes = layer * size
        seen = store.medium.read(block.key, header, memoryview(payload), deadline_at=NEVER, skip_bytes=skip_bytes)  # type: ignore[call-arg]
        assert header == raw(store, block)[:HEADER_BYTES]
        assert payload == block.data[skip_bytes : skip_bytes + size]
        assert seen == HEADER_BYTES + skip_bytes + size
        assert moved[: len(expected)] == expected
        moved.clear()


@pytest.mark.parametrize("kind", ["s3", "gcs"])
async def test_one_of_eight_layers_moves_an_eighth_of_the_bytes(
    request: pytest.FixtureRequest, tmp_path: Path, kind: str
) -> None:
    layout = KVLayout.mla(layers=8, latent=7, rope=1, dtype="uint8", block_tokens=16 << 10)
    blocks = chain(2, layout=layout)
    store = ObjectStore(object_url(kind, request, tmp_path), layout)
    await put_all(store, blocks)
    moved = []
    for layers in (None, *((layer, layer + 1) for layer in range(8))):
        buffers = [bytearray(layout.block_bytes // (8 if layers else 1)) for _ in blocks]
        reads = [BlockRead(b.key, b.tokens, memoryview(into), layers) for b, into in zip(blocks, buffers, strict=True)]
        before = bytes_read(kind)
        assert all(result.ok for result in await store.get(reads, deadline_s=10))
        moved.append(bytes_read(kind) - before)
    assert moved == [2 * (HEADER_BYTES + layout.block_bytes)] + [2 * (HEADER_BYTES + layout.layer_block_bytes)] * 8
    await store.close()


def bytes_read(kind: str) -> int:
    """What TensorStore has counted in this process."""
    (metric,) = tensorstore.experimental_collect_matching_metrics(f"/tensorstore/kvstore/{kind}/bytes_read")
    return int(metric["values"][0]["value"])


@pytest.mark.parametrize("kept", [0, 100, HEADER_BYTES, HEADER_BYTES + 5, FILE_BYTES - 1])
async def test_a_truncated_object_is_read_as_far_as_it_goes(store: ObjectStore, kept: int) -> None:
    (block,) = chain(1)
    await put_all(store, [block])
    whole = raw(store, block)
    overwrite(store, block, whole[:kept])
    assert raw(store, block) == whole[:kept]
    (result,) = await store.get([block.read()], deadline_s=10)
    assert result.status.value == "corrupt"
    assert result.detail.startswith(f"truncated: {kept} bytes of ")
    payload = memoryview(bytearray(LAYOUT.layer_block_bytes))
    skip_bytes = LAYOUT.layer_block_bytes
    seen = store.medium.read(block.key, bytearray(HEADER_BYTES), payload, deadline_at=NEVER, skip_bytes=skip_bytes)  # type: ignore[call-arg]
    assert seen == min(kept, HEADER_BYTES + 2 * skip_bytes)


async def test_bytes_after_a_block_are_damage(store: ObjectStore) -> None:
    (block,) = chain(1)
    await put_all(store, [block])
    overwrite(store, block, raw(store, block) + b"x")
    (result,) = await store.get([block.read()], deadline_s=10)
    assert (result.status.value, result.detail) == ("corrupt", f"has trailing bytes after its {FILE_BYTES}")


async def test_foreign_objects_are_passed_over(store: ObjectStore) -> None:
    blocks = chain(3)
    await put_all(store, blocks)
    kv = store.medium._kv  # type: ignore[attr-defined]
    name = blocks[0].key.hex()
    for foreign in (
        f"{name[:2]}/{name}.kv2",
        f"{name[:2]}/short.kv",
        f"x/{name}.kv",
        "readme",
        f"{name[:2]}/a/{name}.kv",
    ):
        kv.write(foreign, b"?").result(10)
    assert {stored.key async for stored in store.scan()} == {block.key for block in blocks}


async def test_prefixes_are_stores_of_their_own(request: pytest.FixtureRequest, tmp_path: Path) -> None:
    for kind in OBJECT_KINDS:
        place, _, query = object_url(kind, request, tmp_path).partition("?")
        urls = [f"{place}{suffix}?{query}".rstrip("?") for suffix in ("", "2")]
        stores = [ObjectStore(url, LAYOUT) for url in urls]
        blocks = chain(2)
        await put_all(stores[1], blocks)
        assert [len([stored async for stored in store.scan()]) for store in stores] == [0, 2]
        assert await statuses(stores[0], blocks) == ["missing"] * 2
        for store in stores:
            await store.close()


async def test_a_folder_copied_by_name_is_an_object_store(tmp_path: Path) -> None:
    """Blocks have the same names in both, so any tool that copies files to objects moves a store."""
    blocks = chain(4)
    posix = PosixStore(tmp_path, LAYOUT)
    await put_all(posix, blocks)
    await posix.close()
    store = open_store(f"tensorstore+file://{tmp_path}", LAYOUT)
    assert await statuses(store, blocks) == ["ok"] * 4
    assert {stored.key async for stored in store.scan()} == {block.key for block in blocks}
    await store.close()


@pytest.mark.parametrize(
    ("kind", "count"),
    [("tensorstore+memory", 10_000), ("s3", 1_000), pytest.param("s3", 10_000, marks=pytest.mark.long)],
)
async def test_many_blocks_are_scanned_in_bounded_time(
    request: pytest.FixtureRequest, tmp_path: Path, kind: str, count: int
) -> None:
    store = ObjectStore(object_url(kind, request, tmp_path), LAYOUT, threads=32)
    blocks = chain(count)
    results = await store.put([block.write() for block in blocks], deadline_s=100)
    assert all(result.ok for result in results)
    start = time.monotonic()
    assert {stored.key async for stored in store.scan()} == {block.key for block in blocks}
    assert time.monotonic() - start < 60
    keys = [block.key for block in blocks]
    await store.delete(keys[: count // 2])
    assert await store.contains(keys) == [False] * (count // 2) + [True] * (count // 2)
    await store.close()


async def test_no_more_requests_than_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    store = ObjectStore("tensorstore+memory://", LAYOUT, threads=3)
    blocks = chain(40)
    await put_all(store, blocks)
    under_way, most = 0, 0
    read_whole = store.medium.read_whole

    def counted(*args: object, **keywords: object) -> int:
        nonlocal under_way, most
        under_way += 1
        most = max(most, under_way)
        time.sleep(0.001)
        try:
            return read_whole(*args, **keywords)  # type: ignore[arg-type]
        finally:
            under_way -= 1

    monkeypatch.setattr(store.medium, "read_whole", counted)
    assert await statuses(store, blocks) == ["ok"] * 40
    assert most == 3
    await store.close()


@pytest.mark.parametrize(
    ("faults", "expected"),
    [
        (Faults(flip=1), "corrupt"),
        (Faults(truncate=1), "corrupt"),
        (Faults(error=1), "failed"),
        (Faults(hang=1, overrun_s=0.01), "timed_out"),
    ],
)
async def test_faults_strike_beneath_the_verification(store: ObjectStore, faults: Faults, expected: str) -> None:
    blocks = chain(4)
    await put_all(store, blocks)
    faulty = FaultyStore(store, faults)
    deadline_s = 0.3 if faults.hang else 10
    assert await statuses(faulty, blocks, deadline_s=deadline_s) == [expected] * 4
    await faulty.close()


async def test_a_lost_write_is_not_stored(store: ObjectStore) -> None:
    blocks = chain(3)
    await put_all(FaultyStore(store, Faults(lose=1)), blocks)
    assert await statuses(store, blocks) == ["missing"] * 3


async def test_a_large_block_goes_through_whole(request: pytest.FixtureRequest, tmp_path: Path) -> None:
    layout = KVLayout.mla(layers=8, latent=480, rope=32, dtype="bfloat16", block_tokens=512)
    assert layout.block_bytes == 4 << 20
    for kind in OBJECT_KINDS:
        store = ObjectStore(object_url(kind, request, tmp_path), layout)
        blocks = chain(3, layout=layout)
        await put_all(store, blocks)
        assert await statuses(store, blocks) == ["ok"] * 3
        await store.close()


def test_tensorstore_is_loaded_only_where_it_is_needed() -> None:
    """Loading it takes a quarter of a second, which a store in a folder need not spend."""

    code = "import sys, dualpath_storage; assert 'tensorstore' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
