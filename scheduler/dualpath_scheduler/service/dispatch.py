"""Runs the policies: from the queues to engines, and from two engines to a read plan and two assignments."""

from collections.abc import Iterable, Iterator, Sequence
from typing import final

from dualpath_configs import ClusterSpec
from dualpath_scheduler import policy
from dualpath_scheduler.policy import Placement, WaitingRequest
from dualpath_scheduler.service import scheduler_pb2 as pb
from dualpath_scheduler.service.attempt import Attempt, Seat
from dualpath_scheduler.service.fifo import Fifo
from dualpath_scheduler.service.node import Node, Promise
from dualpath_scheduler.service.planner import Planner
from dualpath_scheduler.service.registry import Registry
from dualpath_scheduler.service.request import Request
from dualpath_storage.eviction import Eviction
from dualpath_storage.index import PrefixIndex


@final
class Dispatcher:
    """The queues. A request waits for a prefill engine, then for a decode engine, and then it is assigned to both.

    With `scheduling` on, a prefill group gets work when it fetches, and so does a decode group from its own queue, to
    which phase 1 has drained the global one. With it off, requests are dealt to all reachable engines in turn.
    """

    def __init__(self, spec: ClusterSpec, registry: Registry, index: PrefixIndex, eviction: Eviction) -> None:
        self._spec = spec
        self._registry = registry
        self._index = index
        self._eviction = eviction
        self._planner = Planner(spec)
        self._requests: dict[str, Request] = {}
        self._for_prefill = Fifo()
        self._for_decode = Fifo()
        self._turns = {pb.ROLE_PREFILL: 0, pb.ROLE_DECODE: 0}

    def add(self, request: Request) -> None:
        """A request waits for a prefill engine from now on."""
        self._requests[request.id] = request
        self._for_prefill.add(request)

    def remove(self, request: Request) -> None:
        """The request leaves the queues and gives back what it was promised, wherever it stands."""
        self._requests.pop(request.id, None)
        self._for_prefill.discard(request)
        self._for_decode.discard(request)
        for node in self._registry.live():
            node.queue.discard(request)
            node.promises.pop(request.id, None)

    def return_queue(self, node: Node) -> None:
        """What phase 1 gave to a decode group that is gone goes back to the global queue."""
        for request in node.queue.clear():
            self._for_decode.add(request)

    def run(self, wall_s: float) -> None:
        """Places what the policies let through, and assigns it."""
        if self._registry.identity() is None:
            return
        if self._spec.mode.scheduling:
            self._place_by_policy(wall_s)
        else:
            self._place_in_turn(wall_s)

    def _place_by_policy(self, wall_s: float) -> None:
        if self._for_prefill:
            groups = [node for node in self._registry.reachable(pb.ROLE_PREFILL) if node.fetching]
            self._take_prefill(policy.assign_prefill(self._prompts(), self._snapshots(groups)))
        groups = self._registry.reachable(pb.ROLE_DECODE)
        fetching = [node for node in groups if node.fetching]
        if self._for_decode and fetching:
            self._drain(groups)
        for node in fetching:
            if node.queue:
                (snapshot,) = self._snapshots([node])
                self._take_decode(policy.assign_decode(self._rooms(node.queue), snapshot), wall_s)

    def _drain(self, groups: list[Node]) -> None:
        """Phase 1: from the global queue to the groups' own."""
        by_id = {node.info.node_id: node for node in groups}
        waiting, snapshots = self._rooms(self._for_decode), self._snapshots(groups)
        worth = self._spec.scheduling.decode_affinity
        if worth:
            drained = policy.drain_with_affinity(waiting, snapshots, self._held(groups), worth=worth)
        else:
            drained = policy.drain_to_groups(waiting, snapshots)
        for request_id, node_id in drained:
            request = self._requests[request_id]
            self._for_decode.discard(request)
            by_id[node_id].queue.add(request)

    def _held(self, groups: list[Node]) -> policy.Held:
        """What decode groups hold of the requests that wait, counted as a read plan counts it: from the end."""
        holding = [node for node in groups if node.residents]
        hits = {request.id: self._hit(request)[::-1] for request in self._for_decode} if holding else {}
        return {
            request_id: {node.info.node_id: node.residents.leading(keys) * self._spec.block_tokens for node in holding}
            for request_id, keys in hits.items()
        }

    def _place_in_turn(self, wall_s: float) -> None:
        if self._for_prefill:
            self._take_prefill(self._deal(pb.ROLE_PREFILL, self._prompts()))
        if self._for_decode:
            self._take_decode(self._deal(pb.ROLE_DECODE, self._rooms(self._for_decode)), wall_s)

    def _deal(self, role: pb.Role, waiting: Iterable[WaitingRequest]) -> list[Placement]:
        nodes = self._snapshots(self._registry.reachable(role))
        needs_room = role == pb.ROLE_DECODE
        placements, self._turns[role] = policy.assign_in_turn(waiting, nodes, self._turns[role], needs_room=needs_room)
        return placements

    def _take_prefill(self, placements: list[Placement]) -> None:
        for placement in placements:
            request, node = self._requests[placement.request_id], self._node(placement)
            self._for_prefill.discard(request)
            node.promises[request.id] = Promise(placement.engine, request.prompt_tokens)
            request.prefill = node.seat(placement.engine)
            self._for_decode.add(request)

    def _take_decode(self, placements: list[Placement], wall_s: float) -> None:
        for placement in placements:
            request, node = self._requests[placement.request_id], self._node(placement)
            self._for_decode.discard(request)
            node.queue.discard(request)
            node.promises[request.id] = Promise(placement.engine, request.room_tokens(self._spec.block_tokens))
            self._assign(request, node.seat(placement.engine), wall_s)

    def _assign(self, request: Request, decode: Seat, wall_s: float) -> None:
        """Both engines are known: fixes the read plan and puts the assignment into both outboxes."""
        assert request.prefill is not None
        prefill_node = self._registry.expect(request.prefill.node_id, request.prefill.incarnation)
        decode_node = self._registry.expect(decode.node_id, decode.incarnation)
        hit, engine = self._hit(request), request.prefill.engine
        plan = self._planner.plan(hit, prefill_node, decode_node, engine=engine, prompt_tokens=request.prompt_tokens)
        split = plan.prefill_side_blocks
        hit = hit[: split + plan.decode_side_blocks]
        self._eviction.used(hit, wall_s)
        attempt = Attempt(request.attempts + 1, plan=plan, prefill=request.prefill, decode=decode, hit_keys=hit)
        request.begin(attempt, wall_s)
        text = self._text(request, attempt)
        for node, share in ((prefill_node, hit[:split]), (decode_node, hit[split:])):
            mine = pb.Assignment()
            mine.CopyFrom(text)
            promise = node.promises[request.id]
            promise.serial = node.outbox.assign(mine)
            promise.read_tokens = node.residents.absent(share) * self._spec.block_tokens
            node.wake()

    def _text(self, request: Request, attempt: Attempt) -> pb.Assignment:
        work, prefill, decode = request.work, attempt.prefill, attempt.decode
        return pb.Assignment(
            request_id=request.id,
            attempt=attempt.number,
            tokens=work.tokens,
            max_tokens=work.max_tokens,
            sampling=work.sampling,
            stop_tokens=work.stop_tokens,
            forced_tokens=work.forced_tokens,
            root_key=self._root(request),
            prefill_side_blocks=attempt.plan.prefill_side_blocks,
            decode_side_blocks=attempt.plan.decode_side_blocks,
            prefill_node=prefill.node_id,
            prefill_address=prefill.address,
            prefill_engine=prefill.engine,
            prefill_incarnation=prefill.incarnation,
            decode_node=decode.node_id,
            decode_address=decode.address,
            decode_engine=decode.engine,
            decode_incarnation=decode.incarnation,
        )

    def _prompts(self) -> Iterator[WaitingRequest]:
        block_tokens = self._spec.block_tokens
        for request in list(self._for_prefill):
            hit_tokens = self._hit_blocks(request) * block_tokens
            yield WaitingRequest(request.id, request.prompt_tokens, hit_tokens, request.order)

    def _rooms(self, queue: Fifo) -> Iterator[WaitingRequest]:
        block_tokens = self._spec.block_tokens
        for request in list(queue):
            hit_tokens = self._hit_blocks(request) * block_tokens
            yield WaitingRequest(request.id, request.room_tokens(block_tokens), hit_tokens, request.order)

    def _hit_blocks(self, request: Request) -> int:
        """Stored blocks that the next attempt may read. The last retry reads none: no store can make that one fail."""
        if 1 < request.attempts + 1 >= self._spec.scheduling.max_attempts:
            return 0
        return self._index.longest_prefix(request.chain(self._root(request), self._spec.block_tokens))

    def _hit(self, request: Request) -> Sequence[bytes]:
        """The keys of those blocks."""
        return request.chain(self._root(request), self._spec.block_tokens)[: self._hit_blocks(request)]

    def _root(self, request: Request) -> bytes:
        identity = self._registry.identity()
        assert identity is not None, "policies run only while nodes live"
        return identity.root(request.message.tenant_salt)

    def _snapshots(self, nodes: Iterable[Node]) -> list[policy.NodeState]:
        return [node.snapshot(self._spec.block_tokens) for node in nodes]

    def _node(self, placement: Placement) -> Node:
        return next(n for n in self._registry.live() if n.info.node_id == placement.node)
