"""The scheduler's state machine: synchronous, without I/O and without a clock of its own."""

from collections.abc import Callable, Sequence
from typing import final

from dualpath_configs import ClusterSpec
from dualpath_scheduler.service import scheduler_pb2 as pb
from dualpath_scheduler.service.dispatch import Dispatcher
from dualpath_scheduler.service.errors import UnknownIncarnation
from dualpath_scheduler.service.kv_layout import layout_of
from dualpath_scheduler.service.lifecycle import Lifecycle
from dualpath_scheduler.service.node import Node, Poll
from dualpath_scheduler.service.registry import Registry
from dualpath_scheduler.service.request import Request
from dualpath_scheduler.service.validation import check_request
from dualpath_storage.block_format import HEADER_BYTES
from dualpath_storage.eviction import Eviction
from dualpath_storage.index import PrefixIndex
from dualpath_storage.store import StoredBlock


def _nobody() -> None:
    """For callers that look by themselves."""


@final
class SchedulerState:
    """Nodes, requests and queues; every method is one event, after which the policies run.

    `now` is in monotonic seconds and never goes back; `epoch_s` is the wall clock (seconds since the epoch) where `now`
    is 0. `wake` callbacks are called, possibly more often than needed, when a poll or a request has news; they must
    not call back into the state.
    """

    def __init__(self, spec: ClusterSpec, index: PrefixIndex, *, now: float, epoch_s: float) -> None:
        self._spec = spec
        self._index = index
        self._epoch_s = epoch_s
        self._registry = Registry(spec, now=now, epoch_s=epoch_s)
        self._eviction = Eviction(
            index,
            block_bytes=HEADER_BYTES + layout_of(spec).block_bytes,
            now_s=epoch_s + now,
            capacity_bytes=spec.storage.capacity_bytes,
            time_to_live_s=spec.storage.time_to_live_s,
            doubt_s=spec.storage.write_deadline_s + spec.scheduling.lease_s,
        )
        self._dispatcher = Dispatcher(spec, self._registry, index, self._eviction)
        self._lifecycle = Lifecycle(spec.scheduling, self._registry, self._dispatcher, epoch_s=epoch_s)

    def register(self, info: pb.NodeInfo, now: float) -> pb.RegisterReply:
        """A node joins. What an earlier life of it held (or this one, if it registers again) starts anew elsewhere.

        Raises RegistrationRefused where it does not fit the cluster; nothing has changed then.
        """
        self._registry.check(info)
        for known in self._registry.live():
            if known.info.node_id == info.node_id:
                self._bury(known, f"registered anew as incarnation {info.incarnation}", now)
        self._registry.add(info, now)
        self._run(now)
        return pb.RegisterReply(lease_s=self._spec.scheduling.lease_s)

    def unregister(self, message: pb.UnregisterRequest, now: float) -> None:
        """A node leaves. One that is not known is fine."""
        node = self._registry.get(message.node_id, message.incarnation)
        if node is not None:
            self._bury(node, f"left: {message.reason}" if message.reason else "left", now)
            self._run(now)

    def open_poll(self, message: pb.FetchRequest, now: float, wake: Callable[[], None] = _nobody) -> Poll:
        """A leader asks for work; its group is assigned some until the poll is closed. Renews the lease.

        A newer poll of the same node answers this one with nothing. Raises UnknownIncarnation.
        """
        node = self._registry.expect(message.node_id, message.incarnation)
        node.heard_s = now
        node.outbox.acknowledge(message.received)
        if message.HasField("queues"):
            node.accept_queues(message.queues)
        node.wake()
        node.poll = Poll(node, wake)
        node.hung_up = False
        self._run(now)
        return node.poll

    def close_poll(self, poll: Poll) -> pb.FetchReply:
        """The answer to a poll, perhaps empty. Raises UnknownIncarnation where the node has died meanwhile."""
        if poll.node.gone:
            raise UnknownIncarnation(f"{poll.node.gone} while it waited for work: drop what it holds and register")
        if poll.node.poll is not poll:
            return pb.FetchReply()
        poll.node.poll = None
        return poll.node.outbox.take()

    def drop_poll(self, poll: Poll) -> None:
        """The caller of a poll has gone away; nothing new is given to its node before it polls again."""
        if poll.node.poll is poll:
            poll.node.poll = None
            poll.node.hung_up = True

    def report(self, message: pb.ReportRequest, now: float) -> None:
        """Takes a node's queues, progress and blocks. Renews the lease. Raises UnknownIncarnation."""
        node = self._registry.expect(message.node_id, message.incarnation)
        node.heard_s = now
        if node.counts(message.serial):
            self._take_blocks(node, message, now)
            for progress in message.progress:
                self._lifecycle.progress(node, progress, now)
            if message.HasField("queues"):
                node.accept_queues(message.queues)
        self._run(now)

    def _take_blocks(self, node: Node, message: pb.ReportRequest, now: float) -> None:
        for published in message.published:
            self._eviction.published(published.key, published.parent, self._epoch_s + now)
        for key in message.lost:
            self._index.discard(key)
        if message.full_writes:
            self._eviction.found_full()
        node.residents.update(message.resident_added, message.resident_dropped)

    def submit(self, message: pb.GenerateRequest, now: float, wake: Callable[[], None] = _nobody) -> Request:
        """Queues a request; its events are taken from what this returns. Raises InvalidRequest."""
        check_request(message, self._registry.limits())
        request = self._lifecycle.submit(message, now, wake)
        self._run(now)
        return request

    def cancel(self, request: Request, reason: str, now: float) -> None:
        """Ends a request and tells its nodes; one that has ended is left as it is."""
        self._lifecycle.cancel(request, reason, now)
        self._run(now)

    def tick(self, now: float) -> None:
        """Time passes: leases and deadlines end."""
        for node in self._registry.silent(now):
            lease_s = self._spec.scheduling.lease_s
            self._bury(node, f"silent for {now - node.heard_s:.1f} s, its lease is {lease_s:g} s", now)
        self._lifecycle.fail_overdue(now)
        self._lifecycle.resume_rested(now)
        self._run(now)

    def evict(self, now: float) -> list[StoredBlock]:
        """Blocks to delete from the store, children first, perhaps none; the index has forgotten them already.

        Nothing that an attempt may still have to read is among them. What became of each is said by `evicted` or
        `not_evicted`.
        """
        return self._eviction.choose(self._epoch_s + now, self._lifecycle.reading)

    def evicted(self, blocks: Sequence[StoredBlock], now: float) -> None:
        """The store has deleted them."""
        self._eviction.deleted(blocks, self._epoch_s + now)

    def not_evicted(self, blocks: Sequence[StoredBlock]) -> None:
        """The store could not delete them."""
        self._eviction.kept(blocks)

    def doubts(self) -> list[StoredBlock]:
        """Blocks of which the store must be asked whether it has them; `settle` takes those that it has."""
        return self._eviction.take_doubts()

    def settle(self, blocks: Sequence[StoredBlock]) -> None:
        """The store has these of the blocks that were in doubt."""
        self._eviction.settle(blocks)

    def close(self, reason: str, now: float) -> None:
        """Ends all requests."""
        self._lifecycle.close(reason, now)

    def describe(self) -> pb.DescribeReply:
        """Nodes that live, limits and counts."""
        nodes = [node.info for node in self._registry.live()]
        limits = self._registry.limits()
        return pb.DescribeReply(
            nodes=nodes,
            vocab_size=limits.vocab_size if nodes else 0,
            max_context_tokens=limits.max_context_tokens,
            indexed_blocks=len(self._index),
            running_requests=len(self._lifecycle),
            evicted_blocks=self._eviction.evicted_blocks,
        )

    def _bury(self, node: Node, text: str, now: float) -> None:
        death = self._registry.bury(node, text, now)
        self._lifecycle.node_died(node, death, now)

    def _run(self, now: float) -> None:
        self._dispatcher.run(self._epoch_s + now)
