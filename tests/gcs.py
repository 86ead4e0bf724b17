"""A bucket that speaks as much of Google Cloud Storage's JSON protocol as TensorStore does, for tests."""

import contextlib
import json
import re
import secrets
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, unquote, urlsplit

import pytest

BUCKET, TOKEN = "kvcache", "test-token"


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    wbufsize = -1  # an answer is one packet
    disable_nagle_algorithm = True
    objects: dict[str, bytes]
    token: str

    def do_GET(self) -> None:
        name, query = self._target()
        if name is None:
            return
        if not name:
            first, end = query.get("startOffset", ""), query.get("endOffset", chr(0x10FFFF))
            found = sorted(known for known in list(self.objects) if first <= known < end)
            self._answer(200, json.dumps({"items": [_metadata(known, 0) for known in found]}).encode())
        elif (stored := self.objects.get(name)) is None:
            self._answer(404)
        elif query.get("alt") == "json":
            self._answer(200, json.dumps(_metadata(name, len(stored))).encode())
        elif (wanted := re.fullmatch(r"bytes=(\d+)-(\d+)", self.headers.get("Range", ""))) is None:
            self._answer(200, stored)
        elif int(wanted[1]) >= len(stored):
            self._answer(416)
        else:
            first, last = int(wanted[1]), min(int(wanted[2]), len(stored) - 1)
            self._answer(206, stored[first : last + 1], f"bytes {first}-{last}/{len(stored)}")

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        bucket, query = self._target()
        if bucket is not None:
            self.objects[query["name"]] = body
            self._answer(200, json.dumps(_metadata(query["name"], len(body))).encode())

    def do_DELETE(self) -> None:
        name, _ = self._target()
        if name is not None:
            self._answer(204 if self.objects.pop(name, None) is not None else 404)

    def _target(self) -> tuple[str | None, dict[str, str]]:
        """The object's name, empty for all of them; None where the request is refused, which it has been told."""
        parts = urlsplit(self.path)
        place = re.fullmatch(r"(?:/upload)?/storage/v1/b/([^/]+)/o(?:/(.*))?", parts.path)
        query = {name: values[0] for name, values in parse_qs(parts.query).items()}
        if self.headers.get("Authorization") != f"Bearer {self.token}":
            self._answer(401, _error(401, "Invalid Credentials"))
        elif place is None or place[1] != BUCKET:
            self._answer(404, _error(404, "The specified bucket does not exist."))
        else:
            return unquote(place[2] or ""), query
        return None, query

    def _answer(self, status: int, body: bytes = b"", content_range: str = "") -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("x-goog-generation", "1")
        if content_range:
            self.send_header("Content-Range", content_range)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *args: object) -> None:
        """Nothing: tests say what went wrong."""


def _metadata(name: str, size_bytes: int) -> dict[str, str]:
    made = dict.fromkeys(("timeCreated", "updated"), "2026-01-01T00:00:00Z")
    return {"name": name, "size": str(size_bytes), "generation": "1", "metageneration": "1", **made}


def _error(status: int, message: str) -> bytes:
    return json.dumps({"error": {"code": status, "message": message}}).encode()


class FakeGCS:
    """The server, with one bucket."""

    def __init__(self) -> None:
        self._handler = type("_Bucket", (_Handler,), {"objects": {}, "token": TOKEN})
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler)
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)
        self._thread.start()

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self._server.server_port}"

    def url(self) -> str:
        """The URL of a store that nobody else has."""
        return f"gcs://{BUCKET}/{secrets.token_hex(4)}"

    @contextlib.contextmanager
    def refusing(self) -> Iterator[None]:
        """Nobody's token is accepted."""
        self._handler.token = "another"
        try:
            yield
        finally:
            self._handler.token = TOKEN

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(10)


@pytest.fixture(scope="session")
def gcs() -> Iterator[FakeGCS]:
    """In Google's place for the whole run, since TensorStore looks only once for the address and the token."""
    server = FakeGCS()
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("TENSORSTORE_GCS_HTTP_URL", server.address)
        environment.setenv("GOOGLE_AUTH_TOKEN_FOR_TESTING", TOKEN)
        yield server
    server.close()
