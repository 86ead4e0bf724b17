"""What a Mooncake store has beyond the contract of every store: parts of blocks, its cluster, replicas, nodes and
masters that die or hang."""

import asyncio
import socket
import time
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from dualpath_storage import FaultyStore, KVLayout, StoreError, open_store
from dualpath_storage.block_format import HEADER_BYTES
from dualpath_storage.medium_store import MediumStore
from dualpath_storage.mooncake_store import MooncakeStore
from tests.mooncake import Mooncake, running_mooncake
from tests.storage.blocks import FILE_BYTES, LAYOUT, chain, overwrite, put_all, raw, statuses

NEVER = float("inf")
TARDY_S = 3.0
"""How much later than its deadline an operation may end on a machine that has much to do."""


@pytest.fixture
async def store(mooncake: Mooncake) -> AsyncIterator[MooncakeStore]:
    store = MooncakeStore(mooncake.url(), LAYOUT, threads=4)
    yield store
    await store.close()


@pytest.fixture
def own() -> Iterator[Mooncake]:
    """A cluster that a test may break."""
    with running_mooncake() as cluster:
        yield cluster


@pytest.fixture
def bare(mooncake: Mooncake) -> Iterator[Any]:
    """A client of Mooncake's own."""
    client = mooncake.client(buffer_bytes=16 << 20)
    yield client
    client.close()


def name(store: MediumStore, key: bytes) -> str:
    return str(store.medium._named(key))  # type: ignore[attr-defined]


def segments_of(store: MediumStore, key: bytes) -> set[str]:
    """Where a block's replicas are, each in a segment of its own."""
    replicas = store.medium._client.get_replica_desc(name(store, key))  # type: ignore[attr-defined]
    segments = {replica.get_memory_descriptor().buffer_descriptor.transport_endpoint for replica in replicas}
    assert len(segments) == len(replicas)
    return segments


async def test_bytes_that_others_put_in_a_blocks_place_are_damage(store: MooncakeStore, bare: Any) -> None:
    blocks = chain(5)
    await put_all(store, blocks)
    whole = [raw(store, block) for block in blocks]
    flipped = whole[1][:-1] + bytes([whole[1][-1] ^ 1])
    stored = {
        blocks[0]: whole[2],  # as a read sees that outlives its lease
        blocks[1]: flipped,
        blocks[2]: whole[2][:3000] + whole[3][3000:],
        blocks[3]: whole[3][:HEADER_BYTES] + whole[4][HEADER_BYTES:],
    }
    for block, damaged in stored.items():
        assert bare.upsert(name(store, block.key), damaged) == 0
    assert await statuses(store, blocks) == ["corrupt"] * 4 + ["ok"]
    await put_all(store, blocks)
    assert await statuses(store, blocks) == ["ok"] * 5


@pytest.mark.parametrize("kept", [1, 100, HEADER_BYTES, HEADER_BYTES + 5, FILE_BYTES - 1])
async def test_a_truncated_block_is_read_as_far_as_it_goes(store: MooncakeStore, kept: int) -> None:
    (block,) = chain(1)
    await put_all(store, [block])
    overwrite(store, block, raw(store, block)[:kept])
    (result,) = await store.get([block.read()], deadline_s=10)
    assert result.status.value == "corrupt"
    assert result.detail.startswith(f"truncated: {kept} bytes of ")
    size = LAYOUT.layer_block_bytes
    header, payload = bytearray(HEADER_BYTES), memoryview(bytearray(size))
    seen = store.medium.read(block.key, header, payload, deadline_at=NEVER, skip_bytes=size)  # type: ignore[call-arg]
    assert seen == min(kept, HEADER_BYTES + 2 * size)


async def test_bytes_after_a_block_are_damage(store: MooncakeStore) -> None:
    (block,) = chain(1)
    await put_all(store, [block])
    overwrite(store, block, raw(store, block) + b"x" * 100)
    (result,) = await store.get([block.read()], deadline_s=10)
    assert (result.status.value, result.detail) == ("corrupt", f"has trailing bytes after its {FILE_BYTES}")


async def test_a_read_of_some_layers_moves_the_header_and_their_bytes(
    store: MooncakeStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    (block,) = chain(1)
    await put_all(store, [block])
    size = LAYOUT.layer_block_bytes
    whole = raw(store, block)
    monkeypatch.setattr(store.medium, "_first", None)  # the way of a whole block
    for layer in range(LAYOUT.layers - 1):
        header, payload = bytearray(HEADER_BYTES), bytearray(size)
        skip_bytes = layer * size
        seen = store.medium.read(block.key, header, memoryview(payload), deadline_at=NEVER, skip_bytes=skip_bytes)  # type: ignore[call-arg]
        assert header == whole[:HEADER_BYTES]
        assert payload == block.data[skip_bytes : skip_bytes + size]
        assert seen == HEADER_BYTES + skip_bytes + size


async def test_prefixes_are_stores_of_their_own(mooncake: Mooncake) -> None:
    stores = [MooncakeStore(mooncake.url(prefix), LAYOUT) for prefix in ("apart", "apart2")]
    blocks = chain(2)
    await put_all(stores[1], blocks)
    assert [len([stored async for stored in store.scan()]) for store in stores] == [0, 2]
    assert await statuses(stores[0], blocks) == ["missing"] * 2
    for store in stores:
        await store.close()


async def test_a_node_lends_memory_while_its_store_is_open(own: Mooncake) -> None:
    own.kill_node()
    own.kill_master()
    own.start_master()
    blocks = chain(3)
    without = MooncakeStore(own.url("p"), LAYOUT)
    results = await without.put([block.write() for block in blocks], deadline_s=10)
    assert [result.status.value for result in results] == ["full"] * 3
    assert "no segment of the cluster has room: more segment_bytes" in results[0].detail
    lender = MooncakeStore(own.url("p", segment_bytes=32 << 20), LAYOUT)
    await put_all(without, blocks)
    assert await statuses(lender, blocks) == ["ok"] * 3
    await lender.close()
    assert await statuses(without, blocks) == ["missing"] * 3
    await without.close()


async def test_a_full_cluster_evicts_and_goes_on() -> None:
    layout = KVLayout.mla(layers=8, latent=480, rope=32, dtype="bfloat16", block_tokens=128)
    assert layout.block_bytes == 1 << 20
    blocks = chain(40, layout=layout)
    with running_mooncake(segment_bytes=16 << 20) as cluster:
        store = MooncakeStore(cluster.url(), layout)
        results = await store.put([block.write() for block in blocks], deadline_s=30)
        assert {result.status.value for result in results} == {"ok", "full"}
        found = await statuses(store, blocks)
        assert set(found) <= {"ok", "missing"}
        assert found.count("ok") >= 8
        await store.close()


async def test_a_master_that_dies_fails_each_block_by_the_deadline(own: Mooncake) -> None:
    store = MooncakeStore(own.url(), LAYOUT, threads=4)
    blocks = chain(1200)
    await put_all(store, blocks)
    reading = asyncio.create_task(statuses(store, blocks, deadline_s=2))
    await asyncio.sleep(0.02)
    assert not reading.done()
    start = time.monotonic()
    own.kill_master()
    found = await reading
    assert time.monotonic() - start < 2 + TARDY_S
    assert set(found) <= {"ok", "failed", "timed_out"}
    assert set(found) != {"ok"}
    put, probe = await asyncio.gather(
        store.put([chain(1, seed=1)[0].write()], deadline_s=20), store.contains([blocks[0].key]), return_exceptions=True
    )
    assert not isinstance(put, BaseException)
    assert (put[0].status.value, put[0].detail) == (
        "failed",
        "OSError: [Errno 5] Mooncake error -900: the master does not answer",
    )
    with pytest.raises(StoreError, match="the master does not answer"):
        raise probe if isinstance(probe, BaseException) else AssertionError(probe)
    with pytest.raises(StoreError, match=r"the master does not list its keys: .*: Connection refused"):
        [stored async for stored in store.scan()]
    own.start_master()
    own.kill_node()
    own.start_node()
    give_up_at = time.monotonic() + 20  # Mooncake connects again after a few seconds
    while (found := await statuses(store, blocks[:5])) != ["missing"] * 5:
        assert set(found) <= {"failed", "missing"}
        assert time.monotonic() < give_up_at
    await put_all(store, blocks[:5])
    assert await statuses(store, blocks[:5]) == ["ok"] * 5
    await store.close()


async def test_a_master_that_hangs_times_out(own: Mooncake) -> None:
    store = MooncakeStore(own.url(), LAYOUT, threads=4)
    blocks = chain(8)
    await put_all(store, blocks)
    with own.hanging():
        start = time.monotonic()
        results = await store.get([block.read() for block in blocks], deadline_s=0.5)
        assert time.monotonic() - start < 0.5 + TARDY_S
        assert {result.status.value for result in results} == {"timed_out"}
        assert [result.quiet is None for result in results] == [False] * 4 + [True] * 4
    await asyncio.wait_for(asyncio.gather(*(result.quiet for result in results if result.quiet)), 20)
    assert await statuses(store, blocks) == ["ok"] * 8
    await store.close()


async def test_a_node_that_dies_takes_the_blocks_that_are_nowhere_else() -> None:
    with running_mooncake(alive_s=2) as cluster:
        cluster.start_node()
        once, often = stores = [MooncakeStore(cluster.url(replicas=count), LAYOUT, threads=4) for count in (1, 3)]
        blocks = chain(8)
        for store, segments in zip(stores, (1, 2), strict=True):
            await put_all(store, blocks)
            for block in blocks:
                assert len(segments_of(store, block.key)) == segments
        cluster.kill_node()
        start = time.monotonic()
        found = await statuses(once, blocks, deadline_s=5)
        assert {"ok"} < set(found) <= {"ok", "failed", "missing", "timed_out"}
        assert time.monotonic() - start < 5 + TARDY_S
        give_up_at = time.monotonic() + 15  # until the master misses the node, reads may still go there
        while (found := await statuses(often, blocks)) != ["ok"] * 8:
            assert time.monotonic() < give_up_at, found
        for store in stores:
            await store.close()


async def test_faults_come_with_the_parameters_of_the_url(mooncake: Mooncake) -> None:
    place, _, query = mooncake.url().partition("?")
    store = open_store(f"faulty+{place}?{query}&flip=1", LAYOUT)
    assert isinstance(store, FaultyStore)
    blocks = chain(3)
    await put_all(store, blocks)
    assert await statuses(store, blocks) == ["corrupt"] * 3
    await store.close()


def test_a_master_that_is_not_there_is_said_at_once(mooncake: Mooncake) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        start = time.monotonic()
        with pytest.raises(StoreError, match=rf"no Mooncake master at {address} \(Connection refused\): check that"):
            open_store(f"mooncake://{address}/p", LAYOUT)
        assert time.monotonic() - start < TARDY_S


def greet(listener: socket.socket) -> None:
    with listener.accept()[0] as connection:
        connection.sendall(b"220 ready\r\n")


@pytest.mark.parametrize(
    ("kind", "reason"),
    [
        ("silent", "no answer within 0.5 s"),
        ("admin", "no answer within 0.5 s"),
        ("greeting", "what listens there speaks another protocol"),
    ],
)
def test_a_port_that_is_not_the_masters_is_said_within_seconds(
    kind: str, reason: str, mooncake: Mooncake, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dualpath_storage.mooncake_master._ANSWER_DEADLINE_S", 0.5)
    with socket.create_server(("127.0.0.1", 0)) as other, ThreadPoolExecutor() as threads:
        port = mooncake.admin_port if kind == "admin" else other.getsockname()[1]
        if kind == "greeting":
            threads.submit(greet, other)
        start = time.monotonic()
        remedy = "check that mooncake_master runs and that this is its --rpc_port"
        with pytest.raises(StoreError, match=rf"no Mooncake master at 127.0.0.1:{port} \({reason}\): {remedy}"):
            open_store(f"mooncake://127.0.0.1:{port}/p?admin=127.0.0.1:{mooncake.admin_port}", LAYOUT)
        assert time.monotonic() - start < 0.5 + TARDY_S


def test_another_admin_port_is_said_at_once(mooncake: Mooncake) -> None:
    complaint = rf"the Mooncake master does not answer \({mooncake.master}/health: .*\): check .* its --metrics_port"
    with pytest.raises(StoreError, match=complaint):
        open_store(f"mooncake://{mooncake.master}/p?admin={mooncake.master}", LAYOUT)


def test_a_master_that_never_answers_is_given_up(own: Mooncake, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dualpath_storage.mooncake_master._ANSWER_DEADLINE_S", 0.5)
    with own.hanging(), pytest.raises(StoreError, match=rf"master at {own.master} \(no answer within 0.5 s\): check"):
        open_store(own.url(), LAYOUT)
