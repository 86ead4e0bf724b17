"""The host arena: all or nothing, first come first served, quarantined until quiet, nothing ever lost."""

import asyncio

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dualpath_jax.engine.host_buffers import ArenaStats, HostArena, ReservationTimeout
from dualpath_storage.layout import KVLayout

LAYOUT = KVLayout.mla(layers=3, latent=5, rope=2, dtype="bfloat16", block_tokens=1)  # 42 bytes: no multiple of 64


async def reserved(arena, blocks, deadline_s=5.0):
    return await arena.reserve(blocks, deadline_s=deadline_s)


async def waiting(arena, blocks, deadline_s=5.0):
    task = asyncio.create_task(arena.reserve(blocks, deadline_s=deadline_s))
    await asyncio.sleep(0)
    return task


async def test_slots_are_aligned_disjoint_and_of_the_layouts_size():
    arena = HostArena(LAYOUT, 5)
    with await reserved(arena, 5) as reservation:
        for i, (block, view) in enumerate(zip(reservation.blocks, reservation.views(), strict=True)):
            assert block.shape == (LAYOUT.block_bytes,)
            assert block.dtype == np.uint8
            assert block.ctypes.data % 64 == 0
            view[:] = bytes([i]) * LAYOUT.block_bytes
        assert [set(block.tolist()) for block in reservation.blocks] == [{i} for i in range(5)]
        assert arena.stats == ArenaStats(free=0, reserved=5, quarantined=0)
    assert arena.stats == ArenaStats(free=5, reserved=0, quarantined=0)


async def test_a_reservation_is_all_or_nothing_and_small_ones_do_not_overtake():
    arena = HostArena(LAYOUT, 4)
    first = await reserved(arena, 3)
    large = await waiting(arena, 4)
    small = await waiting(arena, 1)
    await asyncio.sleep(0.01)
    assert not large.done()
    assert not small.done()
    assert arena.stats.free == 1
    first.release()
    got = await large
    assert len(got.blocks) == 4
    got.release()
    (await small).release()
    assert arena.stats.free == 4


async def test_more_than_the_arena_is_an_error_at_once_and_none_is_always_granted():
    arena = HostArena(LAYOUT, 4)
    with pytest.raises(ValueError, match=r"5 blocks: expected 0 to 4.*raise host_buffer_blocks"):
        await reserved(arena, 5)
    with pytest.raises(ValueError, match="-1 blocks"):
        await reserved(arena, -1)
    everything = await reserved(arena, 4)
    assert (await reserved(arena, 0)).blocks == []
    everything.release()
    with pytest.raises(ValueError, match="0 blocks: expected at least 1"):
        HostArena(LAYOUT, 0)


async def test_a_timeout_says_what_is_missing_and_holds_nothing():
    arena = HostArena(LAYOUT, 4)
    first = await reserved(arena, 3)
    too_many = await waiting(arena, 2, deadline_s=0.05)
    after = await waiting(arena, 1)
    with pytest.raises(
        ReservationTimeout, match=r"2 wanted, 1 free; waited 0\.05 s; raise host_buffer_blocks"
    ) as caught:
        await too_many
    assert (caught.value.wanted, caught.value.free) == (2, 1)
    (await after).release()
    first.release()
    assert arena.stats.free == 4


async def test_a_cancelled_wait_lets_the_next_one_in():
    arena = HostArena(LAYOUT, 4)
    first = await reserved(arena, 3)
    large = await waiting(arena, 4)
    small = await waiting(arena, 1)
    large.cancel()
    got = await small
    got.release()
    first.release()
    # Cancelled in the moment of the grant, it gives the slots back.
    first = await reserved(arena, 4)
    late = await waiting(arena, 2)
    first.release()
    late.cancel()
    with pytest.raises(asyncio.CancelledError):
        await late
    assert arena.stats == ArenaStats(free=4, reserved=0, quarantined=0)


async def test_released_slots_rest_until_every_hold_has_ended():
    arena = HostArena(LAYOUT, 4)
    reservation = await reserved(arena, 3)
    view = reservation.views()[0]
    transfers = [asyncio.get_running_loop().create_future() for _ in range(3)]
    for transfer in transfers[:2]:
        reservation.hold(transfer)
    waiter = await waiting(arena, 4)
    with reservation.touching():
        reservation.release()
        reservation.release()
        reservation.hold(transfers[2])  # not too late: others still hold it
        assert arena.stats == ArenaStats(free=1, reserved=0, quarantined=3)
        view[:] = bytes(LAYOUT.block_bytes)
    transfers[0].set_result(None)
    transfers[1].set_exception(OSError("a transfer that failed is quiet too"))
    transfers[1].exception()
    await asyncio.sleep(0.01)
    assert arena.stats.quarantined == 3
    assert not waiter.done()
    transfers[2].cancel()
    (await waiter).release()
    assert arena.stats == ArenaStats(free=4, reserved=0, quarantined=0)


async def test_using_slots_after_release_is_an_error():
    arena = HostArena(LAYOUT, 1)
    reservation = await reserved(arena, 1)
    reservation.release()
    with pytest.raises(RuntimeError, match="may belong to another request"):
        _ = reservation.blocks
    with pytest.raises(RuntimeError, match="hold before releasing"):
        reservation.hold(asyncio.get_running_loop().create_future())
    with pytest.raises(RuntimeError, match="hold before releasing"), reservation.touching():
        pass


class Naive:
    """The arena as arithmetic: a first-in-first-out queue and three counters."""

    def __init__(self, blocks):
        self.free = blocks
        self.queue = []
        self.granted = {}  # name -> [blocks, holds, released]

    def grant(self):
        while self.queue and self.queue[0][1] <= self.free:
            name, blocks = self.queue.pop(0)
            self.free -= blocks
            self.granted[name] = [blocks, 0, False]

    def settle(self, name):
        blocks, holds, released = self.granted[name]
        if released and not holds:
            self.free += blocks
            del self.granted[name]
        self.grant()

    @property
    def stats(self):
        held = [(blocks, released) for blocks, _, released in self.granted.values()]
        quarantined = sum(blocks for blocks, released in held if released)
        return ArenaStats(self.free, sum(blocks for blocks, _ in held) - quarantined, quarantined)


ACTIONS = st.lists(
    st.tuples(st.sampled_from(["reserve", "cancel", "release", "hold", "end"]), st.integers(0, 5)), max_size=40
)


@settings(max_examples=150, deadline=None)
@given(ACTIONS)
def test_it_agrees_with_a_naive_model(actions):
    asyncio.run(compare(actions))


async def compare(actions):
    arena, model = HostArena(LAYOUT, 5), Naive(5)
    tasks, reservations, holds = {}, {}, {}
    for step, (action, number) in enumerate(actions):
        if action == "reserve":
            tasks[step] = asyncio.create_task(arena.reserve(number, deadline_s=60))
            model.queue.append((step, number))
            model.grant()
        elif action == "cancel" and model.queue:
            name, _ = model.queue.pop(number % len(model.queue))
            tasks.pop(name).cancel()
            model.grant()
        elif action == "release" and model.granted:
            name = sorted(model.granted)[number % len(model.granted)]
            reservations[name].release()
            model.granted[name][2] = True
            model.settle(name)
        elif action == "hold" and model.granted:
            name = sorted(model.granted)[number % len(model.granted)]
            future = asyncio.get_running_loop().create_future()
            reservations[name].hold(future)
            holds.setdefault(name, []).append(future)
            model.granted[name][1] += 1
        elif action == "end" and holds:
            name = sorted(holds)[number % len(holds)]
            holds[name].pop().set_result(None)
            holds = {name: futures for name, futures in holds.items() if futures}
            model.granted[name][1] -= 1
            model.settle(name)
        for _ in range(4):
            await asyncio.sleep(0)
        done = {name for name, task in tasks.items() if task.done()}
        reservations |= {name: tasks.pop(name).result() for name in done}
        assert arena.stats == model.stats
        assert done <= set(reservations)
        assert set(tasks) == {name for name, _ in model.queue}
        alive = [reservations[name] for name, (_, _, released) in model.granted.items() if not released]
        living = [slot.ctypes.data for reservation in alive for slot in reservation.blocks]
        assert len(set(living)) == len(living)
    for task in tasks.values():
        task.cancel()
    await asyncio.gather(*tasks.values(), return_exceptions=True)
