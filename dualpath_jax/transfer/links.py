"""Emulated network cards: a link lets bytes through at a fixed rate, the most urgent transfer first."""

import asyncio
import heapq
import math
import time
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import count
from typing import final

from dualpath_configs import NetworkSpec
from dualpath_jax.transfer.base import Lane
from dualpath_jax.transfer.window import Need

CHUNK_S = 0.004
"""Wire time of a chunk: how long the most urgent transfer waits at most for one that is on the wire."""

MIN_CHUNK_BYTES, MAX_CHUNK_BYTES = 16 * 1024, 256 * 1024

MAX_SAMPLES = 20_000
"""Time buckets that a link remembers (almost three hours of half seconds); older ones are dropped."""


@final
@dataclass(order=True)
class _Transfer:
    lane: Lane
    need: Need
    arrival: int
    arrived_s: float = field(compare=False)
    remaining_bytes: int = field(compare=False)
    done: "asyncio.Future[None]" = field(compare=False)


@final
class Link:
    """One direction of a card: a token bucket that fills at `rate_bytes_per_s` up to `burst_bytes`; no rate, no limit.

    In the words of a wire: chunk `i` of `n_i` bytes, of a transfer that arrived at `a_i`, has passed at

        passed_i = max(passed_(i-1), a_i - burst / rate) + n_i / rate

    which does not know when this process woke up, so that the rate is exact while transfers wait, however coarse the
    timers are; and time in which nothing waited gives no more credit than the burst.
    """

    def __init__(self, rate_bytes_per_s: float | None, burst_bytes: int, *, sample_s: float = 0.5) -> None:
        if rate_bytes_per_s is not None and rate_bytes_per_s <= 0:
            raise ValueError(f"a link of {rate_bytes_per_s} bytes/s: expected a positive rate, or None for no limit")
        self._rate = rate_bytes_per_s
        self._burst_s = 0.0 if rate_bytes_per_s is None else burst_bytes / rate_bytes_per_s
        self._chunk_bytes = min(max(int((rate_bytes_per_s or 0) * CHUNK_S), MIN_CHUNK_BYTES), MAX_CHUNK_BYTES)
        self.sample_s = sample_s
        self.total_bytes = 0
        self.busy_s = 0.0
        self._samples: OrderedDict[int, int] = OrderedDict()
        self._passed_s = -math.inf  # when the wire had passed everything so far
        self._waiting: list[_Transfer] = []
        self._current: tuple[_Transfer, int] | None = None  # on the wire, and its bytes
        self._arrivals = count()

    async def send(self, nbytes: int, *, lane: Lane = Lane.LOAD, need: Need = ()) -> None:
        """Returns when `nbytes` have passed. Cancelled, it takes no more of the wire than the chunk that is on it."""
        if nbytes <= 0:
            return
        loop = asyncio.get_running_loop()
        if self._rate is None:
            self._count(nbytes, time.time())
            await asyncio.sleep(0)
            return
        transfer = _Transfer(lane, need, next(self._arrivals), loop.time(), nbytes, loop.create_future())
        heapq.heappush(self._waiting, transfer)
        if self._current is None:
            self._advance(loop)
        await transfer.done

    @property
    def free(self) -> bool:
        """Whether it has no limit."""
        return self._rate is None

    @property
    def samples(self) -> Mapping[int, int]:
        """Bytes that passed in the wall-clock seconds `[i * sample_s, (i + 1) * sample_s)`, by i, in order."""
        return self._samples

    def _advance(self, loop: asyncio.AbstractEventLoop) -> None:
        """Lets pass what has passed by now, and comes back when the chunk on the wire has."""
        while True:
            if self._current is None and not self._load():
                return
            if self._passed_s > loop.time():
                loop.call_at(self._passed_s, self._advance, loop)
                return
            self._finish_chunk(loop.time())

    def _load(self) -> bool:
        assert self._rate is not None
        while self._waiting:
            transfer = heapq.heappop(self._waiting)
            if transfer.done.done():  # cancelled
                continue
            size = min(transfer.remaining_bytes, self._chunk_bytes)
            self._passed_s = max(self._passed_s, transfer.arrived_s - self._burst_s) + size / self._rate
            self._current = transfer, size
            return True
        return False

    def _finish_chunk(self, now_s: float) -> None:
        assert self._rate is not None
        assert self._current is not None
        transfer, size = self._current
        self._current = None
        self.busy_s += size / self._rate
        self._count(size, time.time() - max(0.0, now_s - max(self._passed_s, transfer.arrived_s)))
        transfer.remaining_bytes -= size
        if transfer.done.done():
            return
        if transfer.remaining_bytes:
            heapq.heappush(self._waiting, transfer)
        else:
            transfer.done.set_result(None)

    def _count(self, nbytes: int, wall_s: float) -> None:
        self.total_bytes += nbytes
        bucket = int(wall_s // self.sample_s)
        self._samples[bucket] = self._samples.get(bucket, 0) + nbytes
        if len(self._samples) > MAX_SAMPLES:
            self._samples.popitem(last=False)


@final
class NodeCards:
    """The cards of one node: a full-duplex storage card, and for each engine a full-duplex compute card.

    With `free` all limits are off (the paper's oracle); bytes are counted all the same.
    """

    def __init__(self, network: NetworkSpec, *, engines: int, free: bool = False) -> None:
        snic = None if free else network.snic_bytes_per_s
        cnic = None if free else network.cnic_bytes_per_s
        self.storage_read = Link(snic, network.burst_bytes)
        self.storage_write = Link(snic, network.burst_bytes)
        self.compute_send = tuple(Link(cnic, network.burst_bytes) for _ in range(engines))
        self.compute_receive = tuple(Link(cnic, network.burst_bytes) for _ in range(engines))
