"""Storage through the traffic manager: order, windows, deadlines, what is counted, and what is left behind."""

import asyncio
from dataclasses import replace

import numpy as np
import pytest

from dualpath_configs import NetworkSpec
from dualpath_jax.transfer import GrpcTransport, TrafficManager, handover
from dualpath_storage.store import BlockRead, BlockResult, BlockWrite, Status, StoreError
from tests.transfer.testbed import LAYOUT, ScriptedStore, now, virtual_time

BLOCK = LAYOUT.block_bytes


def make_manager(*, free=False, **network):
    """A manager whose transport is never used."""
    transport = GrpcTransport(lane_dscp={})
    return TrafficManager(transport, layout=LAYOUT, network=NetworkSpec(**network), engines=2, free=free)


def key(i):
    return i.to_bytes(4, "little")


def store_of(blocks):
    store = ScriptedStore()
    store.blocks = {key(i): bytes([i % 251]) * BLOCK for i in range(blocks)}
    return store


def reads_of(indices):
    buffers = [np.full(BLOCK, 255, np.uint8) for _ in indices]
    return [BlockRead(key(i), b"", buffer.data) for i, buffer in zip(indices, buffers, strict=True)]


async def read(manager, store, indices, **options):
    reads = reads_of(indices)
    return reads, await manager.read(store, reads, **{"deadline_s": 5.0} | options)


@virtual_time
async def test_reads_fill_the_buffers_at_the_cards_rate_and_are_counted():
    manager, store = make_manager(snic_bytes_per_s=10e6, burst_bytes=1), store_of(200)
    store.delay_s = 0.002
    start = now()
    reads, results = await read(manager, store, range(200))
    took = now() - start
    assert all(result.ok for result in results)
    assert all(set(read.into.tobytes()) == {i % 251} for i, read in enumerate(reads))
    assert took == pytest.approx(200 * BLOCK / 10e6, rel=0.03)
    stats = manager.stats()
    assert stats.snic_read_bytes == 200 * BLOCK == sum(sample.read_bytes for sample in stats.snic_samples)
    assert stats.snic_read_busy_s == pytest.approx(200 * BLOCK / 10e6)
    assert stats.snic_written_bytes == 0


@virtual_time
async def test_calls_are_served_first_come_first_served_unless_one_is_needed_first():
    manager, store = make_manager(snic_bytes_per_s=50e6, burst_bytes=1), store_of(5)
    # Blocks as large as the read-ahead: one at a time, in the order of service.
    manager._storage._ahead.limit_bytes = BLOCK
    calls = [((2,), [0, 1]), ((2,), [2]), ((1,), [3, 4])]
    await asyncio.gather(*(read(manager, store, indices, need=need) for need, indices in calls))
    assert store.order == [key(0), key(3), key(4), key(1), key(2)]


@virtual_time
async def test_the_read_ahead_is_bounded():
    manager, store = make_manager(snic_bytes_per_s=2e6, burst_bytes=1), store_of(64)
    manager._storage._ahead.limit_bytes = 4 * BLOCK
    task = asyncio.create_task(read(manager, store, range(64)))
    await asyncio.sleep(0.1)
    passed = manager.stats().snic_read_bytes // BLOCK
    assert passed <= len(store.order) <= passed + 6
    assert manager.read_queue_tokens == pytest.approx((64 - passed) * LAYOUT.block_tokens, abs=2 * LAYOUT.block_tokens)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert manager.read_queue_tokens == 0
    assert manager._storage._ahead.in_flight_bytes == 0


@virtual_time
async def test_a_layer_range_counts_and_costs_its_share_of_a_block():
    manager, store = make_manager(snic_bytes_per_s=1e6, burst_bytes=1), store_of(8)
    span = LAYOUT.layer_span(1, 2)
    ranges = [replace(read, into=read.into[span], layers=(1, 2)) for read in reads_of(range(8))]
    start = now()
    task = asyncio.create_task(manager.read(store, ranges, deadline_s=5.0))
    await asyncio.sleep(0)
    assert manager.read_queue_tokens == 8 * LAYOUT.block_tokens // LAYOUT.layers
    assert all(result.ok for result in await task)
    assert now() - start == pytest.approx(8 * LAYOUT.layer_block_bytes / 1e6, rel=0.03)
    assert manager.stats().snic_read_bytes == 8 * LAYOUT.layer_block_bytes
    assert manager.read_queue_tokens == 0


@virtual_time
async def test_a_block_that_hangs_until_its_deadline_does_not_take_its_batch_down():
    """The others of the batch are only known then, and have time left to pass the card."""
    manager, store = make_manager(snic_bytes_per_s=50e6, burst_bytes=1), store_of(6)
    store.script[key(3)] = "hangs"
    _, results = await read(manager, store, range(6), deadline_s=1.0)
    assert [result.status for result in results[:4]] == [*[Status.OK] * 3, Status.TIMED_OUT]
    assert {result.detail for result in results[4:]} == {"not read"}


@pytest.mark.parametrize("status", [Status.MISSING, Status.CORRUPT, Status.TIMED_OUT, Status.FAILED])
@virtual_time
async def test_the_first_block_that_is_not_ok_ends_the_call_and_costs_the_card_nothing(status):
    manager, store = make_manager(snic_bytes_per_s=5e6, burst_bytes=1), store_of(100)
    store.script[key(10)] = BlockResult(status, "as told")
    _, results = await read(manager, store, range(100))
    assert all(result.ok for result in results[:10])
    assert results[10] == BlockResult(status, "as told")
    assert set(results[11:]) == {BlockResult(Status.MISSING, "not read")}
    assert manager.stats().snic_read_bytes <= 10 * BLOCK + 16384  # a chunk that was on the wire
    assert manager.stats().snic_read_bytes >= 10 * BLOCK
    assert manager.read_queue_tokens == 0
    _, results = await read(manager, store, range(20), stop_at_failure=False)
    assert [result.ok for result in results] == [i != 10 for i in range(20)]


@virtual_time
async def test_a_store_that_raises_fails_the_call_and_only_it():
    manager, store = make_manager(), store_of(20)
    store.script[key(3)] = StoreError("no permission")
    other = asyncio.create_task(read(manager, store, range(10, 20)))
    with pytest.raises(StoreError, match="no permission"):
        await read(manager, store, range(10))
    assert all(result.ok for result in (await other)[1])
    assert manager._storage._ahead.in_flight_bytes == 0


@virtual_time
async def test_a_store_that_ignores_its_deadline_times_out_and_its_buffer_rests(monkeypatch):
    monkeypatch.setattr(handover, "GRACE_S", 0.05)
    manager, store = make_manager(), store_of(4)
    store.script[key(1)] = "stuck"
    held = []
    _, results = await read(manager, store, range(4), deadline_s=0.1, hold=held.append)
    # The first block is a batch of its own. The buffers of the whole second batch must rest.
    assert [result.status for result in results] == [Status.OK, Status.TIMED_OUT, Status.MISSING, Status.MISSING]
    assert "0.075 s" in results[1].detail
    assert held == [result.quiet for result in results[1:]]
    assert not held[0].done()
    store.stuck.set()
    await asyncio.wait_for(held[0], 5)


@virtual_time
async def test_a_cancelled_call_waits_for_the_store_and_says_which_buffers_must_rest(monkeypatch):
    monkeypatch.setattr(handover, "GRACE_S", 0.05)
    manager, store = make_manager(), store_of(4)
    store.script[key(1)] = "stuck"
    held = []
    task = asyncio.create_task(read(manager, store, range(4), deadline_s=0.2, hold=held.append))
    await asyncio.sleep(0.05)
    for _ in range(3):
        task.cancel()
        await asyncio.sleep(0.01)
    assert not task.done()  # the store may still write to the caller's buffer
    with pytest.raises(asyncio.CancelledError):
        await task
    assert len(held) == 3
    assert manager._storage._ahead.in_flight_bytes == 0
    await manager.close()
    assert all(quiet.done() for quiet in held)


@virtual_time
async def test_writes_arrive_in_a_bounded_window_and_each_has_its_own_result():
    manager, store = make_manager(snic_bytes_per_s=20e6, burst_bytes=1), ScriptedStore()
    store.delay_s = 0.01
    store.script[key(5)] = BlockResult(Status.FULL, "no room")
    manager._storage._writing.limit_bytes = 4 * BLOCK
    data = [np.full(BLOCK, i, np.uint8) for i in range(40)]
    writes = [BlockWrite(key(i), b"", b"", block.data) for i, block in enumerate(data)]
    results = await manager.write(store, writes, deadline_s=5.0)
    assert [result.status for result in results] == [Status.FULL if i == 5 else Status.OK for i in range(40)]
    assert store.most_running <= 4
    assert store.blocks == {key(i): data[i].tobytes() for i in range(40) if i != 5}
    assert manager.stats().snic_written_bytes == 40 * BLOCK
    assert manager.stats().snic_read_bytes == 0


@virtual_time
async def test_reads_go_to_the_store_in_batches_in_order_and_the_first_block_alone():
    manager, store = make_manager(free=True), store_of(300)
    store.delay_s = 0.01
    _, results = await read(manager, store, range(300))
    assert all(result.ok for result in results)
    assert store.order == [key(i) for i in range(300)]
    assert [len(batch) for batch in store.batches[:4]] == [1, 64, 64, 64]  # quarters of the read-ahead
    assert len(store.batches) <= 12


@virtual_time
async def test_a_batch_waits_for_no_block_that_has_not_had_its_turn():
    manager, store = make_manager(snic_bytes_per_s=10e6, burst_bytes=1), store_of(100)
    manager._storage._ahead.limit_bytes = 8 * BLOCK
    _, results = await read(manager, store, range(100))
    assert all(result.ok for result in results)
    assert [len(batch) for batch in store.batches] == [1, *[2] * 3, *[1] * 93]  # as the card lets them through


@virtual_time
async def test_blocks_that_come_while_writes_are_made_durable_go_together():
    manager, store = make_manager(free=True), ScriptedStore()
    store.delay_s = 0.01
    block = bytes(BLOCK)
    calls = [[BlockWrite(key(10 * call + i), b"", b"", memoryview(block)) for i in range(3)] for call in range(20)]
    results = await asyncio.gather(*(manager.write(store, writes, deadline_s=5.0) for writes in calls))
    assert all(result.ok for call in results for result in call)
    assert len(store.batches) <= 4
    assert store.most_batches == 2
    assert len(store.blocks) == 60


@virtual_time
async def test_a_batchs_deadline_is_its_most_urgent_blocks():
    manager, store = make_manager(free=True), ScriptedStore()
    block = bytes(BLOCK)
    calls = [([BlockWrite(key(i), b"", b"", memoryview(block))], deadline_s) for i, deadline_s in enumerate((3, 7, 5))]
    await asyncio.gather(*(manager.write(store, writes, deadline_s=deadline_s) for writes, deadline_s in calls))
    assert store.deadlines == [pytest.approx(3, abs=0.01), pytest.approx(5, abs=0.01)]


@virtual_time
async def test_a_write_that_storage_does_not_come_to_times_out_and_is_never_begun(monkeypatch):
    monkeypatch.setattr(handover, "GRACE_S", 10.0)
    manager, store = make_manager(free=True), ScriptedStore()
    for i in range(2):
        store.script[key(i)] = "stuck"
    block = bytes(BLOCK)
    writes = [BlockWrite(key(i), b"", b"", memoryview(block)) for i in range(6)]
    stuck = [asyncio.create_task(manager.write(store, writes[i : i + 1], deadline_s=9.0)) for i in range(2)]
    await asyncio.sleep(0.01)
    start = now()
    results = await manager.write(store, writes[2:4], deadline_s=0.5)
    assert now() - start == pytest.approx(0.5, abs=0.01)
    assert [result.detail for result in results] == ["storage did not come to it by its deadline"] * 2
    cancelled = asyncio.create_task(manager.write(store, writes[4:5], deadline_s=9.0))
    await asyncio.sleep(0.01)
    cancelled.cancel()
    with pytest.raises(asyncio.CancelledError):
        await cancelled
    store.stuck.set()
    assert all(result.ok for results in await asyncio.gather(*stuck) for result in results)
    (result,) = await manager.write(store, writes[5:], deadline_s=1.0)
    assert result.ok
    assert set(store.order) == {key(0), key(1), key(5)}


@virtual_time
async def test_a_store_that_ignores_its_deadline_does_not_hold_up_later_writes(monkeypatch):
    monkeypatch.setattr(handover, "GRACE_S", 0.05)
    manager, store = make_manager(free=True), ScriptedStore()
    for i in range(2):
        store.script[key(i)] = "stuck"
    block = bytes(BLOCK)
    writes = [BlockWrite(key(i), b"", b"", memoryview(block)) for i in range(3)]
    for i in range(2):
        (result,) = await manager.write(store, writes[i : i + 1], deadline_s=0.1)
        assert result.status is Status.TIMED_OUT
    (result,) = await manager.write(store, writes[2:], deadline_s=1.0)
    assert result.ok
    await manager.close()


@virtual_time
async def test_writes_do_not_slow_reads_down():
    manager, store = make_manager(snic_bytes_per_s=10e6, burst_bytes=1), store_of(60)
    block = bytes(BLOCK)
    writes = [BlockWrite(key(1000 + i), b"", b"", memoryview(block)) for i in range(120)]
    background = asyncio.create_task(manager.write(store, writes, deadline_s=5.0))
    await asyncio.sleep(0)
    start = now()
    await read(manager, store, range(60))
    assert now() - start == pytest.approx(60 * BLOCK / 10e6, rel=0.03)
    assert not background.done()
    background.cancel()
    with pytest.raises(asyncio.CancelledError):
        await background


@virtual_time
async def test_free_transfers_count_and_do_not_wait():
    manager, store = make_manager(snic_bytes_per_s=1.0, free=True), store_of(50)
    start = now()
    _, results = await read(manager, store, range(50))
    assert now() - start < 0.1
    assert all(result.ok for result in results)
    assert manager.stats().snic_read_bytes == 50 * BLOCK
    assert manager.stats().snic_read_busy_s == 0.0


@virtual_time
async def test_an_empty_call_is_fine():
    manager = make_manager(snic_bytes_per_s=1.0)
    assert await manager.read(ScriptedStore(), [], deadline_s=1.0) == []
    assert await manager.write(ScriptedStore(), [], deadline_s=1.0) == []


@virtual_time
async def test_blocks_in_memory_pass_no_card_and_do_not_wait_for_those_that_do():
    manager, store = make_manager(snic_bytes_per_s=1e6, burst_bytes=1), store_of(40)
    store.in_memory = {key(i) for i in range(20, 40)}
    behind = asyncio.create_task(read(manager, store, range(20)))
    await asyncio.sleep(0.01)
    start = now()
    _, results = await read(manager, store, range(20, 40), need=(9,))
    assert all(result.ok for result in results)
    assert now() - start < 0.01
    assert not behind.done()
    await behind
    stats = manager.stats()
    assert (stats.snic_read_bytes, stats.memory_read_bytes) == (20 * BLOCK, 20 * BLOCK)


@virtual_time
async def test_blocks_are_copied_from_memory_one_at_a_time():
    manager, store = make_manager(), store_of(10)
    store.in_memory = set(store.blocks)
    store.delay_s = 0.001
    await asyncio.gather(*(read(manager, store, range(10)) for _ in range(3)))
    assert store.most_running == 1
