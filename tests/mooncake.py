"""A Mooncake cluster for tests: a master and a node that lends memory, gone with whoever started them.

The master is on free ports of 127.0.0.1. Clients listen on all addresses, since Mooncake has no setting for that, and
announce 127.0.0.1.
"""

import contextlib
import importlib
import importlib.util
import secrets
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from dualpath_storage import StoreError
from dualpath_storage.mooncake_master import reach_master
from dualpath_storage.mooncake_url import parse_mooncake_url
from tests import servers

SEGMENT_BYTES = 64 << 20
_READY_DEADLINE_S = 30
_NODE = """
import signal
import sys
from mooncake.store import MooncakeDistributedStore

node = MooncakeDistributedStore()
code = node.setup("127.0.0.1", "P2PHANDSHAKE", int(sys.argv[2]), 0, "tcp", "", sys.argv[1])
print("ready" if code == 0 else f"error {code}", flush=True)
signal.pause()
"""


class Mooncake:
    """One master, and one node of `segment_bytes` in a process of its own. Running until `kill`.

    A node that dies is missed by the master after `alive_s` without a sign of life.
    """

    def __init__(self, folder: Path, segment_bytes: int = SEGMENT_BYTES, *, alive_s: int = 10) -> None:
        reason = why_no_mooncake()
        if reason:
            pytest.skip(reason)
        self.client_class = importlib.import_module("mooncake.store").MooncakeDistributedStore
        self._folder = folder
        self._alive_s = alive_s
        self._port, self.admin_port = servers.free_ports(2)
        self.master = f"127.0.0.1:{self._port}"
        self._nodes: list[subprocess.Popen[bytes]] = []
        self.start_master()
        self.start_node(segment_bytes)

    def url(self, prefix: str = "", **parameters: object) -> str:
        """The URL of a store; without a prefix, under one that nobody else has."""
        more = "".join(f"&{name}={value}" for name, value in parameters.items())
        return f"mooncake://{self.master}/{prefix or secrets.token_hex(4)}?admin=127.0.0.1:{self.admin_port}{more}"

    def client(self, *, segment_bytes: int = 0, buffer_bytes: int = 0) -> Any:
        """One of Mooncake's own. `put` and `get` of bytes need a buffer."""
        client = self.client_class()
        code = client.setup("127.0.0.1", "P2PHANDSHAKE", segment_bytes, buffer_bytes, "tcp", "", self.master)
        if code:
            raise RuntimeError(f"Mooncake refuses: error {code}; its log says why")
        return client

    def start_master(self) -> None:
        """On the same port each time; a new one knows of no blocks."""
        package = importlib.util.find_spec("mooncake")
        assert package is not None
        assert package.origin is not None
        program = Path(package.origin).with_name("mooncake_master")
        ports = [f"--rpc_port={self._port}", f"--metrics_port={self.admin_port}"]
        hosts = ["--rpc_address=127.0.0.1", "--metrics_host=127.0.0.1"]
        lives = f"--client_ttl={self._alive_s}"
        command = [str(program), *ports, *hosts, lives]
        self._master = servers.start(command, folder=self._folder, log=self._folder / "master.log")
        deadline_at = time.monotonic() + _READY_DEADLINE_S
        while not self._answers():
            if time.monotonic() > deadline_at or self._master.poll() is not None:
                self.kill()
                raise RuntimeError(f"the master did not start: {(self._folder / 'master.log').read_text()[-2000:]}")
            time.sleep(0.05)

    def start_node(self, segment_bytes: int = SEGMENT_BYTES) -> None:
        """One more."""
        log = self._folder / "node.log"
        command = [sys.executable, "-c", _NODE, self.master, str(segment_bytes)]
        node = servers.start(command, folder=self._folder, log=log, stdout=subprocess.PIPE)
        self._nodes.append(node)
        assert node.stdout is not None
        if node.stdout.readline() != b"ready\n":
            self.kill()
            raise RuntimeError(f"the node did not start: {log.read_text()[-2000:]}")

    def kill_master(self) -> None:
        """Safe to call twice, as the others."""
        servers.kill(self._master)

    def kill_node(self) -> None:
        """The one that was started first."""
        if self._nodes:
            servers.kill(self._nodes.pop(0))

    def kill(self) -> None:
        while self._nodes:
            self.kill_node()
        self.kill_master()

    def hanging(self) -> contextlib.AbstractContextManager[None]:
        """The master accepts and does not answer."""
        return servers.stopped(self._master)

    def _answers(self) -> bool:
        try:
            reach_master(parse_mooncake_url(self.url()))
        except StoreError:
            return False
        return True


class _SparingClient:
    """What a store gets for a client of its own: `kept`, which stays open, where the store lends no memory.

    Closing a client takes Mooncake a second, in which it holds the interpreter lock.
    """

    def __init__(self, cluster: Mooncake, kept: Any) -> None:
        self._cluster = cluster
        self._client = kept
        self._is_own = False
        self._registered: list[int] = []

    def setup(self, host: str, metadata: str, segment_bytes: int, *others: object) -> int:
        if not segment_bytes:
            return 0
        self._client, self._is_own = self._cluster.client_class(), True
        code: int = self._client.setup(host, metadata, segment_bytes, *others)
        return code

    def __getattr__(self, name: str) -> Any:
        return getattr(self._client, name)

    def register_buffer(self, address: int, size_bytes: int) -> int:
        code: int = self._client.register_buffer(address, size_bytes)
        if code == 0:
            self._registered.append(address)
        return code

    def close(self) -> None:
        for address in self._registered:
            self._client.unregister_buffer(address)
        if self._is_own:
            self._client.close()


def why_no_mooncake() -> str:
    """Why Mooncake cannot run here; empty where it can."""
    try:
        importlib.import_module("mooncake.store")
    except ImportError as error:
        return f"no Mooncake ({error}): pip install mooncake-transfer-engine-non-cuda, apt-get install libibverbs1"
    return ""


@contextlib.contextmanager
def running_mooncake(segment_bytes: int = SEGMENT_BYTES, *, alive_s: int = 10) -> Iterator[Mooncake]:
    """A cluster of one's own."""
    with tempfile.TemporaryDirectory(prefix="mooncake-") as folder:
        cluster = Mooncake(Path(folder), segment_bytes, alive_s=alive_s)
        try:
            yield cluster
        finally:
            cluster.kill()


@pytest.fixture(scope="session")
def shared_mooncake() -> Iterator[tuple[Mooncake, Any]]:
    """One cluster for all tests, and one client of it; start with `mooncake`."""
    with running_mooncake() as cluster:
        client = cluster.client()
        yield cluster, client
        client.close()


@pytest.fixture
def mooncake(shared_mooncake: tuple[Mooncake, Any], monkeypatch: pytest.MonkeyPatch) -> Mooncake:
    """The shared cluster; stores that lend it no memory share a client."""
    cluster, kept = shared_mooncake
    monkeypatch.setattr("mooncake.store.MooncakeDistributedStore", partial(_SparingClient, cluster, kept))
    return cluster
