"""Writes to storage that hangs: no queue for it; writes through a card that is slow: all the time that it takes."""

import asyncio

import pytest

from dualpath_configs import NetworkSpec
from dualpath_jax.transfer import GrpcTransport, TrafficManager
from dualpath_storage.store import BlockWrite, Status
from tests.transfer.testbed import LAYOUT, ScriptedStore, now, virtual_time

BLOCK = LAYOUT.block_bytes


def manager_of(**network):
    """A manager whose transport is never used."""
    return TrafficManager(GrpcTransport(lane_dscp={}), layout=LAYOUT, network=NetworkSpec(**network), engines=2)


def writes_of(blocks):
    data = memoryview(bytes(BLOCK))
    return [BlockWrite(i.to_bytes(4, "little"), b"", b"", data) for i in range(blocks)]


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
