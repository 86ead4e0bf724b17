"""What a node's loop needs of an engine group, and no more. Two implementations: the Flax one and the fake.

All methods are called from one thread, the one that owns the device; they block until their result is there.
"""

import abc
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from dualpath_storage.keys import KVIdentity
from dualpath_storage.layout import KVLayout


@dataclass(frozen=True)
class Sampling:
    """Temperature 0 is greedy. The draw at a position depends on `seed` and that position alone."""

    temperature: float = 0.0
    seed: int = 0


@dataclass(frozen=True)
class TokenChoice:
    """One generated position: the token that was taken and the two that were most likely (log-probabilities)."""

    token: int
    logprob: float
    top_tokens: tuple[int, int]
    top_logprobs: tuple[float, float]


@dataclass(frozen=True)
class PrefillChunk:
    """Consecutive prompt tokens of one request, at positions `[start, start + len(tokens))`.

    The KV of `[0, start)` comes from the stage; `start` is a multiple of the block size. The last chunk of a prompt
    carries `sampling`, and `forced_token` where the next token is given rather than chosen.
    """

    request: str
    engine: int
    tokens: np.ndarray
    start: int
    sampling: Sampling | None = None
    forced_token: int | None = None


@dataclass(frozen=True)
class PrefillPass:
    """A batch of chunks as the engine packs it.

    `token_offsets[i]` is where chunk i's tokens begin in its engine's packed tokens; `stage_blocks[i]` is the first
    stage block of its prefix; `stage_capacity` is the blocks that each engine's stage has in this pass.
    """

    chunks: tuple[PrefillChunk, ...]
    token_offsets: tuple[int, ...]
    stage_blocks: tuple[int, ...]
    stage_capacity: int


class Stage:
    """Host memory for the prefix KV of one layer group: what the next `run_layers` moves to the device.

    Flat bytes, 64-byte aligned. In a pass of stage capacity S over a group of G layers, the Layer Block of engine e,
    layer g of the group, stage block b is at `((e * G + g) * S + b) * layer_block_bytes`.
    """

    def __init__(self, layout: KVLayout, *, engines: int, layers: int, blocks: int) -> None:
        self._unit = layout.layer_block_bytes
        size = engines * layers * blocks * self._unit
        raw = np.zeros(size + 64, np.uint8)
        start = -raw.ctypes.data % 64
        self.buffer = raw[start : start + size]

    def offset(self, pass_: PrefillPass, layers: int, *, engine: int, layer: int, block: int) -> int:
        """Byte offset of a Layer Block; `layer` counts from the group's first of `layers`."""
        return ((engine * layers + layer) * pass_.stage_capacity + block) * self._unit


@dataclass(frozen=True)
class DecodeRequest:
    """A prompt whose KV is complete, and its first generated token.

    `max_tokens` counts all generated tokens, the first one included. `forced_tokens`, where given, are all of them.
    """

    request: str
    engine: int
    prompt_tokens: int
    first_token: int
    max_tokens: int
    sampling: Sampling = Sampling()
    forced_tokens: tuple[int, ...] | None = None


@dataclass(frozen=True)
class Slot:
    """A place in an engine's decode batch; `serial` tells two uses of one place apart."""

    engine: int
    index: int
    serial: int


@dataclass(frozen=True)
class EngineLimits:
    """What one engine takes at a time."""

    prefill_tokens: int
    prefix_tokens: int
    decode_slots: int
    decode_tokens: int


class EngineGroup(abc.ABC):
    """The engines of one node, stepped together.

    Where the group has several processes, each has the devices of `local_engines`; all make the same calls in the
    same order, bring what these engines need, and get what these engines give. `LeaderEngineGroup` makes one whole
    group of them, whose `local_engines` are all.
    """

    layout: KVLayout
    identity: KVIdentity
    engines: int
    local_engines: range
    limits: EngineLimits
    vocab_size: int

    @abc.abstractmethod
    def warm_up_prefill(self, layer_groups: Sequence[tuple[int, int]]) -> None:
        """Compile and run once everything that prefill in these layer groups `[first, last)` can need."""

    @abc.abstractmethod
    def warm_up_decode(self) -> None:
        """Compile and run once everything that decode needs, and allocate its pages."""

    @abc.abstractmethod
    def plan_prefill(self, chunks: Sequence[PrefillChunk]) -> PrefillPass:
        """Pack chunks. Raises ValueError where an engine's share exceeds its limits. Touches no device."""

    @abc.abstractmethod
    def new_stage(self, layers: int) -> Stage:
        """A stage large enough for `layers` layers of any pass."""

    @abc.abstractmethod
    def start_prefill(self, pass_: PrefillPass) -> None:
        """Begin a pass (embed its tokens). One pass runs at a time; beginning another drops the one before."""

    @abc.abstractmethod
    def run_layers(self, first: int, last: int, stage: Stage) -> np.ndarray:
        """Run layers `[first, last)` of the pass; `first` is where the call before ended.

        Reads the prefix KV of these layers for local engines from `stage`, which may be refilled once this has
        returned. Returns the new KV, uint8 `[local engines, last - first, packed tokens, token_layer_bytes]`.
        """

    @abc.abstractmethod
    def finish_prefill(self) -> list[TokenChoice | None]:
        """After all layers: the next token of each local engine's chunk that carries `sampling`; else None."""

    @abc.abstractmethod
    def can_insert(self, engine: int, total_tokens: int) -> bool:
        """Whether a request of that many tokens, prompt and generation, finds a slot and pages now."""

    @abc.abstractmethod
    def insert(self, request: DecodeRequest, blocks: Sequence[np.ndarray]) -> Slot:
        """Take a request into the decode batch; `blocks` are its Full Blocks (uint8 `[block_bytes]`), in order.

        They may be reused once this has returned, and are not looked at where the engine is not local. Raises
        ValueError where `can_insert` is false.
        """

    @abc.abstractmethod
    def step(self) -> list[tuple[Slot, TokenChoice]]:
        """One decode step for every request that still owes tokens; what those of local engines came to."""

    @abc.abstractmethod
    def export_block(self, slot: Slot, block: int) -> np.ndarray:
        """The Full Block `block` of a local engine's request, uint8 `[block_bytes]`, a copy.

        Raises ValueError unless all its tokens have been fed.
        """

    @abc.abstractmethod
    def release(self, slot: Slot) -> None:
        """Free a slot and its pages; a slot of an earlier use is ignored."""

    @abc.abstractmethod
    def close(self) -> None:
        """Free device memory. Safe to call twice."""
