"""Which nodes live, what they agree on, and what became of the others."""

from collections import OrderedDict
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import final

from dualpath_configs import ClusterSpec
from dualpath_scheduler.service import scheduler_pb2 as pb
from dualpath_scheduler.service.errors import RegistrationRefused, UnknownIncarnation
from dualpath_scheduler.service.node import Node
from dualpath_scheduler.service.validation import Limits
from dualpath_storage.keys import KVIdentity

ROLE_NAMES = {pb.ROLE_PREFILL: "prefill", pb.ROLE_DECODE: "decode"}
_REMEMBERED_DEATHS = 256


@final
@dataclass(frozen=True)
class Death:
    """How a life of a node ended."""

    node_id: str
    role: pb.Role
    incarnation: int
    at_s: float
    text: str


@final
class Registry:
    """The nodes. Times are monotonic seconds; `epoch_s` is the wall clock where they are 0."""

    def __init__(self, spec: ClusterSpec, *, now: float, epoch_s: float) -> None:
        self._spec = spec
        self._epoch_s = epoch_s
        self._nodes: dict[str, Node] = {}
        self._deaths: OrderedDict[str, Death] = OrderedDict()
        self._absent_since_s = dict.fromkeys(ROLE_NAMES, now)

    def live(self, role: pb.Role | None = None) -> list[Node]:
        """Nodes that live, by node id."""
        nodes = [node for node in self._nodes.values() if role in (None, node.info.role)]
        return sorted(nodes, key=lambda node: node.info.node_id)

    def reachable(self, role: pb.Role) -> list[Node]:
        """Nodes of a role that live and have not hung up, by node id: those that may be given work."""
        return [node for node in self.live(role) if not node.hung_up]

    def get(self, node_id: str, incarnation: int) -> Node | None:
        """This very life of a node, if it lives."""
        node = self._nodes.get(node_id)
        return node if node is not None and node.info.incarnation == incarnation else None

    def expect(self, node_id: str, incarnation: int) -> Node:
        """This very life of a node. Raises UnknownIncarnation where it does not live."""
        node = self.get(node_id, incarnation)
        if node is None:
            raise UnknownIncarnation(
                f"incarnation {incarnation} of node {node_id!r} is not registered ({self._known_of(node_id)}): "
                "drop what this life of it holds and register"
            )
        return node

    def identity(self) -> KVIdentity | None:
        """What all live nodes agree on; None while there are none."""
        for node in self._nodes.values():
            return KVIdentity(**_identity_fields(node.info))
        return None

    def limits(self) -> Limits:
        """The limits of a request: the nodes', or the spec's while there are none."""
        for node in self._nodes.values():
            return Limits(node.info.vocab_size, node.info.max_context_tokens)
        return Limits(self._spec.model.vocab_size, self._spec.max_context_tokens)

    def check(self, info: pb.NodeInfo) -> None:
        """Raises RegistrationRefused, with every reason, where this node must not join."""
        faults = [*self._own_faults(info), *self._disagreements(info)]
        if faults:
            raise RegistrationRefused(f"node {info.node_id!r} is refused: {'; '.join(faults)}")

    def add(self, info: pb.NodeInfo, now: float) -> Node:
        """A checked node lives from now on. Serials go on growing over lives and over restarts of the scheduler."""
        last_serial = int((self._epoch_s + now) * 1e6)
        self._nodes[info.node_id] = node = Node(info, self._spec.scheduling, now=now, last_serial=last_serial)
        return node

    def bury(self, node: Node, text: str, now: float) -> Death:
        """The node is dead from now on, for the reason `text`; what waited for it is told."""
        info = node.info
        del self._nodes[info.node_id]
        at = datetime.fromtimestamp(self._epoch_s + now, UTC).isoformat(timespec="milliseconds")
        text = f"{ROLE_NAMES[info.role]} node {info.node_id} died at {at} ({text})"
        death = Death(info.node_id, info.role, info.incarnation, now, text)
        self._deaths[info.node_id] = death
        self._deaths.move_to_end(info.node_id)
        if len(self._deaths) > _REMEMBERED_DEATHS:
            self._deaths.popitem(last=False)
        self._absent_since_s[info.role] = now
        node.gone = text
        node.wake()
        return death

    def silent(self, now: float) -> list[Node]:
        """Nodes whose lease is over."""
        return [node for node in self.live() if now - node.heard_s > self._spec.scheduling.lease_s]

    def absence(self, role: pb.Role) -> tuple[float, str] | None:
        """Since when no node of a role lives, and why; None where one does."""
        if self.live(role):
            return None
        name = ROLE_NAMES[role]
        last = next((death for death in reversed(self._deaths.values()) if death.role == role), None)
        why = last.text if last else f"none has registered so far; start one with --role={name}"
        return self._absent_since_s[role], f"no {name} node lives: {why}"

    def _known_of(self, node_id: str) -> str:
        if node_id in self._nodes:
            return f"incarnation {self._nodes[node_id].info.incarnation} is"
        return self._deaths[node_id].text if node_id in self._deaths else "this scheduler has not heard of it"

    def _own_faults(self, info: pb.NodeInfo) -> list[str]:
        context, block_tokens = self._spec.max_context_tokens, self._spec.block_tokens
        known = self._nodes.get(info.node_id)
        newest = known.info.incarnation if known else 0
        if info.node_id in self._deaths:
            newest = max(newest, self._deaths[info.node_id].incarnation)
        room = -(-info.max_context_tokens // block_tokens) * block_tokens
        checks = [
            (bool(info.node_id), "node_id is empty: expected a name"),
            (info.role in ROLE_NAMES, f"role is {info.role}: expected ROLE_PREFILL or ROLE_DECODE"),
            (info.engines > 0, "engines is 0: expected at least 1"),
            (
                info.incarnation >= newest,
                f"incarnation is {info.incarnation}: {newest} has registered since; an older life must end",
            ),
            (
                info.max_context_tokens == context,
                f"max_context_tokens is {info.max_context_tokens}: this cluster's is {context}",
            ),
            (
                info.identity.block_tokens == block_tokens,
                f"block_tokens is {info.identity.block_tokens}: this cluster's is {block_tokens}",
            ),
            (
                info.role != pb.ROLE_DECODE or info.decode_tokens >= room,
                f"decode_tokens is {info.decode_tokens}: expected at least {room}, one request of max_context_tokens",
            ),
        ]
        return [text for holds, text in checks if not holds]

    def _disagreements(self, info: pb.NodeInfo) -> list[str]:
        others = [node for node in self.live() if node.info.node_id != info.node_id]
        if not others:
            return []
        theirs, mine = others[0].info, info
        fields = {"vocab_size": (mine.vocab_size, theirs.vocab_size)}
        known = _identity_fields(theirs)
        fields |= {name: (value, known[name]) for name, value in _identity_fields(mine).items()}
        names = ", ".join(node.info.node_id for node in others)
        return [
            f"{name} is {value!r}, but {names} have {expected!r}"
            for name, (value, expected) in fields.items()
            if value != expected
        ]


def _identity_fields(info: pb.NodeInfo) -> dict:
    identity = info.identity
    return {field.name: getattr(identity, field.name) for field in identity.DESCRIPTOR.fields}
