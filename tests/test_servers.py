"""What the tests start is gone with them, however they go."""

import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

STARTER = """
import sys
import time
from pathlib import Path
from tests import servers

folder = Path(sys.argv[1])
server = servers.start(["sleep", sys.argv[2]], folder=folder, log=folder / "log")
with servers.stopped(server):
    print("ready", flush=True)
    time.sleep(60)
"""


def running(argument: str) -> bool:
    """Whether a process has this argument."""
    for command in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            if argument.encode() in command.read_bytes().split(b"\0"):
                return True
        except OSError:  # it ended
            continue
    return False


@pytest.mark.parametrize("way", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT], ids=lambda way: way.name)
def test_a_server_ends_with_its_starter_and_leaves_no_folder(way: signal.Signals, tmp_path: Path) -> None:
    folder, seconds = tmp_path / "server", f"61.{way.value:03}{time.monotonic_ns() % 10**9}"
    folder.mkdir()
    with subprocess.Popen([sys.executable, "-c", STARTER, folder, seconds], stdout=subprocess.PIPE) as starter:
        try:
            assert starter.stdout is not None
            assert starter.stdout.readline() == b"ready\n"
            assert running(seconds)
            starter.send_signal(way)
            starter.wait(10)
        finally:
            starter.kill()
    give_up_at = time.monotonic() + 20
    while running(seconds) or folder.exists():
        assert time.monotonic() < give_up_at
        time.sleep(0.02)
