"""A Mooncake cluster for tests: a master and a node that lends memory, on free ports of 127.0.0.1, gone with whoever
started them."""

import contextlib
import importlib
import importlib.util
import os
import secrets
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

SEGMENT_BYTES = 64 << 20
_READY_DEADLINE_S = 30
_WRAPPER = '"$@" & read -r _; kill -9 $!'
"""Kills the master once its own input ends, which it does however the process that holds the other end goes."""
_NODE = """
import sys
from mooncake.store import MooncakeDistributedStore

node = MooncakeDistributedStore()
code = node.setup("127.0.0.1", "P2PHANDSHAKE", int(sys.argv[2]), 0, "tcp", "", sys.argv[1])
print("ready" if code == 0 else f"error {code}", flush=True)
sys.stdin.read()
"""


class Mooncake:
    """One master, and one node of `segment_bytes` in a process of its own. Running until `kill`."""

    def __init__(self, folder: Path, segment_bytes: int = SEGMENT_BYTES) -> None:
        reason = why_no_mooncake()
        if reason:
            pytest.skip(reason)
        self._folder = folder
        self._port, self._admin_port = _free_ports(2)
        self.master = f"127.0.0.1:{self._port}"
        self._node: subprocess.Popen[bytes] | None = None
        self.start_master()
        self.start_node(segment_bytes)

    def url(self, prefix: str = "", **parameters: object) -> str:
        """The URL of a store; without a prefix, under one that nobody else has."""
        more = "".join(f"&{name}={value}" for name, value in parameters.items())
        return f"mooncake://{self.master}/{prefix or secrets.token_hex(4)}?admin=127.0.0.1:{self._admin_port}{more}"

    def start_master(self) -> None:
        """On the same port each time; a new one knows of no blocks."""
        package = importlib.util.find_spec("mooncake")
        assert package is not None
        assert package.origin is not None
        program = Path(package.origin).with_name("mooncake_master")
        ports = [f"--rpc_port={self._port}", f"--metrics_port={self._admin_port}"]
        hosts = ["--rpc_address=127.0.0.1", "--metrics_host=127.0.0.1"]
        with (self._folder / "master.log").open("ab") as log:
            self._master = subprocess.Popen(
                ["sh", "-c", _WRAPPER, "sh", str(program), *ports, *hosts],
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                cwd=self._folder,
                start_new_session=True,
            )
        deadline_at = time.monotonic() + _READY_DEADLINE_S
        while not all(_listens(port) for port in (self._port, self._admin_port)):
            if time.monotonic() > deadline_at or self._master.poll() is not None:
                self.kill()
                raise RuntimeError(f"the master did not start: {(self._folder / 'master.log').read_text()[-2000:]}")
            time.sleep(0.05)

    def start_node(self, segment_bytes: int = SEGMENT_BYTES) -> None:
        with (self._folder / "node.log").open("ab") as log:
            self._node = subprocess.Popen(
                [sys.executable, "-c", _NODE, self.master, str(segment_bytes)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                cwd=self._folder,
                env={**os.environ, "MC_TCP_BIND_ADDRESS": "127.0.0.1"},
            )
        assert self._node.stdout is not None
        if self._node.stdout.readline() != b"ready\n":
            self.kill()
            raise RuntimeError(f"the node did not start: {(self._folder / 'node.log').read_text()[-2000:]}")

    def kill_master(self) -> None:
        """SIGKILL, as a host that dies. Safe to call twice, as the others."""
        if self._master.poll() is None:
            os.killpg(self._master.pid, signal.SIGKILL)
        self._master.communicate()

    def kill_node(self) -> None:
        if self._node is not None:
            self._node.kill()
            self._node.communicate()

    def kill(self) -> None:
        self.kill_node()
        self.kill_master()

    @contextlib.contextmanager
    def hanging(self) -> Iterator[None]:
        """The master accepts and does not answer."""
        os.killpg(self._master.pid, signal.SIGSTOP)
        try:
            yield
        finally:
            os.killpg(self._master.pid, signal.SIGCONT)


def why_no_mooncake() -> str:
    """Why Mooncake cannot run here; empty where it can."""
    try:
        importlib.import_module("mooncake.store")
    except ImportError as error:
        return f"no Mooncake ({error}): pip install mooncake-transfer-engine-non-cuda, apt-get install libibverbs1"
    return ""


@contextlib.contextmanager
def running_mooncake(segment_bytes: int = SEGMENT_BYTES) -> Iterator[Mooncake]:
    """A cluster of one's own."""
    with tempfile.TemporaryDirectory(prefix="mooncake-") as folder:
        cluster = Mooncake(Path(folder), segment_bytes)
        try:
            yield cluster
        finally:
            cluster.kill()


@pytest.fixture(scope="session")
def shared_mooncake() -> Iterator[Mooncake]:
    """One cluster for all tests; start with `mooncake`, which keeps clients on 127.0.0.1."""
    with running_mooncake() as cluster:
        yield cluster


@pytest.fixture
def mooncake_local(monkeypatch: pytest.MonkeyPatch) -> None:
    """Clients of this process listen on 127.0.0.1 alone."""
    monkeypatch.setenv("MC_TCP_BIND_ADDRESS", "127.0.0.1")


@pytest.fixture
def mooncake(shared_mooncake: Mooncake, mooncake_local: None) -> Mooncake:
    """The shared cluster."""
    return shared_mooncake


def _free_ports(count: int) -> list[int]:
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [one.getsockname()[1] for one in sockets]


def _listens(port: int) -> bool:
    with socket.socket() as probe:
        probe.settimeout(5)
        return probe.connect_ex(("127.0.0.1", port)) == 0
