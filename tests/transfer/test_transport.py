"""What every transport must do. A new kind joins by `KINDS` in conftest.py and `make` in peer_process.py."""

import asyncio
import time

import numpy as np
import pytest

from dualpath_jax.transfer import Failure, Lane, RegionHandle, RegionWrite
from tests.transfer.testbed import MIB, Gate, failure_of, pieces, random_bytes


async def test_a_batch_lands_in_every_segment_and_nowhere_else(make_transport):
    sender, receiver = await make_transport(), await make_transport()
    segments = [np.full(MIB, 7, np.uint8) for _ in range(4)]
    handle = receiver.register([segment.data for segment in segments])
    assert handle.size_bytes == 4 * MIB
    source = random_bytes(3 * MIB)
    await sender.write(receiver.address, pieces(source, handle, 32768, MIB), lane=Lane.LOAD, deadline_s=10)
    assert (segments[0] == 7).all()
    assert (np.concatenate(segments[1:]) == source).all()


@pytest.mark.parametrize("sizes", [[1], [5, 1, 0, 3], [3 * MIB + 17], [65_537] * 40], ids=str)
async def test_pieces_of_any_size_land_in_any_order(make_transport, sizes):
    sender, receiver = await make_transport(), await make_transport()
    memory = np.zeros(sum(sizes), np.uint8)
    handle = receiver.register([memory.data])
    source = random_bytes(sum(sizes))
    starts = np.cumsum([0, *sizes[:-1]])
    batch = [RegionWrite(source.data[a : a + n], handle, int(a)) for a, n in zip(starts, sizes, strict=True)]
    await sender.write(receiver.address, batch[::-1], lane=Lane.STORE, deadline_s=10)
    assert (memory == source).all()


async def test_an_empty_batch_is_fine_whoever_the_peer_is(make_transport):
    sender = await make_transport()
    await sender.write("127.0.0.1:1", [], lane=Lane.LOAD, deadline_s=0.001)


async def test_a_write_outside_the_region_or_across_segments_is_refused_and_writes_nothing(make_transport):
    sender, receiver = await make_transport(), await make_transport()
    segments = [np.zeros(100, np.uint8) for _ in range(2)]
    handle = receiver.register([segment.data for segment in segments])
    source = np.ones(100, np.uint8).data
    for offset, size, reason in [(150, 51, "inside"), (201, 1, "inside"), (50, 51, "segment"), (2**40, 1, "inside")]:
        batch = [RegionWrite(source[:10], handle, 0), RegionWrite(source[:size], handle, offset)]
        error = await failure_of(sender.write(receiver.address, batch, lane=Lane.LOAD, deadline_s=10))
        assert error.failure is Failure.REFUSED
        assert reason in str(error)
        assert str(offset) in str(error)
    assert not np.concatenate(segments).any()
    await sender.write(receiver.address, [RegionWrite(source[:50], handle, 150)], lane=Lane.LOAD, deadline_s=10)
    assert segments[1][50:].all()


async def test_stale_and_unknown_handles_are_refused(make_transport):
    sender, receiver = await make_transport(), await make_transport()
    memory = np.zeros(100, np.uint8)
    old = receiver.register([memory.data])
    await receiver.deregister(old)
    await receiver.deregister(old)
    new = receiver.register([memory.data])
    assert (new.region_id, new.generation) != (old.region_id, old.generation)
    mixed = RegionHandle(new.region_id, old.generation, 100)
    source = np.ones(100, np.uint8).data
    for handle in (old, mixed, RegionHandle(1, 2, 100)):
        error = await failure_of(
            sender.write(receiver.address, [RegionWrite(source, handle, 0)], lane=Lane.LOAD, deadline_s=10)
        )
        assert error.failure is Failure.REFUSED
        assert receiver.address in str(error)
    await receiver.deregister(mixed)
    assert not memory.any()
    await sender.write(receiver.address, [RegionWrite(source, new, 0)], lane=Lane.LOAD, deadline_s=10)
    assert memory.all()


async def test_segments_must_be_writable_and_of_one_length(make_transport):
    transport = await make_transport()
    with pytest.raises(ValueError, match=r"\[3, 4\] bytes: expected all of one length"):
        transport.register([memoryview(bytearray(3)), memoryview(bytearray(4))])
    with pytest.raises(ValueError, match="read-only"):
        transport.register([memoryview(b"abc")])


async def test_many_writers_at_once(make_transport):
    sender, receiver = await make_transport(), await make_transport()
    memory = np.zeros(16 * MIB, np.uint8)
    handle = receiver.register([memory.data])
    source = random_bytes(16 * MIB)
    share = MIB // 4
    await asyncio.gather(
        *(
            sender.write(
                receiver.address,
                pieces(source[start : start + share], handle, 32768, start),
                lane=Lane(1 + start // share % 2),
                deadline_s=30,
            )
            for start in range(0, 16 * MIB, share)
        )
    )
    assert (memory == source).all()


async def test_both_directions_at_once(make_transport):
    ends = [await make_transport(), await make_transport()]
    memory = [np.zeros(4 * MIB, np.uint8) for _ in ends]
    handles = [end.register([m.data]) for end, m in zip(ends, memory, strict=True)]
    sources = [random_bytes(4 * MIB, seed) for seed in range(2)]
    await asyncio.gather(
        *(
            ends[i].write(ends[1 - i].address, pieces(sources[i], handles[1 - i], MIB), lane=Lane.LOAD, deadline_s=30)
            for i in range(2)
        )
    )
    assert (memory[1] == sources[0]).all()
    assert (memory[0] == sources[1]).all()


async def test_nobody_at_the_address_is_a_lost_peer_at_once(make_transport):
    sender = await make_transport()
    start = time.monotonic()
    batch = [RegionWrite(memoryview(b"x"), RegionHandle(1, 1, 1), 0)]
    error = await failure_of(sender.write("127.0.0.1:1", batch, lane=Lane.LOAD, deadline_s=30))
    assert error.failure is Failure.PEER_LOST
    assert time.monotonic() - start < 5


async def test_cancelled_in_mid_batch_no_source_is_read_any_more(make_transport):
    gate = Gate(0)
    sender, receiver = await make_transport(), await make_transport(gate=gate)
    memory = np.zeros(64 * MIB, np.uint8)
    handle = receiver.register([memory.data])
    source = np.ones(64 * MIB, np.uint8)
    task = asyncio.create_task(
        sender.write(receiver.address, pieces(source, handle, MIB), lane=Lane.LOAD, deadline_s=30)
    )
    await gate.waiting.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    source[:] = 2
    gate.open()
    # The same stream still works, and what was cancelled does not come back.
    await sender.write(receiver.address, pieces(source[:MIB], handle, MIB, 63 * MIB), lane=Lane.LOAD, deadline_s=30)
    assert set(np.unique(memory[: 63 * MIB])) <= {0, 1}
    assert (memory[63 * MIB :] == 2).all()


async def test_the_deadline_ends_a_write_that_waits_and_the_stream_goes_on(make_transport):
    gate = Gate(0)
    sender, receiver = await make_transport(), await make_transport(gate=gate)
    memory = np.zeros(MIB, np.uint8)
    handle = receiver.register([memory.data])
    source = np.ones(MIB, np.uint8)
    error = await failure_of(
        sender.write(receiver.address, pieces(source, handle, MIB), lane=Lane.LOAD, deadline_s=0.2)
    )
    assert error.failure is Failure.TIMED_OUT
    assert "0.2 s" in str(error)
    gate.open()
    await sender.write(receiver.address, pieces(source, handle, MIB), lane=Lane.LOAD, deadline_s=10)
    assert memory.all()


async def test_after_deregister_has_returned_the_memory_is_not_touched(make_transport):
    gate = Gate(0)
    sender, receiver = await make_transport(), await make_transport(gate=gate)
    memory = np.zeros(8 * MIB, np.uint8)
    handle = receiver.register([memory.data])
    batch = pieces(np.ones(8 * MIB, np.uint8), handle, 32768)
    task = asyncio.create_task(sender.write(receiver.address, batch, lane=Lane.LOAD, deadline_s=10))
    await gate.waiting.wait()
    await receiver.deregister(handle)
    memory[:] = 3
    gate.open()
    assert (await failure_of(task)).failure is Failure.REFUSED
    assert (memory == 3).all()


async def test_a_shut_gate_holds_back_neither_another_lane_nor_another_engine(make_transport):
    gate = Gate(0)
    sender, receiver = await make_transport(), await make_transport(gate=gate)
    memory = [np.zeros(8 * MIB, np.uint8) for _ in range(2)]
    handles = [receiver.register([m.data], engine=engine) for engine, m in enumerate(memory)]
    source = np.ones(8 * MIB, np.uint8)
    store = asyncio.create_task(
        sender.write(receiver.address, pieces(source, handles[0], MIB), lane=Lane.STORE, deadline_s=30)
    )
    await gate.waiting.wait()
    for lane in (Lane.STORE, Lane.LOAD):
        memory[1][:] = 0
        await sender.write(receiver.address, pieces(source[:MIB], handles[1], MIB), lane=lane, deadline_s=5)
        assert memory[1][:MIB].all()
    assert not store.done()
    gate.open()
    await store
    assert memory[0].all()


async def test_close_fails_what_is_running_and_everything_after(make_transport):
    gate = Gate(0)
    sender, receiver = await make_transport(), await make_transport(gate=gate)
    memory = np.zeros(MIB, np.uint8)
    handle = receiver.register([memory.data])
    batch = pieces(np.ones(MIB, np.uint8), handle, MIB)
    task = asyncio.create_task(sender.write(receiver.address, batch, lane=Lane.LOAD, deadline_s=30))
    await gate.waiting.wait()
    await sender.close()
    assert (await failure_of(task)).failure is Failure.CLOSED
    error = await failure_of(sender.write(receiver.address, batch, lane=Lane.LOAD, deadline_s=30))
    assert error.failure is Failure.CLOSED
    await sender.close()


async def test_a_receiver_that_closes_fails_its_senders_and_frees_its_port(make_transport):
    gate = Gate(0)
    sender, receiver = await make_transport(), await make_transport(gate=gate)
    memory = np.zeros(MIB, np.uint8)
    handle = receiver.register([memory.data])
    batch = pieces(np.ones(MIB, np.uint8), handle, MIB)
    task = asyncio.create_task(sender.write(receiver.address, batch, lane=Lane.LOAD, deadline_s=30))
    await gate.waiting.wait()
    start = time.monotonic()
    await receiver.close()
    assert (await failure_of(task)).failure is Failure.PEER_LOST
    assert time.monotonic() - start < 5
    gate.open()
    again = await make_transport(bind=receiver.address)
    assert again.address == receiver.address
    error = await failure_of(sender.write(again.address, batch, lane=Lane.LOAD, deadline_s=30))
    assert error.failure is Failure.REFUSED
    assert not memory.any()


async def test_a_taken_port_is_an_error_that_names_it(make_transport):
    first = await make_transport()
    with pytest.raises(OSError, match=first.address):
        await make_transport(bind=first.address)
