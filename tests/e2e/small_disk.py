"""A file system of a few megabytes for one command, in a mount namespace of its own: it is gone with the command."""

import functools
import subprocess
from pathlib import Path

import pytest

from tests.launch.commands import Ended, command

MOUNTED = 'mount -t tmpfs -o size="$1" tmpfs "$2" && shift 2 && exec "$@"'


def _within(folder: Path, size: str, *words: str) -> list[str]:
    return ["unshare", "--map-root-user", "--mount", "sh", "-c", MOUNTED, "sh", size, str(folder), *words]


@functools.cache
def _refusal(folder: Path) -> str:
    """Why such a file system cannot be mounted here; empty: it can."""
    try:
        tried = subprocess.run(_within(folder, "1m", "true"), capture_output=True, text=True, timeout=20, check=False)
    except FileNotFoundError as error:
        return str(error)
    return tried.stderr.strip() or "it ended with an error" if tried.returncode else ""


def run_on_small_disk(folder: Path, size: str, name: str, *flags: str, timeout_s: float) -> Ended:
    """Run a command for which `folder` is a tmpfs of `size`; skips the test where that needs rights one has not."""
    if refusal := _refusal(folder):
        pytest.skip(f"needs to mount a tmpfs, as root or in a user namespace: {refusal}")
    words = _within(folder, size, *command(name, *flags))
    done = subprocess.run(words, capture_output=True, text=True, timeout=timeout_s, check=False)
    return Ended(done.returncode, done.stdout, done.stderr)
