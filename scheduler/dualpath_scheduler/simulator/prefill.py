"""Prefill engines that step together: a batch at a time, as long as its slowest part takes."""

import math
from array import array
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import final

from dualpath_configs import SimulatedSpec
from dualpath_scheduler.policy import PrefillLimits, pack_prefill
from dualpath_scheduler.simulator.cost import Cost
from dualpath_scheduler.simulator.loop import Event
from dualpath_scheduler.simulator.nodes import Request
from dualpath_scheduler.simulator.traffic import Traffic

_PREFIX_LAYERS = 2
"""Layers of the prefixes that layerwise prefill has in device memory: one is computed on, one is on its way."""


@final
@dataclass(slots=True)
class Chunk:
    """A request in a batch: `tokens` of it are computed there; its KV is on the decode node at `sent_s`."""

    request: Request
    tokens: int
    sent_s: float = 0.0


Ended = Callable[[float, list[Chunk]], Iterable[Event]]


def read_parts(spec: SimulatedSpec) -> int:
    """How many parts a request's stored KV is read in: whole, or as many as layerwise prefill has layer groups."""
    if spec.scheduling.read_order == "blocks" or not spec.mode.layerwise:
        return 1
    return -(-spec.model.layers // spec.scheduling.layers_per_group)


def prefill_limits(spec: SimulatedSpec) -> PrefillLimits:
    """What one engine takes in one batch: the quota, where there is scheduling, and what device memory holds."""
    quota_s = spec.scheduling.compute_quota_s if spec.mode.scheduling else math.inf
    layers = spec.model.layers / _PREFIX_LAYERS if spec.mode.layerwise else 1.0
    prefix_tokens = int(spec.prefill_kv_bytes * layers / spec.model.kv_bytes_per_token)
    return PrefillLimits(quota_s, spec.batch_tokens, prefix_tokens, spec.block_tokens)


@final
class PrefillUnit:
    """Engines of one node that reach their experts together, or one engine alone.

    A batch holds, of each engine, what `pack_prefill` lets into the compute quota. Layerwise, the KV of the next layer
    moves while one is computed: the batch takes as long as the longer of the two, and its first layer's load comes on
    top. Otherwise everything is loaded first. What is read in parts may still be read: the last part is computed when
    the last read has ended.
    """

    def __init__(self, engines: range, spec: SimulatedSpec, cost: Cost, traffic: Traffic, ended: Ended) -> None:
        self._first = engines.start
        self._cost = cost
        self._limits = prefill_limits(spec)
        self._traffic = None if spec.mode.free_transfers else traffic
        self._layerwise = spec.mode.layerwise
        self._layers = spec.model.layers
        self._parts = read_parts(spec)
        self._ended = ended
        self._ready: list[deque[Request]] = [deque() for _ in engines]
        self._busy = False
        self.computed_tokens = self.reloaded_tokens = 0
        self.engines = len(engines)
        self.busy_s = 0.0
        self.attention_s = array("d")
        self.slowest_attention_s = array("d")
        self.batch_start_s = array("d")

    def add(self, now: float, request: Request) -> Iterable[Event]:
        """The request's turn comes when those before it on its engine have been computed."""
        self._ready[request.prefill_engine - self._first].append(request)
        return () if self._busy else self._start(now)

    def _start(self, now: float) -> Iterable[Event]:
        chunks, attention_s, tokens = self._pack(now)
        self._busy = bool(chunks)
        if not chunks:
            return ()
        slowest_s = max(attention_s)
        self.batch_start_s.append(now)
        self.attention_s.append(sum(attention_s))
        self.slowest_attention_s.append(slowest_s)
        compute_s = self._cost.batch_s(slowest_s, tokens / len(self._ready))
        loaded = now if self._traffic is None else max([self._traffic.load(now, chunk.request) for chunk in chunks])
        if self._layerwise:
            self._send_back(now, chunks)
            read = max([chunk.request.read_end_s for chunk in chunks])
            end = max(now + compute_s, loaded, read + compute_s / self._parts) + (loaded - now) / self._layers
        else:
            end = max(loaded, now + self._copying_s(chunks)) + compute_s
        self.busy_s += compute_s
        return ((end, self._end, chunks),)

    def joins_s(self, request: Request, first_s: float) -> float:
        """When a request may join a batch whose KV comes from `first_s` on: not so early that the batch has to wait."""
        new = min(request.prompt - request.computed, self._limits.new_tokens)
        compute_s = self._cost.batch_s(self._cost.attention_s(request.computed, new), new)
        return max(first_s, request.read_end_s - compute_s * (1 - 1 / self._parts))

    def _copying_s(self, chunks: list[Chunk]) -> float:
        """What the copies of the engine with the most of them cost, whatever their bytes."""
        tokens = [0] * len(self._ready)
        for chunk in chunks:
            tokens[chunk.request.prefill_engine - self._first] += chunk.request.computed
        return self._cost.copying_s(max(tokens))

    def _pack(self, now: float) -> tuple[list[Chunk], list[float], int]:
        """The next batch, the attention time of each engine, and the batch's tokens."""
        chunks: list[Chunk] = []
        attention_s, tokens = [0.0] * len(self._ready), 0
        seconds = self._cost.attention_s
        for at, ready in enumerate(self._ready):
            if not ready:
                continue
            sizes = pack_prefill(((r.computed, r.prompt - r.computed) for r in ready), seconds, self._limits)
            for request, size in zip(ready, sizes, strict=False):
                chunks.append(Chunk(request, size))
                if request.computed == request.hit:
                    request.prefill_start_s = now
                else:
                    self.reloaded_tokens += request.computed
                attention_s[at] += seconds(request.computed, size)
                tokens += size
        return chunks, attention_s, tokens

    def _send_back(self, now: float, chunks: list[Chunk]) -> None:
        if self._traffic is None:
            return
        for chunk in chunks:
            request = chunk.request
            first = request.computed == request.hit
            tokens = chunk.tokens + (request.prefill_side if first else 0)
            chunk.sent_s = self._traffic.send_back(now, request, tokens)

    def _end(self, now: float, chunks: list[Chunk]) -> Iterable[Event]:
        if not self._layerwise:
            self._send_back(now, chunks)
        finished = []
        for chunk in chunks:
            request = chunk.request
            request.computed += chunk.tokens
            self.computed_tokens += chunk.tokens
            if request.computed == request.prompt:
                self._ready[request.prefill_engine - self._first].popleft()
                finished.append(chunk)
        events = list(self._ended(now, finished))
        events.extend(self._start(now))
        return events
