"""A small cluster spec, and a state machine whose time is a number."""

from collections.abc import Sequence

from dualpath_configs import ClusterSpec, ModelSpec, ModeSpec, SchedulingSpec, StorageSpec
from dualpath_scheduler.service import SchedulerState
from dualpath_scheduler.service import scheduler_pb2 as pb
from dualpath_scheduler.service.node import Poll
from dualpath_scheduler.service.request import Request
from dualpath_storage.index import PrefixIndex
from dualpath_storage.keys import KVIdentity, chain_keys

BLOCK = 4
VOCAB = 100
CONTEXT = 64
TWO_BY_TWO = ("prefill-0", "prefill-1", "decode-0", "decode-1")
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


def publish(world: World, ids: list[int], salt: str = "") -> list[bytes]:
    """A decode node publishes the blocks of a sequence."""
    keys = chain_keys(root(salt), ids, BLOCK)
    parents = [root(salt), *keys]
    published = [pb.Published(key=key, parent=parent) for key, parent in zip(keys, parents, strict=False)]
    world.report("decode-0", published=published)
    return keys


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


def failure(request: Request) -> str:
    _, finished = events(request)
    assert finished is not None
    assert finished.error
    return finished.error
