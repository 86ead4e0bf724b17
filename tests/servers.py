"""Servers that tests start: processes on free ports of 127.0.0.1, gone with whoever started them."""

import contextlib
import os
import signal
import socket
import struct
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TypeVar

T = TypeVar("T")

_DEADLINE_S = 20
_TCP_INFO_BYTES, _BYTES_RECEIVED_AT = 256, 128
_WRAPPER = '"$@" & read -r _; kill -9 $!; rm -rf "$0"'
"""Removes the server and its folder once its own input ends, which it does however the process that holds the other end
goes."""


def start(command: Sequence[str], *, folder: Path, log: Path, stdout: int | None = None) -> subprocess.Popen[bytes]:
    """A server that works in `folder` and appends what it says to `log`; with `stdout=PIPE`, only its errors."""
    with log.open("ab") as said:
        return subprocess.Popen(
            ["sh", "-c", _WRAPPER, str(folder), *command],
            stdin=subprocess.PIPE,
            stdout=said if stdout is None else stdout,
            stderr=said,
            cwd=folder,
            start_new_session=True,
        )


def kill(server: subprocess.Popen[bytes]) -> None:
    """SIGKILL, as a host that dies; the folder stays. Safe to call twice."""
    if server.poll() is None:
        os.killpg(server.pid, signal.SIGKILL)
    server.communicate()


@contextlib.contextmanager
def stopped(server: subprocess.Popen[bytes]) -> Iterator[None]:
    """It accepts and does not answer."""
    process = _until(lambda: Path(f"/proc/{server.pid}/task/{server.pid}/children").read_text())
    os.kill(int(process), signal.SIGSTOP)
    try:
        _until(lambda: _is_stopped(process.strip()))  # its threads stop one after the other
        yield
    finally:
        os.kill(int(process), signal.SIGCONT)


def _until(found: Callable[[], T]) -> T:
    """The first answer that counts as true."""
    give_up_at = time.monotonic() + _DEADLINE_S
    while not (answer := found()):
        assert time.monotonic() < give_up_at
        time.sleep(0.001)
    return answer


def _is_stopped(process: str) -> bool:
    states = [stat.read_text().rpartition(")")[2].split()[0] for stat in Path(f"/proc/{process}/task").glob("*/stat")]
    return set(states) == {"T"}


def free_ports(count: int) -> list[int]:
    """Different ports that were free a moment ago."""
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [one.getsockname()[1] for one in sockets]


def free_port() -> int:
    return free_ports(1)[0]


def bytes_received_over_tcp() -> int:
    """Of this process, over the connections that it has: `tcpi_bytes_received` of Linux, RFC 4898's
    `tcpEStatsAppHCThruOctetsReceived`."""
    total = 0
    for link in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(OSError):
            if not os.readlink(link).startswith("socket:"):
                continue
            with socket.socket(fileno=os.dup(int(link.name))) as one:
                info = one.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _TCP_INFO_BYTES)
            total += struct.unpack_from("=Q", info, _BYTES_RECEIVED_AT)[0]
    return total
