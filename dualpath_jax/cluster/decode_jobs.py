"""A decode node's attempts: what the prefill node waits for, and the sequence that grows."""

import asyncio
from dataclasses import dataclass, field

from dualpath_jax.cluster import peer_pb2
from dualpath_jax.cluster.arrivals import Arrivals
from dualpath_jax.cluster.jobs import Job
from dualpath_jax.engine.base import Slot
from dualpath_jax.engine.host_buffers import Reservation
from dualpath_jax.transfer import RegionHandle
from dualpath_storage.keys import next_key, token_bytes
from dualpath_storage.store import BlockWrite


@dataclass(frozen=True)
class Attached:
    """The host buffer of a prompt, and its name for the prefill node."""

    reservation: Reservation
    views: tuple[memoryview, ...]
    handle: RegionHandle


@dataclass(eq=False)
class DecodeJob(Job):
    """One attempt on its decode side. The futures are set once each, and cancelled with the attempt."""

    attached: "asyncio.Future[Attached]" = field(default_factory=lambda: asyncio.get_running_loop().create_future())
    reads: "asyncio.Future[Arrivals]" = field(default_factory=lambda: asyncio.get_running_loop().create_future())
    handover: "asyncio.Future[peer_pb2.HandoverRequest]" = field(
        default_factory=lambda: asyncio.get_running_loop().create_future()
    )
    inserted: "asyncio.Future[None]" = field(default_factory=lambda: asyncio.get_running_loop().create_future())
    finished: "asyncio.Future[None]" = field(default_factory=lambda: asyncio.get_running_loop().create_future())
    slot: Slot | None = None
    generated: list[int] = field(default_factory=list)

    def end(self) -> None:
        """Nobody waits for this attempt any more."""
        for future in (self.attached, self.reads, self.handover, self.inserted, self.finished):
            future.cancel()

    def append(self, token: int) -> None:
        """Take a generated token. The KV of the one before it is now in the engine."""
        self.generated.append(token)

    @property
    def done(self) -> bool:
        """Whether the last token ends the generation."""
        return len(self.generated) >= self.assignment.max_tokens or self.generated[-1] in self.assignment.stop_tokens

    @property
    def fed_tokens(self) -> int:
        """Tokens whose KV the engine holds: all but the newest one."""
        return len(self.tokens) + len(self.generated) - 1

    @property
    def completed_block(self) -> int | None:
        """The block that the newest step completed, if it did; blocks of the prompt alone are not counted."""
        block, rest = divmod(self.fed_tokens, self.block_tokens)
        return block - 1 if rest == 0 and self.fed_tokens > len(self.tokens) else None

    def generated_write(self, block: int, data: memoryview) -> BlockWrite:
        """The write of a block that holds generated tokens; blocks are asked for in order."""
        first = block * self.block_tokens - len(self.tokens)
        ids = [*self.tokens[block * self.block_tokens :].tolist(), *self.generated[max(0, first) :]]
        ids = ids[: self.block_tokens]
        parent = self.keys[block - 1] if block else self.assignment.root_key
        key = next_key(parent, ids)
        self.keys.append(key)
        return BlockWrite(key, parent, token_bytes(ids), data)
