"""The transport contract: batched one-sided writes into a peer's registered regions, on a lane, with deadlines."""

import abc
import enum
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass


class Lane(enum.IntEnum):
    """Priority classes on the compute network, the most urgent first (paper, traffic)."""

    MODEL = 0  # the model's collectives
    LOAD = 1  # KV that a prefill waits for
    STORE = 2  # KV on its way to storage


@dataclass(frozen=True)
class RegionHandle:
    """Names one registration of a region; a later registration of the same memory has another generation."""

    region_id: int
    generation: int
    size_bytes: int


@dataclass(frozen=True)
class RegionWrite:
    """Copy `source` to `[offset_bytes, offset_bytes + len(source))` of a peer's region; stays in one segment.

    `source` must not change until the write's completion.
    """

    source: memoryview
    region: RegionHandle
    offset_bytes: int


class Failure(enum.Enum):
    """Why a transfer ended without success."""

    REFUSED = "refused"  # the region is gone, of another generation, or too small
    PEER_LOST = "peer lost"
    TIMED_OUT = "timed out"
    CLOSED = "closed"  # this side is shutting down
    NOT_OFFERED = "not possible"  # the peer has another transport


class TransferError(Exception):
    """A batch that did not arrive whole.

    Any part of it may have been written, or may yet be until its region is deregistered: memory of a failed write is
    used again only under another registration.
    """

    def __init__(self, failure: Failure, peer: str, detail: str) -> None:
        super().__init__(f"transfer to {peer} {failure.value}: {detail}")
        self.failure = failure
        self.peer = peer


InboundGate = Callable[[int, Lane, int], Awaitable[None]]
"""`await gate(engine, lane, nbytes)`: holds inbound bytes back until the receiving card would have taken them."""


class Transport(abc.ABC):
    """One endpoint. Methods are called from one event loop."""

    @property
    @abc.abstractmethod
    def address(self) -> str:
        """`host:port` that peers pass to `write`; valid once `start` has returned."""

    @abc.abstractmethod
    def set_gate(self, gate: InboundGate) -> None:
        """What holds inbound bytes back; to be set before the first write arrives, since what offers it is made of a
        transport. Without one, nothing does."""

    @abc.abstractmethod
    async def start(self) -> None:
        """Begin to accept writes."""

    @abc.abstractmethod
    async def close(self) -> None:
        """Refuse everything from now on, fail what is running with CLOSED, free the port. Safe to call twice."""

    @abc.abstractmethod
    def register(self, segments: Sequence[memoryview], *, engine: int = 0) -> RegionHandle:
        """Let peers write to `segments` (writable, all of one length, laid end to end as one region).

        `engine` is whose compute card inbound bytes pass. The memory stays the caller's and must live until
        `deregister` has returned.
        """

    @abc.abstractmethod
    async def deregister(self, handle: RegionHandle) -> None:
        """Refuse writes to this registration from now on; returns when none that began earlier touches the memory.

        Unknown and already deregistered handles are fine.
        """

    @abc.abstractmethod
    async def write(self, peer: str, batch: Sequence[RegionWrite], *, lane: Lane, deadline_s: float) -> None:
        """Write a batch with one submission; returns when all of it lies in the peer's memory.

        Raises TransferError, by the deadline at the latest. After a failure (and after cancellation) no source is
        read any more. An empty batch is always fine.
        """
