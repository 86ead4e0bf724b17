"""What happens to running requests: tokens come, attempts end, nodes die, clients leave, deadlines pass."""

from collections.abc import Callable
from typing import final

from dualpath_configs import SchedulingSpec
from dualpath_scheduler.service import scheduler_pb2 as pb
from dualpath_scheduler.service.attempt import Attempt, Seat
from dualpath_scheduler.service.dispatch import Dispatcher
from dualpath_scheduler.service.errors import InvalidRequest
from dualpath_scheduler.service.node import Node
from dualpath_scheduler.service.registry import Death, Registry
from dualpath_scheduler.service.request import Request
from dualpath_scheduler.service.resume import remaining

ABSENCE_GRACE_S = 3.0
"""How much longer than a lease a request waits for a role of which no node lives."""


@final
class Lifecycle:
    """The requests that are not finished. Finished ones are dropped at once; their last events are the caller's."""

    def __init__(
        self, scheduling: SchedulingSpec, registry: Registry, dispatcher: Dispatcher, *, epoch_s: float
    ) -> None:
        self._scheduling = scheduling
        self._registry = registry
        self._dispatcher = dispatcher
        self._epoch_s = epoch_s
        self._requests: dict[str, Request] = {}
        self._resting: dict[Request, float] = {}
        self._submitted = 0

    def __len__(self) -> int:
        return len(self._requests)

    def reading(self) -> set[bytes]:
        """Keys of the blocks that running attempts may still have to read."""
        attempts = [request.attempt for request in self._requests.values() if request.attempt is not None]
        return {key for attempt in attempts for key in attempt.reading}

    def submit(self, message: pb.GenerateRequest, now: float, wake: Callable[[], None]) -> Request:
        """Queues a checked request. Raises InvalidRequest where its id is that of a running one."""
        self._submitted += 1
        mine = pb.GenerateRequest()
        mine.CopyFrom(message)
        mine.request_id = message.request_id or f"request-{int(self._epoch_s * 1e6):x}-{self._submitted}"
        if mine.request_id in self._requests:
            raise InvalidRequest(f"request_id {mine.request_id!r} is running already: expected an id of its own")
        request = Request(mine, order=self._submitted, arrival_s=now, wake=wake)
        self._requests[request.id] = request
        self._dispatcher.add(request)
        return request

    def progress(self, node: Node, progress: pb.Progress, now: float) -> None:
        """Takes what a node says of an attempt; of another attempt than the running one, nothing."""
        request = self._requests.get(progress.request_id)
        if request is None or request.attempt is None or request.attempt.number != progress.attempt:
            return
        attempt = request.attempt
        if _sits(attempt.prefill, node):
            request.emit(attempt.from_prefill(progress), self._epoch_s + now)
        elif _sits(attempt.decode, node):
            request.emit(attempt.from_decode(progress), self._epoch_s + now)
        else:
            return
        if progress.error:
            reason = f"node {node.info.node_id}: {progress.error}"
            rest_s = self._scheduling.lease_s
            self._attempt_failed(request, reason, now, rest_s=rest_s, fatal=progress.fatal)
        elif attempt.finished:
            self._end(request, now)

    def node_died(self, node: Node, death: Death, now: float) -> None:
        """Everything that needs the dead node starts again; `death` is known to the registry already."""
        self._dispatcher.return_queue(node)
        for request in list(self._requests.values()):
            if request.attempt is not None:
                lost_prefill = _sits(request.attempt.prefill, node) and request.attempt.needs_prefill_node
                if lost_prefill or _sits(request.attempt.decode, node):
                    self._attempt_failed(request, death.text, now, rest_s=0.0)
            elif request.prefill is not None and _sits(request.prefill, node):
                self._restart(request, request.work, now)

    def cancel(self, request: Request, reason: str, now: float) -> None:
        """The request ends; both nodes are told. One that has ended is left as it is."""
        if not request.done:
            self._tell_nodes(request, reason)
            self._end(request, now, error=reason, cancelled=True)

    def resume_rested(self, now: float) -> None:
        """Queues the requests whose rest before the last attempt is over."""
        for request in [request for request, until_s in self._resting.items() if now >= until_s]:
            del self._resting[request]
            self._dispatcher.add(request)

    def fail_overdue(self, now: float) -> None:
        """Ends what is over its deadline, and what has waited too long for a role of which no node lives."""
        deadline_s = self._scheduling.request_deadline_s
        absences = {role: self._registry.absence(role) for role in (pb.ROLE_PREFILL, pb.ROLE_DECODE)}
        for request in list(self._requests.values()):
            if now - request.arrival_s > deadline_s:
                self._fail(
                    request, f"not done within request_deadline_s = {deadline_s:g} ({_whereabouts(request)})", now
                )
            elif request.attempt is None:
                self._fail_where_absent(request, absences, now)

    def close(self, reason: str, now: float) -> None:
        """Ends everything."""
        for request in list(self._requests.values()):
            self.cancel(request, reason, now)

    def _fail_where_absent(
        self, request: Request, absences: dict[pb.Role, tuple[float, str] | None], now: float
    ) -> None:
        for absence in absences.values():
            if absence is None:
                continue
            since_s, text = absence
            waited_s = now - max(since_s, request.waiting_since_s)
            if waited_s > self._scheduling.lease_s + ABSENCE_GRACE_S:
                self._fail(request, f"{text}; waited {waited_s:.1f} s for one", now)
                return

    def _attempt_failed(self, request: Request, reason: str, now: float, *, rest_s: float, fatal: bool = False) -> None:
        """Begins the next attempt; the last one only after `rest_s`, so that a node that died is known to be dead."""
        most = self._scheduling.max_attempts
        rest = remaining(request.message, request.emitted)
        if rest is None:
            self._tell_nodes(request, "all tokens are out")
            self._end(request, now)
        elif fatal or request.attempts >= most:
            self._fail(request, f"attempt {request.attempts} of {most}: {reason}", now)
        else:
            self._tell_nodes(request, reason)
            self._restart(request, rest, now, rest_s=rest_s if request.attempts == most - 1 else 0.0)

    def _restart(self, request: Request, work: pb.GenerateRequest, now: float, *, rest_s: float = 0.0) -> None:
        self._dispatcher.remove(request)
        request.requeue(work, now)
        if rest_s:
            self._resting[request] = now + rest_s
        else:
            self._dispatcher.add(request)

    def _fail(self, request: Request, reason: str, now: float) -> None:
        self._tell_nodes(request, reason)
        self._end(request, now, error=f"request {request.id} failed: {reason}")

    def _end(self, request: Request, now: float, *, error: str = "", cancelled: bool = False) -> None:
        del self._requests[request.id]
        self._resting.pop(request, None)
        self._dispatcher.remove(request)
        arrival_wall_s = self._epoch_s + request.arrival_s
        request.end(self._epoch_s + now, arrival_wall_s=arrival_wall_s, error=error, cancelled=cancelled)

    def _tell_nodes(self, request: Request, reason: str) -> None:
        """Cancels the running attempt, if there is one, on those of its nodes that live."""
        attempt = request.attempt
        if attempt is None:
            return
        for seat in (attempt.prefill, attempt.decode):
            node = self._registry.get(seat.node_id, seat.incarnation)
            if node is not None:
                node.outbox.cancel(request.id, attempt.number, reason)
                node.wake()


def _sits(seat: Seat, node: Node) -> bool:
    return (seat.node_id, seat.incarnation) == (node.info.node_id, node.info.incarnation)


def _whereabouts(request: Request) -> str:
    attempt: Attempt | None = request.attempt
    if attempt is not None:
        return f"attempt {attempt.number} runs on {attempt.prefill.node_id} and {attempt.decode.node_id}"
    if request.prefill is not None:
        return f"waits for a decode engine, {request.prefill.node_id} is to prefill it"
    return "waits for a prefill engine"
