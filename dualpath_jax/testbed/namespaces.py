"""Network namespaces with a name prefix of their own, which are gone in the end, however it comes.

A record of each set lies in `RECORDS` before its first namespace exists. Whoever makes a set removes those whose maker
is dead; nothing else is ever touched.
"""

import contextlib
import ctypes
import json
import os
import shutil
import signal
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Self, final

from dualpath_jax.qos.commands import NetworkError, network_command

RECORDS = Path("/run/dualpath-testbed")
NETNS = Path("/run/netns")
HOSTS = Path("/etc/netns")

_CLONE_NEWNET = 0x40000000
_GONE_S = 5.0


@final
class Namespaces:
    """A context manager: the namespaces `dptPID-NAME` of this process.

    Each has a hosts file of its own with all names in it, and `command` gives it a host name, which is what others are
    told by whoever advertises "this host".

    Raises NetworkError where this process may not make any.
    """

    def __init__(self, addresses: dict[str, str]) -> None:
        """`addresses` by name: what the name means in every hosts file; empty: it is not in there."""
        self._addresses = addresses
        self.prefix = f"dpt{os.getpid()}-"
        self._record = RECORDS / self.prefix.rstrip("-")
        self._folder: Path | None = None

    @property
    def folder(self) -> Path:
        """A folder for files, which goes with the namespaces."""
        if self._folder is None:
            raise RuntimeError("the namespaces are not there: use them in a with block")
        return self._folder

    def full_name(self, name: str) -> str:
        """The name that `ip netns` knows."""
        return self.prefix + name

    def command(self, name: str) -> tuple[str, ...]:
        """What stands before a command that is to run in a namespace; its process is the one that was started."""
        hostname = 'hostname "$0" && exec "$@"'
        return ("ip", "netns", "exec", self.full_name(name), "unshare", "--uts", "sh", "-c", hostname, name)

    def __enter__(self) -> Self:
        if os.geteuid() != 0:
            raise NetworkError("network namespaces need root: run it as root")
        remove_orphans()
        try:
            self._make()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """End what runs in the namespaces, and remove them. Safe to call twice."""
        _remove(self._record)

    def _make(self) -> None:
        RECORDS.mkdir(mode=0o755, parents=True, exist_ok=True)
        self._folder = Path(tempfile.mkdtemp(prefix="dualpath-testbed-"))
        owner = {"pid": os.getpid(), "started": _started(os.getpid()), "folder": str(self._folder)}
        temporary = self._record.with_suffix(".tmp")
        temporary.write_text(json.dumps(owner))
        temporary.rename(self._record)
        known = "".join(f"{address} {name}\n" for name, address in self._addresses.items() if address)
        for name in self._addresses:
            files = HOSTS / self.full_name(name)
            files.mkdir(parents=True)
            (files / "hosts").write_text(f"127.0.0.1 localhost\n{known}")
            network_command("ip", "netns", "add", self.full_name(name))
            network_command("ip", "-n", self.full_name(name), "link", "set", "lo", "up")


@contextlib.contextmanager
def inside(full_name: str) -> Iterator[None]:
    """Within, sockets that this thread opens, and threads that it starts, are in the namespace."""
    with Path("/proc/thread-self/ns/net").open() as before, (NETNS / full_name).open() as there:
        _enter(there.fileno())
        try:
            yield
        finally:
            _enter(before.fileno())


def remove_orphans() -> None:
    """Remove what processes have left that were killed. Raises NetworkError."""
    for record in RECORDS.glob("dpt*"):
        with contextlib.suppress(OSError, ValueError, KeyError):
            owner = json.loads(record.read_text())
            if _started(owner["pid"]) != owner["started"]:
                _remove(record)


def _remove(record: Path) -> None:
    if not record.exists():
        return
    files = json.loads(record.read_text())["folder"]
    names = [path.name for path in NETNS.glob(f"{record.name}-*")]
    for name in names:
        _end_processes(name)
    for name in names:
        network_command("ip", "netns", "delete", name)
    for folder in HOSTS.glob(f"{record.name}-*"):
        shutil.rmtree(folder, ignore_errors=True)
    shutil.rmtree(files, ignore_errors=True)
    record.unlink(missing_ok=True)


def _end_processes(name: str) -> None:
    """Nobody in a namespace outlives it; our own threads, which may be there, are not meant."""
    end = time.monotonic() + _GONE_S
    while pids := {int(pid) for pid in network_command("ip", "netns", "pids", name).split()} - {os.getpid()}:
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        if time.monotonic() > end:
            raise NetworkError(f"processes {sorted(pids)} in namespace {name} do not end: end them, and try again")
        time.sleep(0.05)


def _started(pid: int) -> str:
    """When a process started, which tells it from a later one of the same id; empty: it is gone."""
    try:
        return (Path("/proc") / str(pid) / "stat").read_text().rpartition(")")[2].split()[19]
    except OSError:
        return ""


def _enter(descriptor: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.setns(descriptor, _CLONE_NEWNET):
        code = ctypes.get_errno()
        raise NetworkError(f"cannot enter the namespace: {os.strerror(code)}")
