"""Nodes of a simulated cluster, and the requests that they work on."""

from array import array
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, final

from dualpath_configs import SimulatedSpec
from dualpath_scheduler.policy import ComputeState, EngineState, NodeState, WaitingRequest
from dualpath_scheduler.simulator.links import Link
from dualpath_scheduler.simulator.loop import Event
from dualpath_scheduler.simulator.tier import Tier

if TYPE_CHECKING:
    from dualpath_scheduler.simulator.decode import DecodeUnit
    from dualpath_scheduler.simulator.prefill import PrefillUnit


@final
@dataclass(slots=True, eq=False)
class Request:
    """A turn under way. Tokens of the prompt, of its stored prefix, and of the whole blocks that it takes in decode.

    Of what each side is to read by the plan, the resident tokens lie in its DRAM tier.
    """

    index: int
    session: int
    prompt: int
    generate: int
    hit: int
    room: int
    prefill: "Node" = field(init=False)
    prefill_engine: int = field(init=False)
    decode: "Node" = field(init=False)
    decode_engine: int = field(init=False)
    prefill_side: int = 0
    decode_side: int = 0
    prefill_resident: int = 0
    decode_resident: int = 0
    computed: int = 0
    prefill_start_s: float = 0.0
    read_end_s: float = 0.0

    _for_decode: WaitingRequest | None = None

    @property
    def for_prefill(self) -> WaitingRequest:
        """What the policies see of it while it waits for a prefill engine."""
        return WaitingRequest(str(self.index), self.prompt, self.hit, self.index)

    @property
    def for_decode(self) -> WaitingRequest:
        """The same for a decode engine; made once, since a queue may be looked at many times."""
        if self._for_decode is None:
            self._for_decode = WaitingRequest(str(self.index), self.room, self.hit, self.index)
        return self._for_decode


@final
@dataclass(frozen=True)
class Speeds:
    """Tokens that an engine prefills in a second, cached ones counted, and tokens that it computes anew."""

    tokens_per_s: float
    new_tokens_per_s: float


Continuation = Callable[[float, Request], Iterable[Event]]


@final
class Buffer:
    """Room in a node's DRAM, in tokens. Who finds none waits, first in first out, and goes on when there is enough."""

    def __init__(self, tokens: int) -> None:
        self.capacity = self.free = tokens
        self._waiting: deque[tuple[int, Continuation, Request]] = deque()

    def take(self, now: float, tokens: int, then: Continuation, request: Request) -> Iterable[Event]:
        """Goes on with `then` once there is room; what exceeds the whole buffer takes all of it."""
        tokens = min(tokens, self.capacity)
        if self._waiting or tokens > self.free:
            self._waiting.append((tokens, then, request))
            return ()
        self.free -= tokens
        return then(now, request)

    def give(self, now: float, tokens: int) -> list[Event]:
        """Frees what was taken, for those who wait."""
        self.free += min(tokens, self.capacity)
        events: list[Event] = []
        while self._waiting and self._waiting[0][0] <= self.free:
            needed, then, request = self._waiting.popleft()
            self.free -= needed
            events.extend(then(now, request))
        return events


@final
class Node:
    """A node of either role: its cards, its memory, its buffer, and what each engine has been given.

    `memory` is what storage leaves of the DRAM's bandwidth. `read_waiting_tokens` are planned reads that wait for a
    buffer; `snic` holds those under way.
    """

    def __init__(self, node_id: str, spec: SimulatedSpec, *, decode_tokens: int, speeds: Speeds) -> None:
        hardware, fitted = spec.hardware, spec.calibration
        engines, cnic = spec.engines_per_node, hardware.cnic_bytes_per_s * fitted.cnic_efficiency
        self.node_id = node_id
        self.snic = Link(hardware.snic_bytes_per_s * fitted.snic_efficiency)
        self.snic_write = Link(hardware.snic_bytes_per_s * fitted.snic_efficiency)
        self.memory = Link(hardware.memory_bytes_per_s - hardware.snic_bytes_per_s)
        self.cnic_read = [Link(cnic) for _ in range(engines)]
        self.cnic_write = [Link(cnic) for _ in range(engines)]
        self.buffer = Buffer(spec.buffer_tokens)
        self.tier = Tier(spec.dram_tier_blocks, keeps_end=decode_tokens > 0)
        self.tier_read_bytes = 0
        self.read_waiting_tokens = 0
        self.read_end_s, self.read_bytes = array("d"), array("q")
        self.queue: deque[Request] = deque()
        self.queued_tokens = 0
        self.prefill_units: list[PrefillUnit] = []
        self.decode_units: list[DecodeUnit] = []
        self._token_bytes = spec.model.kv_bytes_per_token
        self.read_tokens_per_s = self.snic.rate / self._token_bytes
        self._alpha_tokens = spec.scheduling.alpha_s * self.read_tokens_per_s
        self._beta_tokens = float(spec.scheduling.beta_tokens or spec.scheduling.beta_s * speeds.tokens_per_s)
        self._speeds = speeds
        self._reported: NodeState | None = None
        self._engines = [EngineState(node_id, engine, 0, 0, decode_tokens) for engine in range(engines)]

    def change(self, engine: int, seq: int, tok: int, room: int = 0) -> None:
        """An engine has so many requests and tokens more, and so much room less."""
        was = self._engines[engine]
        self._engines[engine] = EngineState(was.node, engine, was.seq + seq, was.tok + tok, was.free_tokens - room)
        self._reported = None

    def compute_state(self, request: Request) -> ComputeState:
        """What the prefill engine of a request, which counts there already, has to do before it."""
        others = self._engines[request.prefill_engine].tok - request.prompt
        return ComputeState(others / self._speeds.tokens_per_s, self._speeds.new_tokens_per_s)

    @property
    def takes_prefill(self) -> bool:
        """Whether an engine is not overloaded (Algorithm 1)."""
        beta = self._beta_tokens
        return any(engine.tok <= beta for engine in self._engines)

    @property
    def is_idle(self) -> bool:
        return not self.queue and all(engine.seq == engine.tok == 0 for engine in self._engines)

    def read(self, now: float, count_bytes: int) -> float:
        """Reads from storage; returns when that is through."""
        end_s = self.snic.send(now, count_bytes)
        self.read_end_s.append(end_s)
        self.read_bytes.append(count_bytes)
        return end_s

    def read_q_tokens(self, now: float) -> int:
        return self.read_waiting_tokens + int(self.snic.waiting_bytes(now) / self._token_bytes)

    def snapshot(self, now: float) -> NodeState:
        """What the policies see, as a group's fetch reports it; the same object while nothing has changed."""
        read_q_tokens = self.read_q_tokens(now)
        if self._reported is not None:
            self._reported = self._reported.reading(read_q_tokens)
            return self._reported
        self._reported = NodeState(
            node_id=self.node_id,
            read_q_tokens=read_q_tokens,
            engines=tuple(self._engines),
            alpha_tokens=self._alpha_tokens,
            beta_tokens=self._beta_tokens,
            queued_tokens=self.queued_tokens,
        )
        return self._reported

    def last_snapshot(self, now: float) -> NodeState:
        """What the group reported last: a new snapshot where its engines or its queue have changed since."""
        return self._reported or self.snapshot(now)

    def enqueue(self, request: Request) -> None:
        """Phase 1 gave the request to this decode group."""
        self.queue.append(request)
        self.queued_tokens += request.room
        self._reported = None

    def dequeue(self) -> Request:
        """Phase 2 found an engine for the head of the queue."""
        request = self.queue.popleft()
        self.queued_tokens -= request.room
        self._reported = None
        return request
