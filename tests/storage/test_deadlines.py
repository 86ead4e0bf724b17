"""A device that hangs holds up nobody beyond the deadline, and never writes into a buffer that was given back."""

import asyncio
import os
import threading
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from dualpath_storage import PosixStore, Status
from tests.storage.blocks import LAYOUT, Block, chain, put_all, raw, statuses


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[PosixStore]:
    store = PosixStore(tmp_path / "store", LAYOUT, threads=2)
    yield store
    await store.close()


DEADLINE_S = 0.7
"""Long enough for threads to begin on a busy machine."""


def file_of(store: PosixStore, block: Block) -> Path:
    (path,) = Path(store.url.removeprefix("file://")).glob(f"*/{block.key.hex()}.kv")
    return path


class Fifo:
    """Takes the place of a block's file, so that a read blocks in the kernel until `release`."""

    def __init__(self, store: PosixStore, block: Block) -> None:
        self._path = file_of(store, block)
        self._path.unlink()
        os.mkfifo(self._path)

    def release(self) -> None:
        """Let one read go on; returns once it has."""
        os.close(os.open(self._path, os.O_WRONLY))


@pytest.fixture
def held_writes(monkeypatch: pytest.MonkeyPatch) -> Iterator[threading.Event]:
    """Writes to files wait for this event."""
    event = threading.Event()
    writev = os.writev

    def wait_and_write(*args: object) -> int:
        assert event.wait(30)
        return writev(*args)  # type: ignore[arg-type]

    monkeypatch.setattr(os, "writev", wait_and_write)
    yield event
    event.set()


def parts(store: PosixStore) -> list[Path]:
    return list(Path(store.url.removeprefix("file://")).glob("tmp/*.part"))


async def test_a_read_that_hangs_times_out_alone(store: PosixStore) -> None:
    blocks = chain(6)
    await put_all(store, blocks)
    fifo = Fifo(store, blocks[2])
    start = time.monotonic()
    results = await store.get([block.read() for block in blocks], deadline_s=DEADLINE_S)
    assert DEADLINE_S <= time.monotonic() - start < DEADLINE_S + 2
    assert [result.status.value for result in results] == ["ok", "ok", "timed_out", "ok", "ok", "ok"]
    assert results[2].detail == "not done within 0.7 s"
    assert [result.quiet is None for result in results] == [True, True, False, True, True, True]
    quiet = results[2].quiet
    assert quiet is not None
    assert not quiet.done()
    assert await statuses(store, [blocks[0]]) == ["ok"]
    fifo.release()
    await asyncio.wait_for(quiet, 5)


async def test_blocks_behind_hung_threads_are_quiet_at_once(store: PosixStore) -> None:
    blocks = chain(4)
    await put_all(store, blocks)
    fifos = [Fifo(store, block) for block in blocks[:2]]
    results = await store.get([block.read() for block in blocks], deadline_s=DEADLINE_S)
    assert {result.status for result in results} == {Status.TIMED_OUT}
    assert [result.quiet is None for result in results] == [False, False, True, True]
    for fifo in fifos:
        fifo.release()
    await asyncio.wait_for(asyncio.gather(*(result.quiet for result in results if result.quiet)), 5)


async def test_a_write_that_hangs_leaves_nothing(store: PosixStore, held_writes: threading.Event) -> None:
    blocks = chain(3)
    results = await store.put([block.write() for block in blocks], deadline_s=DEADLINE_S)
    assert {result.status for result in results} == {Status.TIMED_OUT}
    assert [result.quiet is None for result in results] == [False, False, True]
    assert len(parts(store)) == 2
    held_writes.set()
    await asyncio.wait_for(asyncio.gather(*(result.quiet for result in results if result.quiet)), 5)
    assert parts(store) == []
    assert await statuses(store, blocks) == ["missing"] * 3


async def test_a_write_that_hangs_does_not_take_the_others_down(
    store: PosixStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    event = threading.Event()
    writev = os.writev
    calls = iter(range(100))

    def hang_once(*arguments: object) -> int:
        assert next(calls) != 2 or event.wait(30)
        return writev(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(os, "writev", hang_once)
    blocks = chain(6)
    results = await store.put([block.write() for block in blocks], deadline_s=2)
    event.set()
    assert sorted(result.status.value for result in results) == ["ok"] * 5 + ["timed_out"]
    await asyncio.gather(*(result.quiet for result in results if result.quiet))
    stored = ["ok" if result.ok else "missing" for result in results]
    assert await statuses(store, blocks) == stored


async def test_a_commit_that_hangs_times_out(store: PosixStore, monkeypatch: pytest.MonkeyPatch) -> None:
    event = threading.Event()
    rename = os.rename

    def wait_and_rename(source: str, target: str) -> None:
        assert event.wait(30)
        rename(source, target)

    monkeypatch.setattr(os, "rename", wait_and_rename)
    blocks = chain(3)
    results = await store.put([block.write() for block in blocks], deadline_s=DEADLINE_S)
    assert {result.status for result in results} == {Status.TIMED_OUT}
    event.set()
    await store.close()
    again = PosixStore(store.url.removeprefix("file://"), LAYOUT)
    assert await statuses(again, blocks) == ["ok"] * 3, "a write that timed out may become visible, but whole"
    await again.close()


async def test_a_cancelled_read_waits_for_its_threads(store: PosixStore) -> None:
    blocks = chain(5)
    await put_all(store, blocks)
    fifos = [Fifo(store, block) for block in blocks[:2]]
    arena = bytearray(5 * LAYOUT.block_bytes)
    slots = [memoryview(arena)[i * LAYOUT.block_bytes :][: LAYOUT.block_bytes] for i in range(5)]
    task = asyncio.create_task(
        store.get([block.read(slot) for block, slot in zip(blocks, slots, strict=True)], deadline_s=20)
    )
    await asyncio.sleep(DEADLINE_S / 2)
    for _ in range(2):
        task.cancel()
        await asyncio.sleep(0.05)
        assert not task.done()
    for fifo in fifos:
        fifo.release()
    with pytest.raises(asyncio.CancelledError):
        await asyncio.wait_for(task, 5)
    assert not any(arena), "blocks that had not begun are not begun after cancellation"
    assert await statuses(store, blocks[2:]) == ["ok"] * 3


async def test_a_cancelled_read_ends_at_its_deadline(store: PosixStore) -> None:
    blocks = chain(2)
    await put_all(store, blocks)
    fifo = Fifo(store, blocks[0])
    task = asyncio.create_task(store.get([block.read() for block in blocks], deadline_s=DEADLINE_S))
    await asyncio.sleep(DEADLINE_S / 2)
    task.cancel()
    results = await asyncio.wait_for(task, 5)
    assert [result.status.value for result in results] == ["timed_out", "ok"]
    assert results[0].quiet is not None
    assert task.cancelling() == 1
    fifo.release()
    await asyncio.wait_for(results[0].quiet, 5)


async def test_a_cancelled_write_publishes_nothing(store: PosixStore, held_writes: threading.Event) -> None:
    blocks = chain(5)
    task = asyncio.create_task(store.put([block.write() for block in blocks], deadline_s=20))
    await asyncio.sleep(DEADLINE_S / 2)
    assert len(parts(store)) == 2
    task.cancel()
    await asyncio.sleep(0.05)
    assert not task.done(), "threads still read the caller's data"
    held_writes.set()
    with pytest.raises(asyncio.CancelledError):
        await asyncio.wait_for(task, 5)
    assert await statuses(store, blocks) == ["missing"] * 5
    await store.close()
    assert parts(store) == []


async def test_close_leaves_a_thread_behind_that_never_returns(
    store: PosixStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dualpath_storage.medium_store._CLOSE_GRACE_S", 0.2)
    (block,) = chain(1)
    await put_all(store, [block])
    fifo = Fifo(store, block)
    (result,) = await store.get([block.read()], deadline_s=DEADLINE_S)
    await asyncio.wait_for(store.close(), 2)
    fifo.release()
    assert result.quiet is not None
    await asyncio.wait_for(result.quiet, 5)


async def test_a_probe_of_a_device_that_hangs_is_an_error(store: PosixStore, monkeypatch: pytest.MonkeyPatch) -> None:
    event = threading.Event()
    monkeypatch.setattr("dualpath_storage.medium_store._CALL_TIMEOUT_S", 0.1)
    monkeypatch.setattr(os.path, "exists", lambda path: event.wait(30))
    with pytest.raises(Exception, match=r"file:///.* does not answer within 0\.1 s"):
        await store.contains([bytes(32)])
    event.set()


async def test_a_read_in_pieces_is_put_together(store: PosixStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """Some file systems return less than was asked for, without being at the end."""
    blocks = chain(3)
    await put_all(store, blocks)
    preadv = os.preadv

    def read_a_little(descriptor: int, buffers: list[memoryview], offset: int) -> int:
        first = next(buffer for buffer in buffers if len(buffer))
        return preadv(descriptor, [memoryview(first)[:1500]], offset)

    monkeypatch.setattr(os, "preadv", read_a_little)
    assert await statuses(store, blocks) == ["ok"] * 3
    file_of(store, blocks[1]).write_bytes(raw(store, blocks[1])[:-1])
    assert await statuses(store, blocks) == ["ok", "corrupt", "ok"]
