"""What a node knows of one attempt of a request."""

import asyncio
import contextlib
import time
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from dualpath_jax.engine.base import Sampling
from dualpath_scheduler.service import scheduler_pb2 as pb
from dualpath_storage.keys import chain_keys, token_bytes
from dualpath_storage.store import BlockRead, BlockWrite

JobKey = tuple[str, int]


class JobError(Exception):
    """An attempt that cannot go on here; another attempt may."""


@dataclass(eq=False)
class Job:
    """One attempt of one request on one side."""

    assignment: pb.Assignment
    engine: int
    block_tokens: int
    planned_reads: int = 0
    """Blocks that this side is to read and has not asked storage for yet."""
    memory: contextlib.ExitStack = field(default_factory=contextlib.ExitStack)
    """Keeps planned blocks in the node's memory until they are read."""
    task: asyncio.Task[None] | None = None
    cancelled: bool = False

    def cancel(self) -> None:
        """End the attempt. Only once: what it gives back on its way out is not to be interrupted by a second call."""
        if self.task is not None and not self.cancelled:
            self.cancelled = True
            self.task.cancel()

    def end(self) -> None:
        """Nobody waits for this attempt any more."""

    @property
    def key(self) -> JobKey:
        return (self.assignment.request_id, self.assignment.attempt)

    @cached_property
    def tokens(self) -> np.ndarray:
        """The prompt, int32."""
        return np.asarray(self.assignment.tokens, np.int32)

    @cached_property
    def keys(self) -> list[bytes]:
        """Chain keys of the prompt's full blocks."""
        return chain_keys(self.assignment.root_key, self.tokens, self.block_tokens)

    @property
    def prompt_blocks(self) -> int:
        """Blocks that hold the prompt, the last one perhaps partial."""
        return -(-len(self.tokens) // self.block_tokens)

    @property
    def total_tokens(self) -> int:
        """Prompt and everything still to be generated."""
        return len(self.tokens) + self.assignment.max_tokens

    @property
    def hit_blocks(self) -> int:
        """Blocks that the read plan covers."""
        return self.assignment.prefill_side_blocks + self.assignment.decode_side_blocks

    @property
    def sampling(self) -> Sampling:
        return Sampling(self.assignment.sampling.temperature, self.assignment.sampling.seed)

    @property
    def forced_tokens(self) -> tuple[int, ...] | None:
        return tuple(self.assignment.forced_tokens) or None

    @property
    def label(self) -> str:
        return f"request {self.assignment.request_id} (attempt {self.assignment.attempt})"

    def block_token_bytes(self, block: int) -> bytes:
        """The token ids of a full prompt block, as the store wants them."""
        return token_bytes(self.tokens[block * self.block_tokens : (block + 1) * self.block_tokens])

    def read(self, block: int, into: memoryview, layers: tuple[int, int] | None) -> BlockRead:
        return BlockRead(self.keys[block], self.block_token_bytes(block), into, layers)

    def write(self, block: int, data: memoryview) -> BlockWrite:
        parent = self.keys[block - 1] if block else self.assignment.root_key
        return BlockWrite(self.keys[block], parent, self.block_token_bytes(block), data)


@dataclass(frozen=True)
class ReadOutcome:
    """A part of one side's reads: blocks verified from its front without a gap, and when (wall clock, 0: never)."""

    verified_blocks: int
    read_start: float = 0.0
    read_end: float = 0.0


@dataclass
class Stopwatch:
    """Wall-clock marks of a job's stages."""

    marks: dict[str, float] = field(default_factory=dict)

    def mark(self, name: str) -> None:
        self.marks[name] = time.time()

    def timings(self) -> pb.Timings:
        return pb.Timings(**self.marks)
