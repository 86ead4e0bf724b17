"""A writer that is killed at any moment loses nothing that it reported as stored, and leaves nothing behind."""

import random
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from dualpath_storage import PosixStore
from tests.storage.blocks import LAYOUT, REPOSITORY, chain, statuses


def kill_a_writer(root: Path, seed: int, after_s: float) -> set[str]:
    """Start a writer, kill it a while after its first block, return the keys that it had reported."""
    command = [sys.executable, "-m", "tests.storage.writer", str(root), str(seed)]
    with subprocess.Popen(command, cwd=REPOSITORY, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        timer = threading.Timer(after_s, process.kill)
        try:
            assert process.stdout.readline() == "ready\n"
            timer.start()
            reported = process.stdout.read().splitlines()
        finally:
            timer.cancel()
            process.kill()
    return {line for line in reported if len(line) == 64}


async def crash(root: Path, *, seed: int) -> int:
    after_s = random.Random(seed).uniform(0.0, 0.25)
    reported = kill_a_writer(root, seed, after_s)
    store = PosixStore(root, LAYOUT)
    blocks = chain(2000, seed=seed)
    assert [path.suffix for path in (root / "tmp").iterdir()] == [".lock"], "only the open store's own lock"
    stored = {block.key.hex() async for block in store.scan()}
    assert reported <= stored
    by_status: dict[str, set[str]] = {}
    for block, status in zip(blocks, await statuses(store, blocks), strict=True):
        by_status.setdefault(status, set()).add(block.key.hex())
    assert reported <= by_status.get("ok", set())
    assert by_status.keys() <= {"ok", "missing"}
    await store.close()
    return len(reported)


async def test_a_killed_writer(tmp_path: Path) -> None:
    assert sum([await crash(tmp_path / "store", seed=seed) for seed in range(3)]) > 0


@pytest.mark.long
async def test_a_killed_writer_often(tmp_path: Path) -> None:
    assert sum([await crash(tmp_path / "store", seed=seed) for seed in range(50)]) > 0
