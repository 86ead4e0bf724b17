"""Decode engines that step together: a clock of steps, and a heap of the clocks at which requests leave."""

import heapq
from collections import deque
from collections.abc import Iterable
from typing import final

from dualpath_scheduler.simulator.cores import Cores, Worker
from dualpath_scheduler.simulator.cost import Cost
from dualpath_scheduler.simulator.loop import Event
from dualpath_scheduler.simulator.nodes import Continuation, Request

_LONGEST_STRIDE = 256
"""Steps after which a step's time is worked out anew though nobody came or left, since contexts have grown."""


@final
class DecodeUnit(Worker):
    """Engines of one node that reach their experts together, or one engine alone.

    All of them make a step at a time, as long as the slowest needs, so a request that joins at clock c with n tokens
    to come leaves at clock c + n: no event for a step. A step's time changes where a request joins or leaves, and, in
    coarse strides, as contexts grow. A request that comes in the middle of a step joins it; where its engine has no
    slot free, it waits for one, first in first out.
    """

    def __init__(self, engines: range, slots: int, cost: Cost, cores: Cores, leave: Continuation) -> None:
        self._first = engines.start
        self._slots = slots
        self._cost = cost
        self._cores = cores
        self._leave = leave
        self._waiting: list[deque[Request]] = [deque() for _ in engines]
        self._clock = 0.0
        self._since_s = 0.0
        self._step_s = 1.0
        self._version = 0
        self._leaving: list[tuple[float, int, Request]] = []
        self._requests = [0] * len(engines)
        self._context = [0.0] * len(engines)
        self._attended = [0.0] * len(engines)
        self.decoded_tokens = 0

    def join(self, now: float, request: Request) -> Iterable[Event]:
        """The prompt's KV is there and its first token is out; the others are to come."""
        if request.generate <= 1:
            return self._leave(now, request)
        engine = request.decode_engine - self._first
        if self._requests[engine] >= self._slots:
            self._waiting[engine].append(request)
            return ()
        self._advance(now)
        events = [] if self._leaving else self._cores.enter(now, self, self._cost.decode_cores)
        self._take(request)
        events.append(self._next(now))
        return events

    def respeed(self, now: float) -> Event:
        self._advance(now)
        return self._next(now)

    def _take(self, request: Request) -> None:
        self._count(request, self._clock, 1)
        heapq.heappush(self._leaving, (self._clock + request.generate - 1, request.index, request))

    def _count(self, request: Request, joined: float, sign: int) -> None:
        """A request adds its prompt, less the clock at which it came: with the clock added it grows by itself."""
        engine = request.decode_engine - self._first
        self._requests[engine] += sign
        self._context[engine] += sign * (request.prompt - joined)
        self._attended[engine] += sign * self._cost.attended(request.prompt + 0.5 * request.generate)

    def _advance(self, now: float) -> None:
        if self._leaving:
            self._clock += (now - self._since_s) / self._step_s
        self._since_s = now

    def _next(self, now: float) -> Event:
        """The next time at which somebody leaves or the step's time is looked at again."""
        clock, engines = self._clock, zip(self._requests, self._context, self._attended, strict=True)
        self._step_s = self._cost.step_s(engines, clock) * self._cores.slowdown
        self._version += 1
        until = min(self._leaving[0][0], clock + _LONGEST_STRIDE)
        return now + (until - clock) * self._step_s, self._reached, (self._version, until)

    def _reached(self, now: float, what: tuple[int, float]) -> Iterable[Event]:
        version, clock = what
        if version != self._version:
            return ()
        self._clock, self._since_s = clock, now
        ended: list[Request] = []
        leaving = self._leaving
        while leaving and leaving[0][0] <= clock:
            left_at, _, request = heapq.heappop(leaving)
            self._count(request, left_at - (request.generate - 1), -1)
            self.decoded_tokens += request.generate - 1
            waiting = self._waiting[request.decode_engine - self._first]
            if waiting:
                self._take(waiting.popleft())
            ended.append(request)
        events = [] if leaving else self._cores.leave(now, self)
        for request in ended:
            events.extend(self._leave(now, request))
        # Who left may have made room for others that joined at once, which has set the next event.
        if leaving and version == self._version:
            events.append(self._next(now))
        return events
