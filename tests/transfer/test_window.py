"""A bounded number of bytes in flight, by need."""

import asyncio

import pytest

from dualpath_jax.transfer.window import Window


async def enter(window, size, need, log, release):
    async with window.slot(size, need):
        log.append(need)
        await release.wait()


async def test_it_admits_by_need_and_never_more_than_its_size():
    window, log, release = Window(10), [], asyncio.Event()
    tasks = [asyncio.create_task(enter(window, 6, need, log, release)) for need in [(1,), (9,), (3,), (3, 1), ()]]
    await asyncio.sleep(0.01)
    assert (log, window.in_flight_bytes) == ([(1,)], 6)
    release.set()
    await asyncio.gather(*tasks)
    assert log == [(1,), (), (3,), (3, 1), (9,)]
    assert window.in_flight_bytes == 0


async def test_what_is_larger_than_the_window_passes_alone():
    window, log, release = Window(10), [], asyncio.Event()
    tasks = [asyncio.create_task(enter(window, size, (size,), log, release)) for size in (25, 30)]
    await asyncio.sleep(0.01)
    assert log == [(25,)]
    release.set()
    await asyncio.gather(*tasks)
    assert log == [(25,), (30,)]


async def test_cancelled_at_any_point_it_gives_everything_back():
    window, log, release = Window(10), [], asyncio.Event()
    tasks = [asyncio.create_task(enter(window, 6, (i,), log, release)) for i in range(4)]
    await asyncio.sleep(0.01)
    tasks[1].cancel()  # waits
    tasks[0].cancel()  # is in, and lets the next one in ...
    await asyncio.sleep(0)
    tasks[2].cancel()  # ... which is cancelled in the moment it was let in
    await asyncio.sleep(0.01)
    assert log[-1] == (3,)
    assert window.in_flight_bytes == 6
    release.set()
    await asyncio.gather(*tasks, return_exceptions=True)
    assert window.in_flight_bytes == 0


def test_a_window_has_a_size():
    with pytest.raises(ValueError, match="0 bytes"):
        Window(0)
