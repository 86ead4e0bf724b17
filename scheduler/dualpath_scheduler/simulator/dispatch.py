"""Runs the policies of the scheduler's service on the queues of a simulation."""

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import final

from dualpath_configs import SimulatedSpec
from dualpath_scheduler import policy
from dualpath_scheduler.policy import Placement, ReadPlanPolicy, ReadSnapshot, WaitingRequest
from dualpath_scheduler.simulator.nodes import Node, Request


@final
class Dispatcher:
    """A request waits for a prefill engine, then for a decode engine, and then its read plan is fixed.

    As in the service: with `scheduling`, prefill groups take from the queue by Algorithm 1, the rest is drained to
    decode groups, and each places its own queue; without, requests are dealt to all engines in turn. A prefill group
    has a fetch open while one of its engines could take something, a decode group while its queue holds something that
    it has not looked at since its room changed.
    """

    def __init__(self, spec: SimulatedSpec, prefill: list[Node], decode: list[Node]) -> None:
        self._spec = spec
        self._prefill = prefill
        self._decode = decode
        self._by_id = {node.node_id: node for node in (*prefill, *decode)}
        self._plan: ReadPlanPolicy = policy.read_plan_for(spec.mode, spec.scheduling)
        # Of what comes from the decode side, prefill waits for the first layer; the others move while it computes.
        waited_for = 1 / spec.model.layers if spec.mode.layerwise else 1.0
        cnic_bytes_per_s = spec.hardware.cnic_bytes_per_s * spec.calibration.cnic_efficiency
        self._hop_tokens_per_s = cnic_bytes_per_s / spec.model.kv_bytes_per_token / waited_for
        self._for_prefill: deque[Request] = deque()
        self._for_decode: deque[Request] = deque()
        self._in_groups = 0
        self._fetching = dict.fromkeys(prefill)
        self._turns = {"prefill": 0, "decode": 0}
        self._plans = 0

    @property
    def is_idle(self) -> bool:
        """Whether no request waits for an engine."""
        return not (self._for_prefill or self._for_decode or self._in_groups)

    def add(self, request: Request) -> None:
        """A request waits for a prefill engine from now on."""
        self._for_prefill.append(request)

    def prefilled(self, request: Request) -> None:
        """A prefill engine is done with it."""
        node = request.prefill
        node.change(request.prefill_engine, -1, -request.prompt)
        if node.takes_prefill:
            self._fetching.setdefault(node)

    def left(self, request: Request) -> None:
        """A decode engine is done with it."""
        request.decode.change(request.decode_engine, -1, -request.room, -request.room)

    def run(self, now: float, decode: Iterable[Node] = ()) -> list[Request]:
        """Places what the policies let through; returns the requests that have both engines and a read plan now.

        `decode` are the nodes on which room was made since the last call.
        """
        if self._spec.mode.scheduling:
            assigned = self._place_by_policy(now, decode)
        else:
            assigned = self._place_in_turn(now)
        for request in assigned:
            self._fix_plan(now, request)
        return assigned

    def _place_by_policy(self, now: float, decode: Iterable[Node]) -> list[Request]:
        if self._for_prefill and self._fetching:
            groups = [node.snapshot(now) for node in self._fetching]
            self._take_prefill(policy.assign_prefill(_prompts(self._for_prefill), groups))
        fetching = dict.fromkeys(decode)
        if self._for_decode:
            groups = [node.last_snapshot(now) for node in self._decode]
            for _, node_id in policy.drain_to_groups(_rooms(self._for_decode), groups):
                node, request = self._by_id[node_id], self._for_decode.popleft()
                if not node.queue:
                    fetching.setdefault(node)
                node.enqueue(request)
                self._in_groups += 1
        assigned: list[Request] = []
        for node in fetching:
            if node.queue:
                placements = policy.assign_decode(_rooms(node.queue), node.snapshot(now))
                self._in_groups -= len(placements)
                assigned.extend(self._take_decode(placements, node.dequeue))
        return assigned

    def _place_in_turn(self, now: float) -> list[Request]:
        if self._for_prefill:
            groups = [node.snapshot(now) for node in self._prefill]
            placements, self._turns["prefill"] = policy.assign_in_turn(
                _prompts(self._for_prefill), groups, self._turns["prefill"], needs_room=False
            )
            self._take_prefill(placements)
        if not self._for_decode:
            return []
        groups = [node.snapshot(now) for node in self._decode]
        placements, self._turns["decode"] = policy.assign_in_turn(
            _rooms(self._for_decode), groups, self._turns["decode"], needs_room=True
        )
        return self._take_decode(placements, self._for_decode.popleft)

    def _take_prefill(self, placements: list[Placement]) -> None:
        for placement in placements:
            request, node = self._for_prefill.popleft(), self._by_id[placement.node]
            request.prefill, request.prefill_engine = node, placement.engine
            node.change(placement.engine, 1, request.prompt)
            self._for_decode.append(request)
        for node in dict.fromkeys([self._by_id[placement.node] for placement in placements]):
            if not node.takes_prefill:
                self._fetching.pop(node, None)

    def _take_decode(self, placements: list[Placement], take: Callable[[], Request]) -> list[Request]:
        taken = []
        for placement in placements:
            request, node = take(), self._by_id[placement.node]
            request.decode, request.decode_engine = node, placement.engine
            node.change(placement.engine, 1, request.room, request.room)
            taken.append(request)
        return taken

    def _fix_plan(self, now: float, request: Request) -> None:
        block_tokens = self._spec.block_tokens
        session, hit_blocks = request.session, request.hit // block_tokens
        snapshot = ReadSnapshot(
            hit_blocks=hit_blocks,
            prefill_read_q_tokens=request.prefill.read_q_tokens(now),
            decode_read_q_tokens=request.decode.read_q_tokens(now),
            ordinal=self._plans,
            prefill_resident_blocks=request.prefill.tier.front(session, hit_blocks),
            decode_resident_blocks=request.decode.tier.back(session, hit_blocks),
            prefill_read_tokens_per_s=request.prefill.read_tokens_per_s,
            decode_read_tokens_per_s=request.decode.read_tokens_per_s,
            hop_tokens_per_s=self._hop_tokens_per_s,
            block_tokens=block_tokens,
        )
        self._plans += 1
        if self._spec.scheduling.load_or_recompute:
            blocks = policy.blocks_to_load(snapshot, self._plan, request.prefill.compute_state(request))
            snapshot = policy.shortened(snapshot, blocks)
        plan = self._plan(snapshot)
        request.prefill_side = plan.prefill_side_blocks * block_tokens
        request.decode_side = plan.decode_side_blocks * block_tokens
        request.hit = request.computed = request.prefill_side + request.decode_side
        request.prefill_resident = min(snapshot.prefill_resident_blocks * block_tokens, request.prefill_side)
        request.decode_resident = min(snapshot.decode_resident_blocks * block_tokens, request.decode_side)
        request.prefill.tier.use(session, 0, plan.prefill_side_blocks)
        request.decode.tier.use(session, plan.prefill_side_blocks, plan.prefill_side_blocks + plan.decode_side_blocks)
        request.prefill.read_waiting_tokens += request.prefill_side - request.prefill_resident
        request.decode.read_waiting_tokens += request.decode_side - request.decode_resident


def _prompts(queue: Iterable[Request]) -> Iterator[WaitingRequest]:
    return (request.for_prefill for request in queue)


def _rooms(queue: Iterable[Request]) -> Iterator[WaitingRequest]:
    return (request.for_decode for request in queue)
