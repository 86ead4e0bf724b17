"""A small cluster spec, nodes that are scripted by hand, and a state machine whose time is a number."""

import asyncio
from collections.abc import Sequence

from dualpath_configs import ClusterSpec, ModelSpec, ModeSpec, SchedulingSpec, StorageSpec
from dualpath_scheduler.service import NodeClient, SchedulerState
from dualpath_scheduler.service import scheduler_pb2 as pb
from dualpath_scheduler.service.node import Poll
from dualpath_scheduler.service.request import Request
from dualpath_storage.index import PrefixIndex
from dualpath_storage.keys import KVIdentity

BLOCK = 4
VOCAB = 100
CONTEXT = 64
EPOCH_S = 1_800_000_000.0
IDENTITY = {
    "model_digest": "model",
    "weights_id": "weights",
    "weights_version": 1,
    "layout_digest": "layout",
    "block_tokens": BLOCK,
}


def make_spec(*, mode: ModeSpec | None = None, url: str = "", **scheduling: object) -> ClusterSpec:
    model = ModelSpec(
        vocab_size=VOCAB,
        hidden_size=16,
        num_hidden_layers=2,
        first_k_dense_replace=1,
        intermediate_size=16,
        num_attention_heads=2,
        kv_lora_rank=8,
        qk_nope_head_dim=4,
        qk_rope_head_dim=4,
        v_head_dim=4,
        n_routed_experts=4,
        num_experts_per_tok=2,
        moe_intermediate_size=8,
        max_position_embeddings=128,
    )
    engine = {
        "shard_tokens": BLOCK,
        "prefix_token_buckets": (CONTEXT,),
        "prefill_token_buckets": (CONTEXT,),
    }
    return ClusterSpec.model_validate(
        {
            "model": model,
            "block_tokens": BLOCK,
            "prefill_nodes": 1,
            "decode_nodes": 1,
            "max_context_tokens": CONTEXT,
            "host_buffer_blocks": 64,
            "engine": engine,
            "storage": StorageSpec(url=url),
            "scheduling": SchedulingSpec(**{"lease_s": 4.0, "beta_tokens": 1000, **scheduling}),
            "mode": mode or ModeSpec(),
        }
    )


def node_info(node_id: str, **fields: object) -> pb.NodeInfo:
    """A node whose role is in its name: `prefill-0`, `decode-1`."""
    identity = pb.Identity(**{**IDENTITY, **fields.pop("identity", {})})
    role = pb.ROLE_PREFILL if node_id.startswith("prefill") else pb.ROLE_DECODE
    defaults = {
        "incarnation": 1,
        "role": role,
        "engines": 2,
        "address": f"{node_id}:1",
        "vocab_size": VOCAB,
        "max_context_tokens": CONTEXT,
        "decode_tokens": 2 * CONTEXT if role == pb.ROLE_DECODE else 0,
    }
    return pb.NodeInfo(node_id=node_id, identity=identity, **{**defaults, **fields})


def tokens(count: int, start: int = 1) -> list[int]:
    return [(start + index) % VOCAB for index in range(count)]


def prompt(count: int = 10, *, max_tokens: int = 3, **fields: object) -> pb.GenerateRequest:
    return pb.GenerateRequest(tokens=fields.pop("tokens", tokens(count)), max_tokens=max_tokens, **fields)


def root(salt: str = "") -> bytes:
    return KVIdentity(**IDENTITY).root(salt)


def said(*ids: int) -> list[pb.Token]:
    return [pb.Token(token=token, logprob=-0.5) for token in ids]


class World:
    """A state machine, its clock, and the nodes' polls."""

    def __init__(self, spec: ClusterSpec | None = None, nodes: Sequence[str] = ("prefill-0", "decode-0")) -> None:
        self.now = 100.0
        self.index = PrefixIndex()
        self.state = SchedulerState(spec or make_spec(), self.index, now=self.now, epoch_s=EPOCH_S)
        self.incarnations: dict[str, int] = {}
        self.received: dict[str, int] = {}
        self.polls: dict[str, Poll] = {}
        for node_id in nodes:
            self.register(node_id)

    def register(self, node_id: str, **fields: object) -> None:
        info = node_info(node_id, **fields)
        self.state.register(info, self.now)
        self.incarnations[node_id] = info.incarnation
        self.received[node_id] = 0

    def poll(self, node_id: str, *, queues: pb.QueueReport | None = None) -> None:
        """Opens a poll and leaves it open."""
        message = pb.FetchRequest(
            node_id=node_id,
            incarnation=self.incarnations[node_id],
            received=self.received[node_id],
            queues=queues,
        )
        self.polls[node_id] = self.state.open_poll(message, self.now)

    def collect(self, node_id: str) -> pb.FetchReply:
        """Closes the poll that is open."""
        reply = self.state.close_poll(self.polls.pop(node_id))
        serials = [m.serial for m in reply.assignments] + [m.serial for m in reply.cancellations]
        self.received[node_id] = max([self.received[node_id], *serials])
        return reply

    def fetch(self, node_id: str, *, queues: pb.QueueReport | None = None) -> pb.FetchReply:
        self.poll(node_id, queues=queues)
        return self.collect(node_id)

    def report(self, node_id: str, *progress: pb.Progress, **fields: object) -> None:
        self.state.report(
            pb.ReportRequest(node_id=node_id, incarnation=self.incarnations[node_id], progress=progress, **fields),
            self.now,
        )

    def submit(self, message: pb.GenerateRequest | None = None) -> Request:
        return self.state.submit(message or prompt(), self.now)

    def start(self, message: pb.GenerateRequest | None = None, prefill: str = "prefill-0", decode: str = "decode-0"):
        """Submits a request and brings it to these nodes; returns it with its assignment."""
        request = self.submit(message)
        assignment = self.dispatch(prefill, decode)
        assert assignment.request_id == request.id
        return request, assignment

    def dispatch(self, prefill: str = "prefill-0", decode: str = "decode-0") -> pb.Assignment:
        """Both nodes fetch, and get the same one assignment."""
        self.poll(prefill)
        self.poll(decode)
        (mine,), (theirs,) = self.collect(prefill).assignments, self.collect(decode).assignments
        assert mine.serial
        assert theirs.serial
        mine_text, theirs_text = pb.Assignment(), pb.Assignment()
        mine_text.CopyFrom(mine)
        theirs_text.CopyFrom(theirs)
        mine_text.serial = theirs_text.serial = 0
        assert mine_text == theirs_text
        return mine

    def say(self, node_id: str, assignment: pb.Assignment, *ids: int, **fields: object) -> None:
        """Reports tokens of an assignment."""
        self.report(
            node_id,
            pb.Progress(request_id=assignment.request_id, attempt=assignment.attempt, tokens=said(*ids), **fields),
        )

    def later(self, seconds: float, *alive: str) -> None:
        """Time passes, during which the nodes `alive` go on reporting."""
        step = 1.0
        while seconds > 0:
            self.now += min(step, seconds)
            seconds -= step
            for node_id in alive:
                self.report(node_id)
            self.state.tick(self.now)


def events(request: Request) -> tuple[list[int], pb.Finished | None]:
    """Tokens and the end, as far as they have come since the last call."""
    out: list[int] = []
    finished = None
    for event in request.take_events():
        assert finished is None, "nothing follows the end"
        out += [token.token for token in event.tokens]
        if event.HasField("finished"):
            finished = event.finished
    return out, finished


class ScriptedNode:
    """A node that speaks the protocol through a NodeClient and generates token i as `(prompt length + i) % VOCAB`.

    So the text that a client must get does not depend on who generates it or how often it is retried. A node that is
    told to `hold` takes assignments and says nothing.
    """

    def __init__(
        self, address: str, node_id: str, *, hold: bool = False, pace_s: float = 0.0, **fields: object
    ) -> None:
        self.info = node_info(node_id, **fields)
        self.hold = hold
        self.pace_s = pace_s
        self.assignments: list[pb.Assignment] = []
        self.cancellations: list[pb.Cancellation] = []
        self.forgotten = 0
        self.got_work = asyncio.Event()
        self.got_cancellation = asyncio.Event()
        self._seen = 0
        self._running: dict[tuple[str, int], asyncio.Task[None]] = {}
        self._loop: asyncio.Task[None] | None = None
        self.client = NodeClient(
            address,
            node_id=node_id,
            incarnation=self.info.incarnation,
            on_forgotten=self._forget,
            patience_s=10.0,
        )

    async def __aenter__(self) -> "ScriptedNode":
        await self.client.register(self.info)
        self._loop = asyncio.create_task(self._fetch_forever())
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.die()

    async def die(self, *, leave: bool = False) -> None:
        """Stops at once; without `leave`, as a killed process does."""
        tasks = [task for task in (self._loop, *self._running.values()) if task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        if not leave:
            self.client._info = None
        await self.client.close()

    def _forget(self) -> None:
        self.forgotten += 1
        for task in self._running.values():
            task.cancel()

    async def _fetch_forever(self) -> None:
        while True:
            queues = pb.QueueReport(
                seen=self._seen,
                engines=[pb.EngineReport(free_tokens=self.info.decode_tokens) for _ in range(self.info.engines)],
            )
            reply = await self.client.fetch(queues, max_wait_s=0.2)
            for cancellation in reply.cancellations:
                self._cancel(cancellation)
            for assignment in reply.assignments:
                self._seen = max(self._seen, assignment.serial)
                self.assignments.append(assignment)
                self.got_work.set()
                if not self.hold:
                    key = assignment.request_id, assignment.attempt
                    self._running[key] = asyncio.create_task(self._serve(assignment))

    def _cancel(self, cancellation: pb.Cancellation) -> None:
        self.cancellations.append(cancellation)
        self.got_cancellation.set()
        for (request_id, attempt), task in self._running.items():
            if request_id == cancellation.request_id and attempt <= cancellation.attempt:
                task.cancel()

    async def _serve(self, assignment: pb.Assignment) -> None:
        start, count = len(assignment.tokens), assignment.max_tokens
        ids = [(start + index) % VOCAB for index in range(count)]
        if self.info.role == pb.ROLE_PREFILL:
            await self._say(assignment, ids[:1])
            return
        for token in ids[1:]:
            await asyncio.sleep(self.pace_s)
            await self._say(assignment, [token])
        await self._say(assignment, [], finished=True)

    async def _say(self, assignment: pb.Assignment, ids: list[int], **fields: object) -> None:
        progress = pb.Progress(
            request_id=assignment.request_id, attempt=assignment.attempt, tokens=said(*ids), **fields
        )
        await self.client.report(progress=[progress])


def expected(message: pb.GenerateRequest) -> list[int]:
    """What scripted nodes generate."""
    return [(len(message.tokens) + index) % VOCAB for index in range(message.max_tokens)]
