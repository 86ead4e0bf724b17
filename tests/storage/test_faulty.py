"""Injected faults strike beneath the verification, as often as asked, the same in every run; none gives wrong bytes."""

import asyncio
import errno
import secrets
import time
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import NoReturn

import pytest

from dualpath_storage import Faults, FaultyStore, MemoryStore, PosixStore, StoreError, open_store
from dualpath_storage.medium_store import MediumStore
from tests.storage.blocks import LAYOUT, chain, put_all, raw, statuses

MakeFaulty = Callable[[Faults], FaultyStore]


@pytest.fixture(params=["posix", "memory"])
async def inner(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[MediumStore]:
    store = PosixStore(tmp_path, LAYOUT) if request.param == "posix" else MemoryStore(LAYOUT)
    yield store
    await store.close()


@pytest.mark.parametrize(
    ("faults", "expected", "detail"),
    [
        (Faults(flip=1), "corrupt", ""),
        (Faults(truncate=1), "corrupt", "truncated"),
        (Faults(swap=1), "corrupt", "holds another block"),
        (Faults(error=1), "failed", "injected: the device reports an error"),
        (Faults(hang=1, overrun_s=0.01), "timed_out", "not done within 0.2 s"),
        (Faults(delay=1, delay_s=0.01), "ok", ""),
        (Faults(lose=1), "ok", ""),
    ],
)
async def test_reads(inner: MediumStore, faults: Faults, expected: str, detail: str) -> None:
    blocks = chain(6)
    await put_all(inner, blocks)
    store = FaultyStore(inner, faults)
    await store.get([block.read() for block in blocks[:2]], deadline_s=0.2)  # so that there is another block to swap in
    results = await store.get([block.read() for block in blocks], deadline_s=0.2)
    assert {result.status.value for result in results} == {expected}
    assert all(detail in result.detail for result in results)
    assert await statuses(inner, blocks) == ["ok"] * 6, "the faults of a device that is read from"
    await store.close()


@pytest.mark.parametrize(
    ("faults", "expected", "stored"),
    [
        (Faults(error=1), "failed", False),
        (Faults(hang=1, overrun_s=0.01), "timed_out", False),
        (Faults(delay=1, delay_s=0.01), "ok", True),
        (Faults(lose=1), "ok", False),
        (Faults(flip=1, truncate=1, swap=1), "ok", True),
    ],
)
async def test_writes(inner: MediumStore, faults: Faults, expected: str, stored: bool) -> None:
    blocks = chain(6)
    store = FaultyStore(inner, faults)
    results = await store.put([block.write() for block in blocks], deadline_s=0.2 if faults.hang else 20)
    await asyncio.gather(*(result.quiet for result in results if result.quiet))
    assert {result.status.value for result in results} == {expected}
    assert await statuses(inner, blocks) == ["ok" if stored else "missing"] * 6
    await store.close()


async def test_a_read_that_hangs_writes_into_its_buffer_after_the_deadline(inner: MediumStore) -> None:
    """What a caller must reckon with: the buffer is not its own before `quiet`."""
    (block,) = chain(1)
    await put_all(inner, [block])
    store = FaultyStore(inner, Faults(hang=1, overrun_s=0.3))
    buffer = bytearray(LAYOUT.block_bytes)
    start = time.monotonic()
    (result,) = await store.get([block.read(buffer)], deadline_s=0.2)
    assert time.monotonic() - start < 0.45
    assert not any(buffer)
    assert result.quiet is not None
    await result.quiet
    assert buffer == block.data
    await store.close()


async def outcomes(faults: Faults, *, rounds: int = 3) -> list[list[str]]:
    blocks = chain(100)
    inner = MemoryStore(LAYOUT, name=secrets.token_hex(4))
    await put_all(inner, blocks)
    store = FaultyStore(inner, faults)
    found = [await statuses(store, blocks) for _ in range(rounds)]
    await store.close()
    return found


async def test_the_same_seed_gives_the_same_faults() -> None:
    first = await outcomes(Faults(flip=0.2, error=0.1, seed=1))
    assert await outcomes(Faults(flip=0.2, error=0.1, seed=1)) == first
    assert await outcomes(Faults(flip=0.2, error=0.1, seed=2)) != first
    assert first[0] != first[1], "a later read of a block is another draw"


async def test_faults_strike_at_their_rate() -> None:
    found = [status for row in await outcomes(Faults(error=0.3), rounds=10) for status in row]
    assert 240 < found.count("failed") < 360
    assert found.count("ok") == len(found) - found.count("failed")


async def test_everything_at_once_never_gives_wrong_bytes(inner: MediumStore) -> None:
    blocks = chain(60)
    faults = Faults(flip=0.2, truncate=0.2, swap=0.2, error=0.2, lose=0.2, delay=0.2, delay_s=0.001, seed=3)
    store = FaultyStore(inner, faults)
    seen: set[str] = set()
    for _ in range(4):
        await store.put([block.write() for block in blocks], deadline_s=20)
        seen.update(await statuses(store, blocks))  # checks the bytes of what is OK
    assert seen == {"ok", "missing", "corrupt", "failed"}
    assert "missing" not in await statuses(inner, blocks), "a lost write can be written again"
    await store.close()


async def test_probes_scans_and_deletes_pass_unharmed(inner: MediumStore) -> None:
    blocks = chain(3)
    await put_all(inner, blocks)
    store = FaultyStore(inner, Faults(flip=1, error=1, hang=1, truncate=1, swap=1, lose=1))
    assert await store.contains([block.key for block in blocks]) == [True] * 3
    assert {stored.key async for stored in store.scan()} == {block.key for block in blocks}
    assert raw(store, blocks[0]) == raw(inner, blocks[0])
    await store.delete([blocks[0].key])
    assert await inner.contains([block.key for block in blocks]) == [False, True, True]
    await store.close()


def test_rates_are_checked() -> None:
    with pytest.raises(ValueError, match=r"fault rate flip is 1\.5: expected 0 to 1"):
        Faults(flip=1.5)
    with pytest.raises(ValueError, match=r"delay_s is -1 .*: expected 0 or more"):
        Faults(delay_s=-1)


@pytest.mark.parametrize(("code", "expected"), [(errno.ENOSPC, "full"), (errno.EIO, "failed")])
async def test_a_failure_of_the_store_beneath_is_passed_up_with_its_reason(
    inner: MediumStore, monkeypatch: pytest.MonkeyPatch, code: int, expected: str
) -> None:
    store = FaultyStore(inner, Faults())
    blocks = chain(3)
    await put_all(store, blocks[:2])

    def fail(*arguments: object, **options: object) -> NoReturn:
        raise OSError(code, "from beneath")

    def fail_to_list() -> Iterator[list[bytes]]:
        yield [blocks[0].key]
        fail()

    for method in ("read", "stage", "contains"):
        monkeypatch.setattr(inner.medium, method, fail)
    monkeypatch.setattr(inner.medium, "keys", fail_to_list)
    (written,) = await store.put([blocks[2].write()], deadline_s=5)
    assert (written.status.value, "from beneath" in written.detail) == (expected, True)
    read = await store.get([block.read() for block in blocks[:2]], deadline_s=5)
    assert all(result.status.value in ("failed", "full") and "from beneath" in result.detail for result in read)
    with pytest.raises(StoreError, match="from beneath"):
        [stored async for stored in store.scan()]
    with pytest.raises(StoreError, match="from beneath"):
        await store.contains([blocks[0].key])
    await store.close()


def test_a_store_beneath_that_cannot_be_opened_is_passed_up(tmp_path: Path) -> None:
    (tmp_path / "mine.txt").write_text("not a store")
    with pytest.raises(StoreError, match=r"is no block store and holds 'mine\.txt'"):
        open_store(f"faulty+file://{tmp_path}?flip=0.5", LAYOUT)
