"""Who goes first on a device that loads and stores share: loads do, and stores take what time is left."""

import contextlib
import threading
import time
from collections.abc import Iterator
from typing import final

LULL_S = 0.005
"""Loads are over when there has been none for this long: shorter gaps lie between the batches of one request."""

REST = 3
"""While loads go on, stores rest so many times as long as the last took: at most a quarter of a device is theirs."""


@final
class LoadsFirst:
    """Holds stores back while loads go on, but never for good: what is never stored can never be loaded.

    While loads go on, one block is written at a time, with rests between; so a load waits for one block's write at
    most, and only now and then. What the device was given before a load came is not taken back.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._loads = 0
        self._last_load_at = float("-inf")
        self._stores = 0
        self._next_store_at = 0.0

    @contextlib.contextmanager
    def load(self) -> Iterator[None]:
        """Around a load, from any thread."""
        with self._lock:
            self._loads += 1
        try:
            yield
        finally:
            with self._lock:
                self._loads -= 1
                self._last_load_at = time.monotonic()

    @contextlib.contextmanager
    def store(self, deadline_at: float) -> Iterator[None]:
        """Around a store, in a thread that may wait. Raises TimeoutError where its turn does not come in time."""
        while (wait_s := self._wait_s()) > 0:
            if time.monotonic() + wait_s > deadline_at:
                raise TimeoutError("loads kept the device busy until the deadline")
            time.sleep(wait_s)
        start = time.monotonic()
        try:
            yield
        finally:
            end = time.monotonic()
            with self._lock:
                self._stores -= 1
                self._next_store_at = end + REST * (end - start)

    def _wait_s(self) -> float:
        """0: a store has begun. Else how long until it is worth asking again."""
        with self._lock:
            now = time.monotonic()
            lull_s = LULL_S if self._loads else self._last_load_at + LULL_S - now
            turn_s = LULL_S if self._stores else self._next_store_at - now
            wait_s = min(lull_s, turn_s)
            if wait_s <= 0:
                self._stores += 1
            return max(0.0, wait_s)
