"""Servers that refuse, hang or die: one clear line at open, a result for every block by the deadline after it."""

import asyncio
import contextlib
import socket
import time
import weakref
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from dualpath_storage import Status, StoreError, open_store
from dualpath_storage.object_requests import perform, perform_all
from dualpath_storage.object_store import ObjectStore
from tests.gcs import FakeGCS
from tests.seaweedfs import ACCESS_KEY, BUCKET, SECRET_KEY, SeaweedFS, running_seaweedfs
from tests.storage.blocks import LAYOUT, chain, put_all, statuses


@pytest.fixture
async def store(seaweedfs: SeaweedFS) -> AsyncIterator[ObjectStore]:
    store = ObjectStore(seaweedfs.url(), LAYOUT, threads=4)
    yield store
    await store.close()


def refusal(url: str) -> str:
    """What `open_store` says, one line without the URL that it begins with."""
    with pytest.raises(StoreError) as caught:
        open_store(url, LAYOUT)
    start, line = f"store URL {url!r}: ", str(caught.value)
    assert line.startswith(start)
    assert "\n" not in line
    assert "<" not in line
    return line.removeprefix(start)


def test_a_bucket_that_does_not_exist(seaweedfs: SeaweedFS) -> None:
    assert refusal(f"s3://nosuchbucket/p?endpoint={seaweedfs.endpoint}") == (
        f"bucket 'nosuchbucket' is not at endpoint {seaweedfs.endpoint} (NoSuchBucket: The specified bucket does not "
        "exist): create it, or correct the URL"
    )


def test_a_bucket_that_google_does_not_have(gcs: FakeGCS) -> None:
    assert refusal("gcs://nosuchbucket/p") == (
        "bucket 'nosuchbucket' is not at Google Cloud Storage (The specified bucket does not exist.): create it, or "
        "correct the URL"
    )


def test_credentials_that_google_refuses(gcs: FakeGCS) -> None:
    with gcs.refusing():
        assert refusal(gcs.url()).startswith(
            "Google Cloud Storage refuses these credentials for bucket 'kvcache' (Invalid Credentials): set "
            "GOOGLE_APPLICATION_CREDENTIALS, "
        )


@pytest.mark.parametrize(
    ("name", "said"), [("AWS_ACCESS_KEY_ID", "InvalidAccessKeyId"), ("AWS_SECRET_ACCESS_KEY", "SignatureDoesNotMatch")]
)
def test_wrong_credentials(seaweedfs: SeaweedFS, monkeypatch: pytest.MonkeyPatch, name: str, said: str) -> None:
    monkeypatch.setenv(name, "wrong")
    text = refusal(seaweedfs.url("p"))
    assert text.startswith(
        f"endpoint {seaweedfs.endpoint} refuses these credentials for bucket '{BUCKET}' ({said}: The "
    )
    assert text.endswith(
        "): set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or the URL's `profile`, to a key that may list, read and "
        "write there"
    )


def test_a_key_of_the_environment_is_used_without_a_word(
    seaweedfs: SeaweedFS, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    opened(seaweedfs.url())
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "wrong")
    assert "SignatureDoesNotMatch" in refusal(seaweedfs.url())
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize("profile", ["default", "other"])
def test_a_key_of_a_profile_is_used(
    seaweedfs: SeaweedFS, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, profile: str
) -> None:
    (tmp_path / ".aws").mkdir()
    keys = f"aws_access_key_id = {ACCESS_KEY}\naws_secret_access_key = {SECRET_KEY}\n"
    (tmp_path / ".aws" / "credentials").write_text(f"[{profile}]\n{keys}")
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    if profile != "default":
        assert "refuses these credentials" in refusal(seaweedfs.url())
    opened(f"{seaweedfs.url()}&profile={profile}")


def opened(url: str) -> None:
    """Asks the bucket, which answers."""
    asyncio.run(open_store(url, LAYOUT).close())


@pytest.fixture
def open_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dualpath_storage.object_store._OPEN_DEADLINE_S", 1)


def test_an_endpoint_where_nobody_listens(s3_credentials: None, open_deadline: None) -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        endpoint = f"http://127.0.0.1:{unused.getsockname()[1]}"
        start = time.monotonic()
        text = refusal(f"s3://{BUCKET}/p?endpoint={endpoint}")
    assert time.monotonic() - start < 2
    assert text.startswith(f"endpoint {endpoint} cannot be used (Could not connect to server: ")
    assert text.endswith(" attempts)): check the address, and that the server runs")


def test_an_endpoint_that_never_answers(s3_credentials: None, open_deadline: None) -> None:
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        endpoint = f"http://127.0.0.1:{silent.getsockname()[1]}"
        start = time.monotonic()
        assert refusal(f"s3://{BUCKET}/p?endpoint={endpoint}") == (
            f"endpoint {endpoint} does not answer within 1 s: check the address, and that the server runs"
        )
    assert time.monotonic() - start < 2


async def test_a_server_that_hangs_times_blocks_out_and_leaves_their_buffers_alone(
    store: ObjectStore, seaweedfs: SeaweedFS
) -> None:
    blocks = chain(12)
    await put_all(store, blocks)
    arena = bytearray(12 * LAYOUT.block_bytes)
    size = LAYOUT.block_bytes
    reads = [block.read(memoryview(arena)[i * size : (i + 1) * size]) for i, block in enumerate(blocks)]
    with seaweedfs.hanging():
        start = time.monotonic()
        results = await store.get(reads, deadline_s=0.7)
        written = await store.put([block.write() for block in chain(12, seed=1)], deadline_s=0.7)
        assert time.monotonic() - start < 2.5
        assert {result.status for result in (*results, *written)} == {Status.TIMED_OUT}
        quiet = [result.quiet for result in (*results, *written) if result.quiet is not None]
        await asyncio.wait_for(asyncio.gather(*quiet), 1)  # while the server still hangs
    await asyncio.sleep(0.5)  # its answers come, to nobody
    assert not any(arena)
    assert await statuses(store, blocks) == ["ok"] * 12


async def test_a_server_that_hangs_for_a_moment_costs_no_block(store: ObjectStore, seaweedfs: SeaweedFS) -> None:
    blocks = chain(6)
    await put_all(store, blocks)
    with seaweedfs.hanging():
        reading = asyncio.create_task(statuses(store, blocks))
        await asyncio.sleep(0.5)
        assert not reading.done()
    assert await reading == ["ok"] * 6


async def test_a_cancelled_read_ends_and_leaves_its_buffers_alone(store: ObjectStore, seaweedfs: SeaweedFS) -> None:
    blocks = chain(8)
    await put_all(store, blocks)
    with seaweedfs.hanging():
        reading = asyncio.create_task(store.get([block.read() for block in blocks], deadline_s=1))
        await asyncio.sleep(0.2)
        reading.cancel()
        start = time.monotonic()
        try:
            results = await reading
            assert {result.status for result in results} == {Status.TIMED_OUT}
        except asyncio.CancelledError:
            pass
        assert time.monotonic() - start < 2


async def test_a_server_killed_in_mid_batch(s3_credentials: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dualpath_storage.object_medium._CALL_DEADLINE_S", 1)
    blocks = chain(400)
    with running_seaweedfs() as server:
        store = ObjectStore(server.url(), LAYOUT, threads=4)
        await put_all(store, blocks[:200])
        some_read, loop, read_whole = asyncio.Event(), asyncio.get_running_loop(), store.medium.read_whole

        def noted(*block: Any, **more: Any) -> int:
            seen = read_whole(*block, **more)
            loop.call_soon_threadsafe(some_read.set)
            return seen

        monkeypatch.setattr(store.medium, "read_whole", noted)
        reading = asyncio.create_task(store.get([block.read() for block in blocks[:200] * 10], deadline_s=3))
        writing = asyncio.create_task(store.put([block.write() for block in blocks[200:]], deadline_s=3))
        await asyncio.wait_for(some_read.wait(), 3)
        server.kill()
        start = time.monotonic()
        results = [*await reading, *await writing]
        assert time.monotonic() - start < 4
        found = {result.status for result in results}
        assert found <= {Status.OK, Status.FAILED, Status.TIMED_OUT}
        assert Status.OK in found
        assert Status.FAILED in found, "the cause is told where there is one"
        failed = next(result for result in results if result.status is Status.FAILED)
        assert "Could not connect to server" in failed.detail
        quiet = [result.quiet for result in results if result.quiet is not None]
        await asyncio.wait_for(asyncio.gather(*quiet), 1)
        with pytest.raises(StoreError, match=r"^s3://.*: Could not connect to server"):
            await store.contains([blocks[0].key])
        await asyncio.wait_for(store.close(), 10)


class _Future:
    """As TensorStore's, done already; without its `cancel`, in which a process can stand still for ever."""

    def __init__(self, outcome: str | Exception) -> None:
        self.outcome = outcome

    def result(self, timeout: float) -> str:
        if isinstance(self.outcome, Exception):
            raise type(self.outcome)(*self.outcome.args)  # a new one, as the library's are: it holds nobody's frames
        return self.outcome


def performed(*outcomes: str | Exception, deadline_s: float = 5) -> str:
    """What `perform` makes of a request with these outcomes, one an attempt; the last one comes again and again."""
    left = list(outcomes)

    def start() -> _Future:
        return _Future(left.pop(0) if len(left) > 1 else left[0])

    return perform(start, deadline_at=time.monotonic() + deadline_s)  # type: ignore[arg-type]


def test_what_one_failure_makes_useless_is_dropped() -> None:
    futures = [_Future(ValueError("PERMISSION_DENIED: No.")), _Future("value"), _Future(TimeoutError())]
    others = [weakref.ref(future) for future in futures[1:]]
    starts = [partial(futures.pop, 0)] * 3
    with contextlib.suppress(OSError):
        perform_all(starts, deadline_at=time.monotonic() + 5)  # type: ignore[arg-type]
    assert [future() for future in others] == [None] * 2


BUSY = ValueError("ABORTED: All 1 retry attempts failed: SlowDown: Reduce your rate. [http_response_code='503']")


def test_what_a_moment_may_cure_is_tried_again_with_growing_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    pauses: list[float] = []
    monkeypatch.setattr(time, "sleep", pauses.append)
    assert performed(*[BUSY] * 8, "value", deadline_s=100) == "value"
    for pause, ceiling in zip(pauses, [0.05, 0.1, 0.2, 0.4, 0.8, 1.6, 2, 2], strict=True):
        assert ceiling / 2 <= pause <= ceiling
    assert len({pause / 2 for pause in pauses}) == 8, "pauses are drawn, so that clients spread"


def test_what_goes_on_failing_ends_just_before_the_deadline() -> None:
    start = time.monotonic()
    with pytest.raises(OSError, match=r"^SlowDown: Reduce your rate\. \(\d attempts\)$"):
        performed(BUSY, deadline_s=0.4)
    assert time.monotonic() - start <= 0.4


def test_a_cause_outlives_an_attempt_without_an_answer() -> None:
    with pytest.raises(OSError, match=r"^SlowDown: Reduce your rate\. \(2 attempts\)$"):
        performed(BUSY, TimeoutError())


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("PERMISSION_DENIED: AccessDenied: No. [http_response_code='403']", "AccessDenied: No."),
        ("PERMISSION_DENIED: Unknown [http_response_code='403']", "HTTP status 403"),
        ("NOT_FOUND: two\n lines", "two lines"),
        ("no code at all", "no code at all"),
    ],
)
def test_what_nothing_will_cure_fails_at_once(text: str, said: str) -> None:
    start = time.monotonic()
    with pytest.raises(OSError) as caught:
        performed(ValueError(text))
    assert str(caught.value) == said
    assert time.monotonic() - start < 1


async def test_a_server_without_room_is_full(store: ObjectStore, monkeypatch: pytest.MonkeyPatch) -> None:
    full = ValueError("UNKNOWN: Insufficient Storage [http_response_code='507']")

    class Full:
        def __getattr__(self, name: str) -> object:
            return lambda *args, **keywords: _Future(full)

    monkeypatch.setattr(store.medium, "_kv", Full())
    (block,) = chain(1)
    monkeypatch.setattr(store.medium, "contains", lambda key, deadline_at: False)
    (result,) = await store.put([block.write()], deadline_s=5)
    assert (result.status, result.detail) == (Status.FULL, "Insufficient Storage")
