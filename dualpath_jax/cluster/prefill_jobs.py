"""A prefill node's attempts: where each block of a prompt lies, and what is left to compute."""

import asyncio
from dataclasses import dataclass, field

import numpy as np

from dualpath_jax.cluster.arrivals import Arrivals
from dualpath_jax.cluster.jobs import Job, JobError, Stopwatch
from dualpath_jax.cluster.peers import DecodePeer
from dualpath_jax.engine.base import PrefillChunk, TokenChoice
from dualpath_jax.engine.host_buffers import Reservation
from dualpath_jax.transfer import RegionHandle


@dataclass(frozen=True)
class Gathered:
    """The usable prefix of a prompt and this node's share of its blocks.

    Blocks `[0, own)` were read here, `[own, usable)` lie on the decode node, `[usable, all)` are computed here. The
    reservation holds a slot for each block that is read or computed here, in order; `slots` are their bytes, which
    may be touched after the release by whoever holds the reservation.

    What was read may be there in part only: `here` and `there` say how far this side and the decode side have come.
    """

    reservation: Reservation
    slots: tuple[np.ndarray, ...]
    own: int
    usable: int
    here: Arrivals
    there: Arrivals

    async def part(self, part: int) -> None:
        """Wait until a part of the whole prefix is there. Raises JobError where it will not be.

        What the first part said of the prefix has been relied upon, so a later one that falls short ends the attempt.
        The next one begins with an index that has forgotten the block.
        """
        mine, theirs = await self.here.part(part), await self.there.part(part)
        if mine.verified_blocks < self.own or self.own + theirs.verified_blocks < self.usable:
            covered = min(mine.verified_blocks, self.own)
            covered += theirs.verified_blocks if covered == self.own else 0
            raise JobError(f"block {covered} came in part only: part {part} of its layers did not")

    @property
    def left_s(self) -> float:
        """Seconds until all of it is there, predicted; 0 once it is."""
        return max(self.here.left_s, self.there.left_s)

    async def stop(self) -> None:
        """End what is still being read."""
        await asyncio.gather(self.here.stop(), self.there.stop())

    def slot(self, block: int) -> np.ndarray | None:
        """The bytes of a block, uint8 `[block_bytes]`; None where it lies on the decode node."""
        if block < self.own:
            return self.slots[block]
        return None if block < self.usable else self.slots[self.own + block - self.usable]


@dataclass(eq=False)
class PrefillJob(Job):
    """One attempt on its prefill side, once assigned; the fields that are None are filled on its way."""

    peer: DecodePeer | None = None
    buffer: RegionHandle | None = None
    gathered: Gathered | None = None
    position: int = 0  # tokens whose KV is stored or computed: a multiple of the block size until the end
    own_returned: bool = False  # whether the blocks that were read here are on their way to the decode node
    left_behind: bool = False  # whether a pass went on without it, because its reads were late
    sends: "list[asyncio.Task[None]]" = field(default_factory=list)
    prefilled: "asyncio.Future[TokenChoice]" = field(default_factory=lambda: asyncio.get_running_loop().create_future())
    watch: Stopwatch = field(default_factory=Stopwatch)

    @property
    def left_tokens(self) -> int:
        return len(self.tokens) - self.position

    @property
    def blocks(self) -> Gathered:
        if self.gathered is None:
            raise JobError(f"{self.label} has gathered nothing yet")
        return self.gathered

    def chunk(self, size: int) -> PrefillChunk:
        """The next `size` tokens of the prompt."""
        tokens = self.tokens[self.position : self.position + size]
        last = size == self.left_tokens
        forced = self.forced_tokens
        return PrefillChunk(
            request=self.assignment.request_id,
            engine=self.engine,
            tokens=np.ascontiguousarray(tokens),
            start=self.position,
            sampling=self.sampling if last else None,
            forced_token=forced[0] if last and forced else None,
        )

    def fail(self, error: Exception) -> None:
        """End the attempt with an error, from outside its task."""
        if not self.prefilled.done():
            self.prefilled.set_exception(error)

    @property
    def runnable(self) -> bool:
        return not self.prefilled.done()
