"""Storage that hangs gets no queue; a card that is slow has all the time that it takes."""

import asyncio

import pytest

from dualpath_configs import NetworkSpec
from dualpath_jax.transfer import GrpcTransport, TrafficManager
from dualpath_storage.store import BlockRead, BlockWrite, Status
from tests.transfer.testbed import LAYOUT, ScriptedStore, now, virtual_time

BLOCK = LAYOUT.block_bytes


def manager_of(**network):
    """A manager whose transport is never used."""
    return TrafficManager(GrpcTransport(lane_dscp={}), layout=LAYOUT, network=NetworkSpec(**network), engines=2)


def writes_of(blocks):
    data = memoryview(bytes(BLOCK))
    return [BlockWrite(i.to_bytes(4, "little"), b"", b"", data) for i in range(blocks)]


def reads_of(blocks):
    return [BlockRead(i.to_bytes(4, "little"), b"", memoryview(bytearray(BLOCK))) for i in blocks]


async def statuses(manager, store, reads):
    """What became of them, and how long it took."""
    start = now()
    results = await manager.read(store, reads, deadline_s=1.0)
    return [result.status for result in results], now() - start


@virtual_time
async def test_storage_that_hangs_gets_no_queue_until_it_is_there_again():
    """Else blocks would wait for it in host buffers until none were left for requests."""
    manager, store = manager_of(), ScriptedStore()
    manager._storage._writing.limit_bytes = 4 * BLOCK
    writes = writes_of(400)
    store.script = {write.key: "hangs" for write in writes}
    start = now()
    first = await manager.write(store, writes[:200], deadline_s=1.0)
    assert now() - start < 1.2
    assert {result.status for result in first} == {Status.TIMED_OUT}
    start = now()
    second = asyncio.create_task(manager.write(store, writes[200:300], deadline_s=1.0))
    await asyncio.sleep(0.5)  # those that found room are being tried, and say whether storage is there again
    store.script = {}
    await second
    assert now() - start < 1.2
    await asyncio.sleep(1.0)
    third = await manager.write(store, writes[300:], deadline_s=1.0)
    assert all(result.ok for result in third)
    assert len(store.order) <= 4 + 4 + 100


@virtual_time
async def test_writes_wait_for_a_slow_card_as_long_as_it_takes():
    manager, store = manager_of(snic_bytes_per_s=1e6, burst_bytes=1), ScriptedStore()
    writes = writes_of(1200)
    start = now()
    results = await manager.write(store, writes, deadline_s=10.0)
    assert all(result.ok for result in results)
    assert now() - start == pytest.approx(1200 * BLOCK / 1e6, rel=0.03)  # twice the deadline


def store_of(blocks, hanging=()):
    store = ScriptedStore()
    store.blocks = {i.to_bytes(4, "little"): bytes(BLOCK) for i in range(blocks)}
    store.script = {i.to_bytes(4, "little"): "hangs" for i in hanging}
    return store


@virtual_time
async def test_requests_do_not_wait_for_one_another_before_storage_that_hangs():
    manager, store = manager_of(), store_of(1000, hanging=range(800))
    manager._storage._ahead.limit_bytes = 16 * BLOCK
    requests = [reads_of(range(20 * i, 20 * i + 20)) for i in range(40)]
    found = await asyncio.gather(*(statuses(manager, store, reads) for reads in requests))
    assert {results[0] for results, _ in found} == {Status.TIMED_OUT}
    assert max(took for _, took in found) < 2.5  # one wave that hangs until its deadline, and one beside it
    await asyncio.sleep(2.0)
    again, _ = await statuses(manager, store, reads_of(range(800, 1000)))
    assert again == [Status.OK] * 200


@virtual_time
async def test_a_read_that_hangs_hurts_one_request_alone():
    manager, store = manager_of(), store_of(400, hanging=[200])
    manager._storage._ahead.limit_bytes = 16 * BLOCK
    requests = [reads_of(range(20 * i, 20 * i + 20)) for i in range(20)]
    found = await asyncio.gather(*(statuses(manager, store, reads) for reads in requests))
    assert [i for i, (results, _) in enumerate(found) if results != [Status.OK] * 20] == [10]


@virtual_time
async def test_blocks_in_memory_are_read_while_storage_hangs():
    manager, store = manager_of(), store_of(400, hanging=range(200))
    manager._storage._ahead.limit_bytes = 16 * BLOCK
    store.in_memory = {i.to_bytes(4, "little") for i in range(200, 400)}
    hung = [asyncio.create_task(statuses(manager, store, reads_of(range(20 * i, 20 * i + 20)))) for i in range(10)]
    await asyncio.sleep(1.2)
    assert (await statuses(manager, store, reads_of(range(200, 400))))[0] == [Status.OK] * 200
    await asyncio.gather(*hung)
