"""One simulated run: the life of its requests, from event to event."""

import math
from collections.abc import Callable, Iterable
from typing import final

import numpy as np

from dualpath_configs import SimulatedSpec
from dualpath_scheduler.simulator.accounting import check_conservation
from dualpath_scheduler.simulator.cores import Cores
from dualpath_scheduler.simulator.cost import Cost, Roofline
from dualpath_scheduler.simulator.decode import DecodeUnit
from dualpath_scheduler.simulator.dispatch import Dispatcher
from dualpath_scheduler.simulator.log import RequestLog
from dualpath_scheduler.simulator.loop import Event, run_events
from dualpath_scheduler.simulator.measured_cost import MeasuredCost
from dualpath_scheduler.simulator.nodes import Node, Request, Speeds
from dualpath_scheduler.simulator.prefill import Chunk, PrefillUnit, prefill_limits, read_parts
from dualpath_scheduler.simulator.storing import StoredBlocks
from dualpath_scheduler.simulator.traffic import Traffic
from dualpath_scheduler.simulator.workload import Workload
from dualpath_scheduler.workload import TraceError

_PROGRESS_REQUESTS = 1000


@final
class Simulation:
    """A cluster and what it replays. `run` once; then `log`, `traffic` and the nodes say what happened."""

    def __init__(self, spec: SimulatedSpec, workload: Workload) -> None:
        self.spec, self.workload = spec, workload
        self.log = RequestLog(workload.requests)
        self.traffic = Traffic(spec.model.kv_bytes_per_token, spec.calibration.read_bytes_per_s, read_parts(spec))
        self._prompts = workload.prompt_tokens()
        self._hits = workload.hit_tokens(spec.block_tokens)
        self._check_sizes()
        cost, cores = computing(spec)
        speeds = self._prefill_speeds(cost)
        self.prefill = [
            Node(f"prefill-{index:03d}", spec, decode_tokens=0, speeds=speeds) for index in range(spec.prefill_nodes)
        ]
        self.decode = [
            Node(f"decode-{index:03d}", spec, decode_tokens=spec.decode_tokens, speeds=speeds)
            for index in range(spec.decode_nodes)
        ]
        for engines in _lockstep(spec):
            for node in self.prefill:
                node.prefill_units.append(
                    PrefillUnit(engines, spec, cost, cores, traffic=self.traffic, ended=self._prefilled)
                )
            for node in self.decode:
                node.decode_units.append(DecodeUnit(engines, spec.decode_slots, cost, cores, self._leave))
        write_bytes_per_s = self.decode[0].snic_write.rate
        self._stored = StoredBlocks(
            workload.sessions,
            block_tokens=spec.block_tokens,
            block_s=spec.block_tokens * spec.model.kv_bytes_per_token / write_bytes_per_s,
        )
        self._dispatcher = Dispatcher(spec, self.prefill, self.decode, self._stored_tokens)
        self._next_turn = workload.first[:-1].copy()
        self._views = [array.data for array in (self._prompts, self._hits, workload.generate_tokens)]
        self._number = {node: index for nodes in (self.prefill, self.decode) for index, node in enumerate(nodes)}
        self._freed: dict[Node, None] = {}
        self._round_is_due, self._last_round_s = False, -math.inf
        self._ended = 0
        self._progress: Callable[[int], object] = lambda requests: None

    def run(self, progress: Callable[[int], object] = lambda requests: None) -> None:
        """Replays the workload to its end; `progress` hears now and then how many more requests have ended.

        Raises ConservationError where something was lost on the way.
        """
        self._progress = progress
        arrivals = self.workload.arrival_s
        run_events([(float(arrivals[s]), self._arrive, s) for s in range(self.workload.sessions)])
        check_conservation(self)

    @property
    def completion_s(self) -> float:
        """When the last request ended."""
        return float(np.max(self.log.times["end_s"]))

    def _check_sizes(self) -> None:
        """Raises TraceError for a turn that no engine could ever take."""
        for what, tokens, most in (
            ("prompt and generation", self._prompts + self.workload.generate_tokens, self.spec.decode_tokens),
            ("prompt", self._prompts, prefill_limits(self.spec).prefix_tokens),
        ):
            if tokens.max() > most:
                raise TraceError(
                    f"{self.workload.name}: a turn has {tokens.max()} tokens of {what}: expected at most {most}, "
                    "what the memory of an engine holds"
                )

    def _prefill_speeds(self, cost: Cost) -> Speeds:
        """Of the workload's mean request, and of batches that compute what it would have loaded (β is profiled so)."""
        prompt, hit = float(np.mean(self._prompts)), float(np.mean(self._hits))
        new = min(max(1, int(prompt - hit)), self.spec.batch_tokens)
        seconds = cost.batch_s([cost.attention_s(int(hit), new)], [new])
        anew = min(max(1, int(hit)), self.spec.batch_tokens)
        anew_s = cost.batch_s([cost.attention_s(int(hit) // 2, anew)], [anew])
        return Speeds(prompt / seconds, anew / anew_s)

    def _arrive(self, now: float, session: int) -> Iterable[Event]:
        index = int(self._next_turn[session])
        self._next_turn[session] += 1
        prompts, hits, generates = self._views
        block_tokens = self.spec.block_tokens
        prompt, generate, hit = prompts[index], generates[index], hits[index]
        room = -(-(prompt + generate) // block_tokens) * block_tokens
        self.log.arrival_s[index] = now
        self._dispatcher.add(Request(index, session, prompt, generate, hit, room))
        return self._dispatch(now)

    def _dispatch(self, now: float) -> list[Event]:
        """The next round of the scheduler, in which it looks at all that has changed since the one before."""
        if self._round_is_due or self._dispatcher.is_idle:
            return []
        self._round_is_due = True
        return [(max(now, self._last_round_s + self.spec.calibration.round_s), self._round, None)]

    def _round(self, now: float, _: None) -> list[Event]:
        self._round_is_due, self._last_round_s = False, now
        freed, self._freed = self._freed, {}
        events: list[Event] = []
        log = self.log
        for request in self._dispatcher.run(now, freed):
            index = request.index
            log.assigned_s[index] = now
            log.hit_tokens[index] = request.hit
            log.prefill_side_tokens[index] = request.prefill_side
            log.prefill_tier_tokens[index] = request.prefill_resident
            log.decode_tier_tokens[index] = request.decode_resident
            log.prefill_node[index] = self._number[request.prefill]
            log.prefill_engine[index] = request.prefill_engine
            log.decode_node[index] = self._number[request.decode]
            log.decode_engine[index] = request.decode_engine
            events.extend(self._begin(now, request))
        return events

    def _begin(self, now: float, request: Request) -> Iterable[Event]:
        if self.spec.mode.free_transfers:
            return self._has_buffers(now, request)
        return request.decode.buffer.take(now, request.prompt, self._has_decode_buffer, request)

    def _has_decode_buffer(self, now: float, request: Request) -> Iterable[Event]:
        return request.prefill.buffer.take(now, request.prefill_side, self._has_buffers, request)

    def _has_buffers(self, now: float, request: Request) -> Iterable[Event]:
        request.prefill.read_waiting_tokens -= request.prefill_side - request.prefill_resident
        request.decode.read_waiting_tokens -= request.decode_side - request.decode_resident
        self.log.read_start_s[request.index] = now
        unit = self._unit(request)
        if self.spec.mode.free_transfers:
            self.log.read_end_s[request.index] = now
            return unit.add(now, request)
        first_s, request.read_end_s = self.traffic.read(now, request)
        self.log.read_end_s[request.index] = request.read_end_s
        return ((unit.joins_s(request, first_s), unit.add, request),)

    def _unit(self, request: Request) -> PrefillUnit:
        units = request.prefill.prefill_units
        return units[request.prefill_engine % len(units)]

    def _prefilled(self, now: float, finished: list[Chunk]) -> Iterable[Event]:
        events: list[Event] = []
        free = self.spec.mode.free_transfers
        for chunk in finished:
            request = chunk.request
            self.log.prefill_start_s[request.index] = request.prefill_start_s
            self.log.first_token_s[request.index] = now
            self._dispatcher.prefilled(request)
            if free:
                events.extend(self._join(now, request))
            else:
                events.append((max(now, chunk.sent_s), self._insert, request))
        events.extend(self._dispatch(now))
        return events

    def _insert(self, now: float, request: Request) -> Iterable[Event]:
        """All of the prompt's KV is on the decode node."""
        self._persist(now, request, request.hit, request.prompt)
        events = request.prefill.buffer.give(now, request.prefill_side)
        events.append((self.traffic.insert(now, request), self._inserted, request))
        return events

    def _inserted(self, now: float, request: Request) -> Iterable[Event]:
        events = request.decode.buffer.give(now, request.prompt)
        events.extend(self._join(now, request))
        return events

    def _join(self, now: float, request: Request) -> Iterable[Event]:
        units = request.decode.decode_units
        return units[request.decode_engine % len(units)].join(now, request)

    def _persist(self, now: float, request: Request, first: int, last: int) -> None:
        """Blocks that tokens `[first, last)` of a sequence complete go to storage."""
        block_tokens = self.spec.block_tokens
        whole = last // block_tokens * block_tokens
        new = whole - first // block_tokens * block_tokens
        if new:
            self._stored.write(request.session, whole, new, self.traffic.persist(now, request, new))

    def _stored_tokens(self, now: float, request: Request) -> int:
        if self.spec.mode.free_transfers:
            return request.hit
        return min(request.hit, self._stored.tokens(now, request.session))

    def _leave(self, now: float, request: Request) -> Iterable[Event]:
        self.log.end_s[request.index] = now
        self._ended += 1
        if self._ended % _PROGRESS_REQUESTS == 0:
            self._progress(_PROGRESS_REQUESTS)
        self._dispatcher.left(request)
        self._freed.setdefault(request.decode)
        if not self.spec.mode.free_transfers:
            block_tokens = self.spec.block_tokens
            last = request.prompt + request.generate
            self.traffic.export(now, request, request.generate)
            self._persist(now, request, request.prompt, last)
            request.decode.tier.use(request.session, request.hit // block_tokens, last // block_tokens)
        events = self._dispatch(now)
        following = request.index + 1
        if following < self.workload.first[request.session + 1]:
            pause_s = float(self.workload.delay_s[following]) + self.spec.calibration.turn_s
            events.append((now + pause_s, self._arrive, request.session))
        return events


def computing(spec: SimulatedSpec) -> tuple[Cost, Cores]:
    """What engines take, and the cores on which they do: as measured, or by the roofline with cores of their own."""
    if spec.measured is None:
        return Roofline(spec), Cores(None)
    engines = len(_lockstep(spec)[0])
    return MeasuredCost(spec.measured, engines), Cores(spec.measured.shared_cores)


def _lockstep(spec: SimulatedSpec) -> list[range]:
    """The engines of a node in sets that step together."""
    engines = spec.engines_per_node
    return [range(engines)] if spec.model.experts_are_shared else [range(e, e + 1) for e in range(engines)]
