"""What a policy sees and what it answers. All of it frozen: a decision depends on nothing else."""

import math
from copy import copy
from dataclasses import dataclass
from functools import cached_property
from typing import final


@final
@dataclass(frozen=True)
class WaitingRequest:
    """A request in a queue, as the role that is to take it counts its tokens.

    `tokens` is the prompt for a prefill engine; for a decode engine it is the room that prompt and generation need in
    device memory, whole blocks. `hit_tokens` of the prompt are stored. `order` grows with arrival.
    """

    id: str
    tokens: int
    hit_tokens: int
    order: int


@final
@dataclass(frozen=True)
class EngineState:
    """One engine of a group: `seq` unfinished requests with `tok` tokens in all.

    `free_tokens` is the room in device memory that no unfinished request has been promised (decode; 0 on a prefill
    engine, where KV passes through).
    """

    node: str
    engine: int
    seq: int
    tok: int
    free_tokens: int = 0


@final
@dataclass(frozen=True)
class NodeState:
    """An engine group with its node's storage queue.

    `read_q_tokens` wait for the SNIC. `alpha_tokens` (α) is what the node reads in `alpha_s` seconds, `beta_tokens`
    (β) what one engine processes in `beta_s` seconds; infinite where nothing limits them. `queued_tokens` are those of
    the requests that phase 1 gave to a decode group and phase 2 has not placed yet.
    """

    node_id: str
    read_q_tokens: int
    engines: tuple[EngineState, ...]
    alpha_tokens: float = math.inf
    beta_tokens: float = math.inf
    queued_tokens: int = 0

    def reading(self, read_q_tokens: int) -> "NodeState":
        """The same group with another read queue; what was worked out of its engines is kept."""
        if read_q_tokens == self.read_q_tokens:
            return self
        changed = copy(self)
        changed.__dict__["read_q_tokens"] = read_q_tokens
        return changed

    @cached_property
    def tok(self) -> int:
        """Tokens of the unfinished requests of all of its engines."""
        return sum([engine.tok for engine in self.engines])

    @cached_property
    def widest_room(self) -> int:
        """Room of the engine that has most of it."""
        return max([engine.free_tokens for engine in self.engines], default=0)

    @cached_property
    def ready(self) -> tuple[tuple[int, str, int], ...]:
        """Its engines that are not overloaded (Algorithm 1), as (tok, node, engine), in this order."""
        return tuple(sorted([(e.tok, e.node, e.engine) for e in self.engines if e.tok <= self.beta_tokens]))


@final
@dataclass(frozen=True)
class Placement:
    """A request goes to an engine of a node."""

    request_id: str
    node: str
    engine: int


@final
@dataclass(frozen=True)
class ReadPlan:
    """The prefill side reads the first `prefill_side_blocks` hit blocks, the decode side those after them."""

    prefill_side_blocks: int
    decode_side_blocks: int


@final
@dataclass(frozen=True)
class ReadSnapshot:
    """What is known when both engines of a request are: its stored blocks and the two nodes' read queues.

    `ordinal` counts the plans that were fixed before this one. Of the hit blocks, the first `prefill_resident_blocks`
    lie in the prefill node's memory and the last `decode_resident_blocks` in the decode node's: each of the two sides
    may take those without asking storage.

    Rates are in tokens a second, infinite where nothing limits them. At `hop_tokens_per_s` prefill gets what the decode
    side has read, as far as it has to wait for that: layerwise, for the first layer group's part.
    """

    hit_blocks: int
    prefill_read_q_tokens: int
    decode_read_q_tokens: int
    ordinal: int = 0
    prefill_resident_blocks: int = 0
    decode_resident_blocks: int = 0
    prefill_read_tokens_per_s: float = math.inf
    decode_read_tokens_per_s: float = math.inf
    hop_tokens_per_s: float = math.inf
    block_tokens: int = 64
