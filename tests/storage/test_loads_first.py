"""Loads go before stores: on a device that both share, a full write queue hardly delays a read, and still drains."""

import asyncio
import statistics
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

from dualpath_storage import MemoryStore
from dualpath_storage.loads_first import LULL_S, LoadsFirst
from tests.storage.blocks import LAYOUT, Block, chain, put_all, statuses

BLOCK_S = 0.02
"""How long the slow device takes for a block."""


class SlowDevice:
    """Does one block after the other, in the order in which they came."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._free_at = 0.0
        self.done: list[str] = []

    def behind(self, operation: Callable[..., Any], name: str) -> Callable[..., Any]:
        """The same operation, which now takes the device's time."""

        def wait_and_operate(*arguments: Any, **options: Any) -> Any:
            with self._lock:
                self._free_at = max(time.monotonic(), self._free_at) + BLOCK_S
                self.done.append(name)
                end = self._free_at
            time.sleep(max(0.0, end - time.monotonic()))
            return operation(*arguments, **options)

        return wait_and_operate


def on_slow_device(monkeypatch: pytest.MonkeyPatch) -> tuple[MemoryStore, SlowDevice]:
    store, device = MemoryStore(LAYOUT, threads=4), SlowDevice()
    monkeypatch.setattr(store.medium, "read", device.behind(store.medium.read, "read"))
    monkeypatch.setattr(store.medium, "stage", device.behind(store.medium.stage, "write"))
    return store, device


async def latencies(store: MemoryStore, blocks: list[Block]) -> list[float]:
    """Seconds that each block's read took, one after the other."""
    found = []
    for block in blocks:
        start = time.monotonic()
        assert await statuses(store, [block]) == ["ok"]
        found.append(time.monotonic() - start)
    return found


async def test_a_full_write_queue_hardly_delays_reads(monkeypatch: pytest.MonkeyPatch) -> None:
    """The median latency grows by at most 0.7 of itself; with equal rights it is five times as long (four writers)."""
    store, device = on_slow_device(monkeypatch)
    blocks, others = chain(30), chain(400, seed=1)
    await put_all(store, blocks)
    alone = statistics.median(await latencies(store, blocks))
    writing = asyncio.create_task(store.put([block.write() for block in others], deadline_s=30))
    await asyncio.sleep(5 * BLOCK_S)
    device.done.clear()
    beside = await latencies(store, blocks)
    assert not writing.done()
    assert statistics.median(beside) < 1.7 * alone
    assert device.done.count("write") >= len(blocks) // 8, "stores go on, though slowly"
    writing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await writing
    await store.close()


async def test_writes_have_the_whole_device_when_nobody_reads(monkeypatch: pytest.MonkeyPatch) -> None:
    store, _ = on_slow_device(monkeypatch)
    blocks = chain(30)
    start = time.monotonic()
    await put_all(store, blocks)
    assert time.monotonic() - start < 2 * 30 * BLOCK_S
    await store.close()


async def test_a_write_whose_turn_does_not_come_is_dropped_by_its_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    store, _ = on_slow_device(monkeypatch)
    blocks, others = chain(50), chain(15, seed=1)
    await put_all(store, blocks)
    reading = asyncio.create_task(store.get([block.read() for block in blocks], deadline_s=30))
    await asyncio.sleep(BLOCK_S)
    start = time.monotonic()
    results = await store.put([block.write() for block in others], deadline_s=0.5)
    assert time.monotonic() - start < 1.5
    assert "timed_out" in {result.status.value for result in results} <= {"ok", "timed_out"}
    await asyncio.gather(*(result.quiet for result in results if result.quiet))
    assert all(result.ok for result in await reading)
    again = await store.put([block.write() for block in others], deadline_s=30)
    assert all(result.ok for result in again)
    await store.close()


def test_stores_take_turns_and_rest_while_a_load_goes_on() -> None:
    order = LoadsFirst()
    with order.load():
        running = most = total = 0
        lock = threading.Lock()

        def store() -> None:
            nonlocal running, most, total
            with order.store(time.monotonic() + 30):
                with lock:
                    running, total = running + 1, total + 1
                    most = max(most, running)
                time.sleep(0.02)
                with lock:
                    running -= 1

        threads = [threading.Thread(target=store) for _ in range(4)]
        start = time.monotonic()
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert (most, total) == (1, 4)
        assert time.monotonic() - start > 3 * (0.02 + 3 * 0.02)


def test_a_store_does_not_begin_in_the_gap_between_two_loads() -> None:
    order = LoadsFirst()
    with order.load(), order.store(time.monotonic() + 1):
        time.sleep(0.1)  # so that the next one rests for long
    with pytest.raises(TimeoutError, match="loads kept the device busy"), order.store(time.monotonic() + LULL_S / 2):
        pass
    time.sleep(LULL_S)
    with order.store(time.monotonic()):
        pass
