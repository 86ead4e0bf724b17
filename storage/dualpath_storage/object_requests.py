"""Requests to an object store that end by a deadline: retried while that can help, and their errors in one line.

TensorStore retries by itself what a moment may cure (no connection, a broken one, HTTP 408, 409, 429, 500 and 502 to
504), up to 32 times over minutes and without a deadline, and its error comes only then. Here it is told to try again
but once, at once, and what lies beyond is done here: exponential backoff with jitter until the deadline, the cause
kept.

A request is given up by dropping its future, which cancels it, and never by `Future.cancel`: that one holds Python's
global lock while it waits for a callback which may be waiting for that lock, and then every thread of the process
stands still (TensorStore 0.1.86).
"""

import errno
import random
import re
import time
from collections.abc import Callable, Sequence
from typing import TypeVar

import tensorstore

T = TypeVar("T")
Start = Callable[[], tensorstore.Future[T]]

CONTEXT = {
    f"{driver}_request_{resource}": settings
    for driver in ("s3", "gcs")
    for resource, settings in (
        ("retries", {"max_retries": 1, "initial_delay": "10ms", "max_delay": "10ms"}),
        # A request that is given up keeps its place until its connection ends, which a dead host can put off for
        # long. The threads of a store are what bounds its requests, so such places are not missed.
        ("concurrency", {"limit": 4096}),
    )
}
"""The context of every TensorStore that these requests go to."""

_FIRST_DELAY_S = 0.05
_LONGEST_DELAY_S = 2.0
_RETRYABLE = ("ABORTED", "UNAVAILABLE", "DEADLINE_EXCEEDED")
_NO_ROOM = "RESOURCE_EXHAUSTED"
_ERROR = re.compile(r"(?:([A-Z_]+): )?(?:All \d+ retry attempts failed: )?(.*)", re.DOTALL)
_MOST_CHARACTERS = 200


class RequestError(OSError):
    """A request that failed for good, or went on failing until its deadline; `code` is TensorStore's word for why."""

    def __init__(self, code: str, cause: str, attempts: int) -> None:
        text = cause if attempts == 1 else f"{cause} ({attempts} attempts)"
        super().__init__(errno.ENOSPC if code == _NO_ROOM else errno.EIO, text)
        self.code = code

    def __str__(self) -> str:
        return str(self.strerror)


def perform(start: Start[T], *, deadline_at: float, begun: tensorstore.Future[T] | None = None) -> T:
    """What the request gives that `start` begins; `begun` is its first attempt where that is under way already.

    `deadline_at` is on `time.monotonic`. Raises RequestError, and TimeoutError where there is no answer at all by then.
    """
    attempts, code, cause = 0, "", ""
    while True:
        attempts += 1
        future = start() if begun is None else begun
        begun = None
        try:
            return future.result(timeout=max(0.0, deadline_at - time.monotonic()))
        except TimeoutError:
            if cause:  # which is more than that the last attempt had no time left
                raise RequestError(code, cause, attempts) from None
            raise TimeoutError("no answer from the object store by the deadline") from None
        except ValueError as error:  # the type of all errors of TensorStore
            code, cause = explained(error)
        ceiling_s = min(_LONGEST_DELAY_S, _FIRST_DELAY_S * 2 ** (attempts - 1))
        delay_s = random.uniform(ceiling_s / 2, ceiling_s)
        if code not in _RETRYABLE or time.monotonic() + delay_s >= deadline_at:
            raise RequestError(code, cause, attempts)
        time.sleep(delay_s)


def perform_all(starts: Sequence[Start[T]], *, deadline_at: float) -> list[T]:
    """What the requests give, in order; all are under way at once. Raises as `perform` does, for the first to fail."""
    begun = [start() for start in starts]
    return [perform(start, deadline_at=deadline_at, begun=future) for start, future in zip(starts, begun, strict=True)]


def explained(error: Exception) -> tuple[str, str]:
    """TensorStore's code of an error, such as PERMISSION_DENIED, and what went wrong, in one line."""
    head, _, tags = str(error).partition(" [")
    match = _ERROR.fullmatch(head)
    assert match is not None
    code, cause = match[1] or "", " ".join(match[2].split()).removeprefix("CURL error ")
    if cause == "Unknown":  # the server said nothing beyond HTTP's own code
        status = re.search(r"http_response_code='(\d+)'", tags)
        cause = f"HTTP status {status[1]}" if status else str(error)
    return _NO_ROOM if "http_response_code='507'" in tags else code, cause[:_MOST_CHARACTERS]
