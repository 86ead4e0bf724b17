"""`dualpath-store` as a process: how it ends when it is interrupted, and what stands on the terminal."""

import os
import pty
import signal
import subprocess
import sys
import termios
import time
from collections.abc import Callable
from pathlib import Path

from dualpath_storage import PosixStore
from tests.storage.blocks import LAYOUT, Block, chain, put_all, statuses

RUN = [sys.executable, "-c", "from dualpath_storage.tool.command import run; run()"]


async def filled(root: Path, blocks: list[Block]) -> str:
    """The URL of a store with these blocks."""
    store = PosixStore(root, LAYOUT)
    await put_all(store, blocks)
    await store.close()
    return store.url


async def held(root: Path, blocks: list[Block]) -> list[str]:
    store = PosixStore(root, LAYOUT)
    found = await statuses(store, blocks)
    await store.close()
    return found


def interrupted(arguments: list[str], *, when: Callable[[], bool]) -> tuple[int, str]:
    """Status and standard error of a command that gets a SIGINT as soon as `when` holds."""
    with subprocess.Popen([*RUN, *arguments], stderr=subprocess.PIPE, text=True) as process:
        try:
            deadline_at = time.monotonic() + 60
            while not when():
                assert time.monotonic() < deadline_at
                assert process.poll() is None
                time.sleep(0.01)
            process.send_signal(signal.SIGINT)
            assert process.stderr is not None
            said = process.stderr.read()
            return process.wait(timeout=30), said
        finally:
            process.kill()


def test_help_that_nobody_reads_is_no_error() -> None:
    for arguments in (["--help"], ["copy", "--help"]):
        reader, writer = os.pipe()
        os.close(reader)
        try:
            ended = subprocess.run([*RUN, *arguments], stdout=writer, stderr=subprocess.PIPE, timeout=60, check=False)
        finally:
            os.close(writer)
        assert (ended.returncode, ended.stderr) == (0, b"")


def output(arguments: list[str]) -> str:
    return subprocess.run([*RUN, *arguments], capture_output=True, text=True, timeout=60, check=True).stdout


async def test_an_interrupted_copy_leaves_whole_blocks_and_is_taken_up(tmp_path: Path) -> None:
    blocks, copied = chain(400), tmp_path / "target"
    source = await filled(tmp_path / "store", blocks)
    slow = f"faulty+{source}?delay=1&delay_s=0.05"
    ended = interrupted(["copy", slow, f"file://{copied}"], when=lambda: any(copied.glob("*/*.kv")))
    assert ended == (130, "dualpath-store: interrupted\n")
    assert list((copied / "tmp").iterdir()) == []
    found = await held(copied, blocks)
    assert 0 < found.count("ok") < 400
    assert found.count("ok") + found.count("missing") == 400
    said = output(["copy", source, f"file://{copied}"])
    assert said.startswith(f"{found.count('missing')} blocks of ")
    assert f"; {found.count('ok')} were there, 0 are damaged" in said
    assert await held(copied, blocks) == ["ok"] * 400


async def test_an_interrupted_eviction_leaves_no_gap(tmp_path: Path) -> None:
    blocks, root = chain(1500), tmp_path / "store"
    url = await filled(root, blocks)
    status, said = interrupted(
        ["evict", url, "--bytes=1TB"], when=lambda: sum(1 for _ in root.glob("*/*.kv")) < len(blocks)
    )
    assert (status, said) == (130, "dualpath-store: interrupted\n")
    found = await held(root, blocks)
    assert found == sorted(found, key=["ok", "missing"].index)


async def test_output_that_nobody_reads_to_its_end_is_no_error(tmp_path: Path) -> None:
    url = await filled(tmp_path / "store", chain(1500))
    assert first_line(["ls", url]) == (0, b"")


def first_line(arguments: list[str]) -> tuple[int, bytes]:
    """Status and standard error of a command whose output is closed after a line."""
    with subprocess.Popen([*RUN, *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stdout.readline()
        process.stdout.close()
        said = process.stderr.read()
        return process.wait(timeout=30), said


async def test_a_terminal_sees_the_progress_and_a_pipe_does_not(tmp_path: Path) -> None:
    url = await filled(tmp_path / "store", chain(30))
    assert "verify: 100%" in on_a_terminal(["verify", url])
    assert "%" not in output(["verify", url])


def on_a_terminal(arguments: list[str]) -> str:
    """What a command writes to standard error where that is a terminal."""
    ours, theirs = pty.openpty()
    try:
        termios.tcsetwinsize(ours, (25, 80))
        subprocess.run([*RUN, *arguments], stdout=subprocess.DEVNULL, stderr=theirs, timeout=60, check=True)
        return os.read(ours, 1 << 16).decode()
    finally:
        os.close(ours)
        os.close(theirs)
