"""Engine-to-engine writes and staging copies through the traffic manager."""

import asyncio
import contextlib
import time

import numpy as np
import pytest

from dualpath_configs import NetworkSpec
from dualpath_jax.transfer import Failure, GrpcTransport, Lane, LaneTraffic, RegionWrite, TrafficManager
from dualpath_jax.transfer.cutting import cut
from tests.transfer.conftest import LANE_DSCP, assert_no_tasks_left
from tests.transfer.testbed import LAYOUT, MIB, failure_of, pieces, random_bytes


@contextlib.asynccontextmanager
async def pair(**network):
    """Two nodes of two engines: (transport, manager) each."""
    nodes = []
    for _ in range(2):
        transport = GrpcTransport(lane_dscp=LANE_DSCP)
        manager = TrafficManager(transport, layout=LAYOUT, network=NetworkSpec(**network), engines=2)
        transport.set_gate(manager.inbound_gate)
        await transport.start()
        nodes.append((transport, manager))
    try:
        yield nodes
    finally:
        for transport, manager in nodes:
            await transport.close()
            await manager.close()
        assert_no_tasks_left()


async def test_a_send_is_cut_lands_whole_and_is_counted_on_both_sides():
    async with pair(cnic_bytes_per_s=5e6, burst_bytes=1) as ((_, sender), (receiver, inbound)):
        memory, source = np.zeros(5 * MIB, np.uint8), random_bytes(5 * MIB)
        handle = receiver.register([memory.data], engine=1)
        batch = pieces(source, handle, 32768)
        await sender.send(receiver.address, batch[:32], engine=0, lane=Lane.LOAD, need=(0,), deadline_s=10)
        start = time.monotonic()
        await sender.send(receiver.address, batch, engine=0, lane=Lane.LOAD, need=(0,), deadline_s=10)
        took = time.monotonic() - start
        assert (memory == source).all()
        # The two cards work in turn on one submission and at once on several.
        assert 5 * MIB / 5e6 <= took < 1.9 * 5 * MIB / 5e6
        (lane,) = sender.stats().lanes
        assert lane == LaneTraffic(Lane.LOAD, receiver.address, 6 * MIB, 6, 192, 192)
        assert lane.submissions_per_block == 1 / 32
        assert sender.stats().cnic_bytes == (6 * MIB, 0)
        assert inbound.stats().cnic_bytes == (0, 6 * MIB)
        assert inbound.stats().cnic_busy_s == pytest.approx((0, 6 * MIB / 5e6))


async def test_an_earlier_layer_overtakes_a_later_one_and_loads_overtake_stores():
    async with pair(cnic_bytes_per_s=20e6, burst_bytes=1) as ((_, sender), (receiver, _)):
        memory = np.zeros(8 * MIB, np.uint8)
        handle = receiver.register([memory.data])
        order = []

        async def send(name, mebibytes, lane, need):
            source = np.ones(mebibytes * MIB, np.uint8)
            batch = pieces(source, handle, 32768)
            await sender.send(receiver.address, batch, engine=0, lane=lane, need=need, deadline_s=20)
            order.append(name)

        waiting = [
            asyncio.create_task(send(*arguments))
            for arguments in [
                ("store", 4, Lane.STORE, (0,)),
                ("layer 7", 2, Lane.LOAD, (7,)),
                ("layer 3", 2, Lane.LOAD, (3,)),
            ]
        ]
        await asyncio.sleep(0.05)
        await send("layer 1", 1, Lane.LOAD, (1,))
        await asyncio.gather(*waiting)
        assert order == ["layer 1", "layer 3", "layer 7", "store"]


async def test_a_background_of_stores_costs_a_load_little():
    async def load_time(background):
        async with pair(cnic_bytes_per_s=20e6, burst_bytes=1) as ((_, sender), (receiver, _)):
            memory = [np.zeros(8 * MIB, np.uint8) for _ in range(2)]
            handles = [receiver.register([m.data], engine=engine) for engine, m in enumerate(memory)]
            source = np.ones(8 * MIB, np.uint8)
            for lane in (Lane.LOAD, Lane.STORE):  # connect
                batch = pieces(source[:1000], handles[0], 1000)
                await sender.send(receiver.address, batch, engine=1, lane=lane, deadline_s=20)
            store = None
            if background:
                batch = pieces(source, handles[1], 32768)
                store = asyncio.create_task(
                    sender.send(receiver.address, batch, engine=0, lane=Lane.STORE, deadline_s=20)
                )
                await asyncio.sleep(0.05)
            start = time.monotonic()
            batch = pieces(source[: 2 * MIB], handles[0], 32768)
            await sender.send(receiver.address, batch, engine=0, lane=Lane.LOAD, deadline_s=20)
            took = time.monotonic() - start
            if store is not None:
                assert not store.done()
                store.cancel()
                await asyncio.gather(store, return_exceptions=True)
            return took

    assert await load_time(background=True) < 1.8 * await load_time(background=False)


async def test_loads_overtake_stores_at_the_receiving_card_too(make_transport):
    receiver, storing, loading = [await make_transport() for _ in range(3)]
    network = NetworkSpec(cnic_bytes_per_s=10e6, burst_bytes=1)
    receiver.set_gate(TrafficManager(receiver, layout=LAYOUT, network=network, engines=1).inbound_gate)
    memory = [np.zeros(size, np.uint8) for size in (12 * MIB, MIB)]
    handles = [receiver.register([m.data]) for m in memory]
    source = np.ones(12 * MIB, np.uint8)
    store = asyncio.gather(
        *(
            storing.write(receiver.address, [write], lane=Lane.STORE, deadline_s=30)
            for write in pieces(source, handles[0], MIB)
        )
    )
    await asyncio.sleep(0.2)
    await loading.write(receiver.address, pieces(source[:MIB], handles[1], 32768), lane=Lane.LOAD, deadline_s=30)
    stored_bytes = memory[0].sum()
    assert memory[1].all()
    # At that rate a MiB takes 0.1 s, and the stores that came before take more than a second.
    assert stored_bytes <= 8 * MIB
    await store
    assert memory[0].all()


async def test_a_send_ends_at_its_deadline_and_frees_what_it_held():
    async with pair(cnic_bytes_per_s=1e6, burst_bytes=1) as ((_, sender), (receiver, _)):
        memory = np.zeros(4 * MIB, np.uint8)
        handle = receiver.register([memory.data])
        source = np.ones(4 * MIB, np.uint8)
        start = time.monotonic()
        error = await failure_of(
            sender.send(receiver.address, pieces(source, handle, MIB), engine=0, lane=Lane.LOAD, deadline_s=0.3)
        )
        assert error.failure is Failure.TIMED_OUT
        assert "waiting included" in str(error)
        assert time.monotonic() - start < 2
        # The card is free again: a small write is not behind the rest of the large one.
        small = pieces(source[:1000], handle, 1000)
        await sender.send(receiver.address, small, engine=0, lane=Lane.LOAD, deadline_s=1)
        assert all(window.in_flight_bytes == 0 for window in sender._windows.values())


async def test_a_refused_submission_fails_the_send_and_ends_its_others():
    async with pair() as ((_, sender), (receiver, _)):
        memory = np.zeros(MIB, np.uint8)
        handle = receiver.register([memory.data])
        batch = pieces(np.ones(64 * MIB, np.uint8), handle, 32768)
        error = await failure_of(sender.send(receiver.address, batch, engine=0, lane=Lane.LOAD, deadline_s=10))
        assert error.failure is Failure.REFUSED
        assert sender.stats().cnic_bytes[0] < 64 * MIB + 1
        assert all(window.in_flight_bytes == 0 for window in sender._windows.values())


async def test_a_cancelled_send_stops_and_the_next_one_passes():
    async with pair(cnic_bytes_per_s=10e6, burst_bytes=1) as ((_, sender), (receiver, _)):
        memory = np.zeros(8 * MIB, np.uint8)
        handle = receiver.register([memory.data])
        batch = pieces(np.ones(8 * MIB, np.uint8), handle, MIB)
        task = asyncio.create_task(sender.send(receiver.address, batch, engine=0, lane=Lane.LOAD, deadline_s=10))
        await asyncio.sleep(0.15)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        start = time.monotonic()
        await sender.send(receiver.address, batch[:1], engine=0, lane=Lane.LOAD, deadline_s=10)
        assert time.monotonic() - start < 4 * MIB / 10e6


async def test_copies_pass_the_card_and_let_the_loop_run():
    async with pair(cnic_bytes_per_s=50e6, burst_bytes=1) as ((_, manager), _):
        source, target = random_bytes(5 * MIB), np.zeros(5 * MIB, np.uint8)
        pairs = [(target.data[i : i + 70_000], source.data[i : i + 70_000]) for i in range(0, 5 * MIB, 70_000)]
        start = time.monotonic()
        await manager.copy(pairs, engine=1, need=(0,))
        assert (target == source).all()
        assert time.monotonic() - start >= 5 * MIB / 50e6
        assert manager.stats().cnic_bytes == (0, 5 * MIB)
        (lane,) = manager.stats().lanes
        assert (lane.peer, lane.bytes, lane.pieces) == ("host", 5 * MIB, 75)


async def test_copies_without_a_limit_yield_to_the_loop_again_and_again():
    async with pair() as ((_, manager), _):
        source, target = np.ones(16 * MIB, np.uint8), np.zeros(16 * MIB, np.uint8)
        turns = 0

        async def count():
            nonlocal turns
            while True:
                turns += 1
                await asyncio.sleep(0)

        counter = asyncio.create_task(count())
        await manager.copy([(target.data, source.data)], engine=0)
        counter.cancel()
        assert target.all()
        assert turns >= 30


async def test_a_pair_of_unequal_lengths_copies_nothing():
    async with pair() as ((_, manager), _):
        target = bytearray(3)
        pairs = [(memoryview(target), memoryview(b"abc")), (memoryview(target), memoryview(b"ab"))]
        with pytest.raises(ValueError, match="pair 1 copies 2 bytes into 3"):
            await manager.copy(pairs, engine=0)
        assert target == bytes(3)


def test_cutting_keeps_order_and_bytes_and_splits_only_what_is_too_long():
    assert cut([3, 0, 4, 25, 1], 10) == [[(0, 0, 3), (2, 0, 4)], [(3, 0, 10)], [(3, 10, 20)], [(3, 20, 25), (4, 0, 1)]]
    assert cut([], 10) == []


def test_a_write_of_no_bytes_is_no_submission():
    from dualpath_jax.transfer.cutting import cut_writes

    assert cut_writes([RegionWrite(memoryview(b""), None, 0)], 10) == []
