"""Random histories: whatever dies, is late or is cancelled, every request ends, and with the right tokens."""

import random
from collections import defaultdict

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dualpath_configs import MODES
from dualpath_scheduler.service import UnknownIncarnation
from dualpath_scheduler.service import scheduler_pb2 as pb
from dualpath_scheduler.service.request import Request
from tests.service.support import BLOCK, CONTEXT, VOCAB, World, make_spec, prompt, said

Key = tuple[str, int]


class SimulatedNode:
    """One life of a node: what it runs, and the reports that it has not sent yet."""

    def __init__(self, chaos: "Chaos", node_id: str, incarnation: int) -> None:
        self.chaos = chaos
        self.node_id = node_id
        self.is_prefill = node_id.startswith("prefill")
        self.incarnation = incarnation
        self.running: dict[Key, pb.Assignment] = {}
        self.given: dict[Key, int] = defaultdict(int)
        self.unsent: list[pb.Progress] = []
        self.seen = 0
        self.serial = 0

    def fetch(self) -> None:
        reply = self.chaos.world.fetch(self.node_id, queues=self.queues())
        for cancellation in reply.cancellations:
            for key in [k for k in self.running if k[0] == cancellation.request_id and k[1] <= cancellation.attempt]:
                del self.running[key]
        for assignment in reply.assignments:
            key = assignment.request_id, assignment.attempt
            assert key not in self.running
            self.seen = max(self.seen, assignment.serial)
            self.running[key] = assignment
        assert all(free >= 0 for free in self.free_tokens()), "an engine was given more than it has room for"

    def work(self) -> None:
        """One attempt makes one step; what it has to say is said later."""
        if not self.running:
            return
        key = self.chaos.random.choice(list(self.running))
        assignment = self.running[key]
        progress = pb.Progress(request_id=key[0], attempt=key[1])
        if self.chaos.random.random() < 0.05:
            progress.error = "a hiccup"
            del self.running[key]
        elif self.is_prefill:
            self.chaos.handed_over.add(key)
            progress.tokens.extend(said(len(assignment.tokens) % VOCAB))
            del self.running[key]
        elif key not in self.chaos.handed_over:
            return
        elif self.given[key] == assignment.max_tokens - 1:
            progress.finished = True
            del self.running[key]
        else:
            self.given[key] += 1
            progress.tokens.extend(said((len(assignment.tokens) + self.given[key]) % VOCAB))
        self.unsent.append(progress)

    def report(self) -> None:
        self.serial += 1
        self.chaos.world.report(self.node_id, *self.unsent, queues=self.queues(), serial=self.serial)
        self.unsent = []

    def free_tokens(self) -> list[int]:
        free = [0, 0] if self.is_prefill else [2 * CONTEXT, 2 * CONTEXT]
        for assignment in () if self.is_prefill else self.running.values():
            room = -(-(len(assignment.tokens) + assignment.max_tokens) // BLOCK) * BLOCK
            free[assignment.decode_engine] -= room
        return free

    def queues(self) -> pb.QueueReport:
        return pb.QueueReport(
            seen=self.seen, engines=[pb.EngineReport(free_tokens=free) for free in self.free_tokens()]
        )


class Chaos:
    """A cluster to which anything may happen."""

    NODES = ("prefill-0", "prefill-1", "decode-0", "decode-1")

    def __init__(self, seed: int, mode: str) -> None:
        self.random = random.Random(seed)
        self.world = World(make_spec(mode=MODES[mode], max_attempts=4), nodes=())
        self.handed_over: set[Key] = set()
        self.incarnations = dict.fromkeys(self.NODES, 0)
        self.nodes: dict[str, SimulatedNode] = {}
        self.requests: list[tuple[Request, pb.GenerateRequest, list[int]]] = []
        self.cancelled: set[str] = set()
        for node_id in self.NODES:
            self.restart(node_id)

    def restart(self, node_id: str) -> None:
        self.incarnations[node_id] += 1
        self.world.register(node_id, incarnation=self.incarnations[node_id])
        self.nodes[node_id] = SimulatedNode(self, node_id, self.incarnations[node_id])

    def submit(self) -> None:
        message = prompt(self.random.randint(1, 40), max_tokens=self.random.randint(1, 6))
        request = self.world.submit(message)
        self.requests.append((request, message, []))

    def happen(self) -> None:
        kind = self.random.choices(
            ("submit", "fetch", "work", "report", "kill", "restart", "cancel", "time"), (4, 10, 20, 12, 1, 1, 1, 2)
        )[0]
        node_id = self.random.choice(self.NODES)
        if kind == "submit":
            self.submit()
        elif kind in ("fetch", "work", "report") and node_id in self.nodes:
            self.try_to(node_id, kind)
        elif kind == "kill":
            self.nodes.pop(node_id, None)
        elif kind == "restart":
            self.restart(node_id)
        elif kind == "cancel" and self.requests:
            request = self.random.choice(self.requests)[0]
            self.cancelled.add(request.id)
            self.world.state.cancel(request, "enough", self.world.now)
        elif kind == "time":
            self.world.now += 0.5
            self.world.state.tick(self.world.now)
        self.listen()

    def try_to(self, node_id: str, kind: str) -> None:
        try:
            getattr(self.nodes[node_id], kind)()
        except UnknownIncarnation:
            self.restart(node_id)

    def listen(self) -> None:
        for request, _, heard in self.requests:
            heard += (
                [token.token for event in request.take_events() for token in event.tokens] if not request.done else []
            )

    def settle(self) -> None:
        """From now on nothing more goes wrong."""
        for node_id in self.NODES:
            self.restart(node_id)
        self.random.random = lambda: 1.0  # type: ignore[method-assign]
        for _ in range(3000):
            if all(request.done for request, _, _ in self.requests):
                return
            for kind in ("fetch", "work", "report"):
                for node_id in self.NODES:
                    self.try_to(node_id, kind)
            self.world.now += 0.01
            self.world.state.tick(self.world.now)
            self.listen()
        raise AssertionError("requests hang")


@pytest.mark.parametrize("mode", ["basic", "dualpath"])
@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 2**32))
def test_every_history_ends_well(mode: str, seed: int) -> None:
    chaos = Chaos(seed, mode)
    for _ in range(200):
        chaos.happen()
    chaos.settle()
    for request, message, heard in chaos.requests:
        events = request.take_events()
        heard += [token.token for event in events for token in event.tokens]
        wanted = [(len(message.tokens) + index) % VOCAB for index in range(message.max_tokens)]
        assert heard == wanted[: len(heard)]
        ends = [event.finished for event in events if event.HasField("finished")]
        if ends and not ends[0].error:
            assert heard == wanted
        elif ends:
            assert request.id in chaos.cancelled or "attempt 4 of 4" in ends[0].error
    assert chaos.world.state.describe().running_requests == 0
