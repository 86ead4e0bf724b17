"""A life of a node, as the scheduler knows it: queues, promises not yet in its reports, messages not yet fetched."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import final

from dualpath_configs import SchedulingSpec
from dualpath_scheduler.policy import EngineState, NodeState
from dualpath_scheduler.service import scheduler_pb2 as pb
from dualpath_scheduler.service.attempt import Seat
from dualpath_scheduler.service.fifo import Fifo
from dualpath_scheduler.service.outbox import Outbox
from dualpath_scheduler.service.residents import Residents


@final
@dataclass
class Promise:
    """A request that an engine of the node was given; `serial` is that of its assignment, once there is one."""

    engine: int
    tokens: int
    read_tokens: int = 0
    serial: int | None = None


@final
class Poll:
    """A fetch that waits for an answer; `wake` is called when there may be one."""

    def __init__(self, node: "Node", wake: Callable[[], None]) -> None:
        self.node = node
        self.wake = wake

    @property
    def answered(self) -> bool:
        """Whether waiting any longer is of no use: there are messages, a newer poll, or the node is gone."""
        return bool(self.node.outbox) or self.node.poll is not self or self.node.gone != ""


@final
class Node:
    """One incarnation of a registered node.

    `hung_up` is set where a poll ended without an answer, as when the process is killed, and cleared by the next poll:
    such a node is likely dead, though its lease is not over.
    """

    def __init__(self, info: pb.NodeInfo, scheduling: SchedulingSpec, *, now: float, last_serial: int) -> None:
        self.info = info
        self.gone = ""
        self.heard_s = now
        self.outbox = Outbox(last_serial)
        self.queue = Fifo()
        self.promises: dict[str, Promise] = {}
        self.residents = Residents()
        self.poll: Poll | None = None
        self.hung_up = False
        self._scheduling = scheduling
        self._queues = pb.QueueReport()
        self._last_report = 0

    @property
    def fetching(self) -> bool:
        return self.poll is not None

    @property
    def read_tokens_per_s(self) -> float:
        """What its storage card lets through."""
        return self.info.snic_tokens_per_s or math.inf

    @property
    def cnic_tokens_per_s(self) -> float:
        """What the compute card of one of its engines lets through."""
        return self.info.cnic_tokens_per_s or math.inf

    def seat(self, engine: int) -> Seat:
        return Seat(self.info.node_id, self.info.incarnation, self.info.address, engine)

    def accept_queues(self, queues: pb.QueueReport) -> None:
        """Takes a report of the queues, unless it was made before the one that is known already."""
        self.outbox.acknowledge(queues.seen)
        if queues.seen >= self._queues.seen:
            self._queues = queues

    def counts(self, report_serial: int) -> bool:
        """Whether a report is new; one that is sent again after a lost reply is not."""
        if report_serial and report_serial <= self._last_report:
            return False
        self._last_report = max(report_serial, self._last_report)
        return True

    def wake(self) -> None:
        if self.poll is not None:
            self.poll.wake()

    def snapshot(self, block_tokens: int) -> NodeState:
        """What the policies see: the last report, and on top of it what was promised since it was made."""
        unseen = [p for p in self.promises.values() if p.serial is None or p.serial > self._queues.seen]
        return NodeState(
            node_id=self.info.node_id,
            read_q_tokens=self._queues.read_q_tokens + sum(promise.read_tokens for promise in unseen),
            engines=tuple(self._engine(engine, unseen) for engine in range(self.info.engines)),
            alpha_tokens=self._scheduling.alpha_s * self.read_tokens_per_s,
            beta_tokens=self._beta_tokens(),
            queued_tokens=sum(request.room_tokens(block_tokens) for request in self.queue),
        )

    def _beta_tokens(self) -> float:
        if self._scheduling.beta_tokens is not None:
            return self._scheduling.beta_tokens
        return self._scheduling.beta_s * self.info.tokens_per_s or math.inf

    def _engine(self, engine: int, unseen: list[Promise]) -> EngineState:
        if engine < len(self._queues.engines):
            reported = self._queues.engines[engine]
        else:
            reported = pb.EngineReport(free_tokens=self.info.decode_tokens)
        added = [promise.tokens for promise in unseen if promise.engine == engine]
        return EngineState(
            node=self.info.node_id,
            engine=engine,
            seq=reported.seq + len(added),
            tok=reported.tok + sum(added),
            free_tokens=max(0, reported.free_tokens - sum(added)),
        )
