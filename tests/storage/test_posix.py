"""What is special about files: opening, dead writers, errors of the file system, several writers."""

import asyncio
import errno
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from dualpath_storage import BlockResult, BlockWrite, PosixStore, StoreError
from dualpath_storage.medium_store import GROUP_BLOCKS
from dualpath_storage.posix_folder import PosixFolder
from tests.storage.blocks import LAYOUT, OTHER_LAYOUT, REPOSITORY, chain, overwrite, put_all, statuses


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "new" / "store"


def block_files(root: Path) -> set[str]:
    return {str(path.relative_to(root)) for path in root.glob("*/*.kv")}


def temporary(root: Path) -> set[str]:
    return {path.name for path in (root / "tmp").iterdir() if path.suffix != ".lock"}


async def test_files_are_fanned_out_by_key(root: Path) -> None:
    store = PosixStore(root, LAYOUT)
    blocks = chain(20)
    await put_all(store, blocks)
    names = {block.key.hex() for block in blocks}
    assert block_files(root) == {f"{n[:2]}/{n}.kv" for n in names}
    await store.close()


async def test_nothing_temporary_is_left(root: Path) -> None:
    store = PosixStore(root, LAYOUT)
    await put_all(store, chain(20))
    assert temporary(root) == set()
    await store.close()
    assert list((root / "tmp").iterdir()) == []


async def test_two_layouts_share_a_root(root: Path) -> None:
    stores = [PosixStore(root, layout) for layout in (LAYOUT, OTHER_LAYOUT)]
    chains = [chain(5), chain(5, layout=OTHER_LAYOUT)]
    for store, blocks in zip(stores, chains, strict=True):
        await put_all(store, blocks)
    for store, blocks in zip(stores, chains, strict=True):
        assert await statuses(store, blocks) == ["ok"] * 5
        assert {stored.key async for stored in store.scan()} == {block.key for block in blocks}
        await store.close()


def break_path(root: Path) -> None:
    root.parent.mkdir()
    root.write_text("a file")


def fill(root: Path) -> None:
    root.mkdir(parents=True)
    (root / "thesis.tex").write_text("precious")


def make_newer(root: Path) -> None:
    root.mkdir(parents=True)
    (root / "dualpath-kv-store").write_text("dualpath-kv-store 2\n")


@pytest.mark.parametrize(
    ("prepare", "complaint"),
    [
        (break_path, r"store folder .*/store is a file: give a folder, or a path where one can be made"),
        (fill, r"is no block store and holds 'thesis.tex': give an empty or a new folder"),
        (make_newer, r"is marked 'dualpath-kv-store 2': this library reads 'dualpath-kv-store 1'; give another folder"),
    ],
)
def test_a_root_that_is_something_else_is_refused(root: Path, prepare: Callable[[Path], None], complaint: str) -> None:
    prepare(root)
    before = sorted(root.parent.rglob("*"))
    with pytest.raises(StoreError, match=complaint):
        PosixStore(root, LAYOUT)
    assert sorted(root.parent.rglob("*")) == before


def test_a_relative_root_is_refused() -> None:
    with pytest.raises(StoreError, match="'store' is a relative path: give an absolute one"):
        PosixStore("store", LAYOUT)


def test_a_root_that_cannot_be_made_is_refused() -> None:
    with pytest.raises(StoreError, match=r"store folder /proc/store: .*: give a folder that can be written to"):
        PosixStore("/proc/store", LAYOUT)


def test_a_failed_opening_gives_up_its_lock(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(os, "rename", refuse)
    with pytest.raises(StoreError, match=r"Permission denied.*: give a folder that can be written to"):
        PosixStore(root, LAYOUT)
    assert [path for path in (root / "tmp").iterdir() if path.suffix == ".lock"] == []


def test_a_file_system_without_locks_is_refused(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr("fcntl.flock", refuse)
    with pytest.raises(StoreError, match=r"cannot be locked \(No locks available\): mount its file system with flock"):
        PosixStore(root, LAYOUT)
    assert list((root / "tmp").iterdir()) == []


async def test_an_interrupted_first_opening_is_taken_up(root: Path) -> None:
    for name in ("tmp", "00", "7f", "lost+found"):
        (root / name).mkdir(parents=True)
    (root / "tmp" / "0123456789abcdef-0.part").write_text("dualpath-kv-st")
    store = PosixStore(root, LAYOUT)
    await put_all(store, chain(3))
    assert temporary(root) == set()
    await store.close()


def test_only_files_of_dead_writers_are_removed(root: Path) -> None:
    alive, dead = PosixFolder(str(root)), PosixFolder(str(root))
    kept, dropped = Path(alive.new_part()), Path(dead.new_part())
    for part in (kept, dropped):
        part.write_text("half a block")
    os.close(dead._lock)  # as the kernel does when a process dies
    script = f"from dualpath_storage.posix_folder import PosixFolder; PosixFolder({str(root)!r}).close()"
    subprocess.run([sys.executable, "-c", script], check=True, timeout=60)
    assert temporary(root) == {kept.name}
    PosixFolder(str(root)).close()
    assert temporary(root) == {kept.name}
    alive.close()
    PosixFolder(str(root)).close()
    assert list((root / "tmp").iterdir()) == []


async def put_one_by_one(root: Path, count: int) -> list[BlockResult]:
    store = PosixStore(root, LAYOUT, threads=1)
    results = await store.put([block.write() for block in chain(count)], deadline_s=5)
    await store.close()
    return results


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT])
async def test_no_room_is_full_and_leaves_nothing(root: Path, monkeypatch: pytest.MonkeyPatch, code: int) -> None:
    writev = os.writev
    calls = iter(range(100))

    def run_out_of_room(descriptor: int, buffers: list[memoryview]) -> int:
        call = next(calls)
        if call == 1:
            return writev(descriptor, [buffers[0][:1000]])
        if call == 2:
            raise OSError(code, os.strerror(code))
        return writev(descriptor, buffers)

    monkeypatch.setattr(os, "writev", run_out_of_room)
    results = await put_one_by_one(root, 3)
    assert [result.status.value for result in results] == ["ok", "full", "ok"]
    assert os.strerror(code) in results[1].detail
    assert temporary(root) == set()
    assert len(block_files(root)) == 2


@pytest.mark.parametrize("step", ["fsync", "rename"])
async def test_a_failing_device_fails_one_write(root: Path, monkeypatch: pytest.MonkeyPatch, step: str) -> None:
    PosixFolder(str(root)).close()
    original = getattr(os, step)
    block_file = chain(3)[1].key.hex()

    def fail_once(*arguments: object) -> None:
        about = os.readlink(f"/proc/self/fd/{arguments[0]}") if step == "fsync" else str(arguments[1])
        if block_file in about or about.endswith("-1.part"):
            raise OSError(errno.EIO, "Input/output error")
        original(*arguments)

    monkeypatch.setattr(os, step, fail_once)
    results = await put_one_by_one(root, 3)
    assert [result.status.value for result in results] == ["ok", "failed", "ok"]
    assert results[1].detail == "OSError: [Errno 5] Input/output error"
    assert temporary(root) == set()


async def test_ok_means_that_the_folder_was_synced(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fsync = os.fsync
    synced: list[str] = []
    failing = chain(3)[1].key.hex()[:2]

    def record(descriptor: int) -> None:
        name = os.readlink(f"/proc/self/fd/{descriptor}")
        synced.append(os.path.relpath(name, root))
        if synced[-1] == failing:
            raise OSError(errno.EIO, "Input/output error")
        fsync(descriptor)

    PosixFolder(str(root)).close()
    monkeypatch.setattr(os, "fsync", record)
    blocks = chain(3)
    store = PosixStore(root, LAYOUT)
    synced.clear()
    results = await store.put([block.write() for block in [*blocks, blocks[0]]], deadline_s=5)
    await store.close()
    assert [result.status.value for result in results] == ["ok", "failed", "ok", "ok"]
    files, folders = synced[:4], synced[4:]
    assert all(name.startswith("tmp/") for name in files)
    assert sorted(folders) == sorted({block.key.hex()[:2] for block in blocks}), "each touched folder, once"


async def test_files_are_synced_together_and_before_any_is_renamed(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = PosixStore(root, LAYOUT)
    steps: list[str] = []
    for name in ("posix_fadvise", "fsync", "rename"):
        original = getattr(os, name)

        def record(*arguments: object, name: str = name, original: Callable[..., None] = original) -> None:
            steps.append(name)
            original(*arguments)

        monkeypatch.setattr(os, name, record)
    await put_all(store, chain(5))
    assert steps[:15] == ["posix_fadvise"] * 5 + ["fsync"] * 5 + ["rename"] * 5
    await store.close()


def open_files() -> int:
    return len(os.listdir("/proc/self/fd"))


async def test_no_file_stays_open(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Few are open at once, however large the batch, and none is left where writes fail, time out or are cancelled."""
    store = PosixStore(root, LAYOUT)
    before, most = open_files(), 0
    fsync = os.fsync
    fail = False

    def count_and_sync(descriptor: int) -> None:
        nonlocal most
        most = max(most, open_files())
        if fail:
            raise OSError(errno.EIO, "Input/output error")
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", count_and_sync)
    blocks = chain(300)
    await put_all(store, blocks[:200])
    assert GROUP_BLOCKS <= most - before <= GROUP_BLOCKS + 10
    assert open_files() == before
    fail = True
    results = await store.put([block.write() for block in blocks[200:210]], deadline_s=5)
    assert {result.status.value for result in results} == {"failed"}
    assert open_files() == before
    fail = False
    await store.put([block.write() for block in blocks[210:]], deadline_s=0.005)
    task = asyncio.create_task(store.put([block.write() for block in blocks[210:]], deadline_s=5))
    await asyncio.sleep(0.01)
    task.cancel()
    await asyncio.wait([task])
    await store.close()
    assert open_files() <= before, "the store's lock is closed as well"
    assert temporary(root) == set()


async def test_a_block_that_was_there_is_made_durable_too(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another writer may have renamed it a moment ago and not yet synced its folder."""
    (block,) = chain(1)
    store = PosixStore(root, LAYOUT)
    await put_all(store, [block])
    synced: list[str] = []
    monkeypatch.setattr("dualpath_storage.posix.sync_folder", synced.append)
    await put_all(store, [block])
    assert synced == [str(root / block.key.hex()[:2])]
    await store.close()


async def test_a_device_error_fails_a_read(root: Path) -> None:
    blocks = chain(2)
    store = PosixStore(root, LAYOUT)
    await put_all(store, blocks)
    path = root / blocks[0].key.hex()[:2] / f"{blocks[0].key.hex()}.kv"
    path.unlink()
    path.mkdir()
    results = await store.get([block.read() for block in blocks], deadline_s=5)
    assert [result.status.value for result in results] == ["failed", "ok"]
    assert "IsADirectoryError" in results[0].detail
    with pytest.raises(StoreError, match=r"file:///.*Is a directory"):
        await store.delete([blocks[0].key])
    await store.close()


async def test_a_scan_skips_what_is_no_block(root: Path) -> None:
    store = PosixStore(root, LAYOUT)
    await put_all(store, chain(2))
    (root / "00" / "notes.txt").write_text("x")
    (root / "00" / f"{'g' * 64}.kv").write_text("x")
    (root / "00" / f"{'0' * 64}.kv").mkdir()
    assert len([stored async for stored in store.scan()]) == 2
    await store.close()


async def test_two_writers_of_one_block_and_readers_beside_them(root: Path) -> None:
    """A reader sees nothing or all of a block, whoever writes it, also while damage is repaired."""
    stores = [PosixStore(root, LAYOUT) for _ in range(3)]
    blocks = chain(12)
    seen: set[str] = set()
    writing = True

    async def keep_reading() -> None:
        while writing:
            seen.update(await statuses(stores[2], blocks))

    reader = asyncio.create_task(keep_reading())
    for _ in range(10):
        await asyncio.gather(*(put_all(store, blocks) for store in stores[:2]))
        await stores[0].delete([block.key for block in blocks])
    await put_all(stores[0], blocks)
    overwrite(stores[0], blocks[0], b"rubbish")
    await asyncio.gather(*(put_all(store, blocks) for store in stores[:2]))
    assert await statuses(stores[2], blocks) == ["ok"] * 12
    writing = False
    await reader
    assert seen <= {"missing", "ok", "corrupt"}
    assert {"missing", "ok"} <= seen
    for store in stores:
        await store.close()


TMPFS_SCRIPT = """
import asyncio, sys
from dualpath_storage import PosixStore
from tests.storage.blocks import LAYOUT, chain, statuses

async def main():
    store = PosixStore(sys.argv[1], LAYOUT)
    blocks = chain(40)
    results = [result for result in await store.put([block.write() for block in blocks], deadline_s=20)]
    written = [result.status.value for result in results]
    read = await statuses(store, blocks)
    assert set(written) == {"ok", "full"}, written
    assert [status == "ok" for status in written] == [status == "ok" for status in read], (written, read)
    await store.delete([block.key for block in blocks])
    assert (await store.put([blocks[0].write()], deadline_s=20))[0].ok
    await store.close()

asyncio.run(main())
"""


def test_a_full_file_system_loses_only_what_it_had_no_room_for(tmp_path: Path) -> None:
    mount = f"mount -t tmpfs -o size=128k none {tmp_path}"
    if subprocess.run(["unshare", "-rm", "sh", "-c", mount], capture_output=True, timeout=60).returncode:
        pytest.skip("this machine does not let us mount a small tmpfs")
    command = f'{mount} && exec "$0" -c "$1" {tmp_path}/store'
    arguments = ["unshare", "-rm", "sh", "-c", command, sys.executable, TMPFS_SCRIPT]
    subprocess.run(arguments, cwd=REPOSITORY, check=True, timeout=60)


async def test_data_must_not_be_read_after_the_result(root: Path) -> None:
    """What is stored is what `data` held when `put` was called, also where the caller changes it right after."""
    (block,) = chain(1)
    data = bytearray(block.data)
    store = PosixStore(root, LAYOUT)
    await store.put([BlockWrite(block.key, block.parent, block.tokens, memoryview(data))], deadline_s=5)
    data[:] = bytes(len(data))
    assert await statuses(store, [block]) == ["ok"]
    await store.close()
