"""Everything that moves KV goes through here: storage reads and writes, staging copies, engine-to-engine writes.

The manager cuts work into small submissions, lets the most urgent pass each emulated card first, and bounds what is in
flight, so that nothing urgent waits behind more than a few milliseconds of other traffic. The split between the model's
collectives and KV is the network's (lanes by DSCP).
"""

import asyncio
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import count
from typing import final

from dualpath_configs import NetworkSpec
from dualpath_jax.transfer.base import Failure, Lane, RegionWrite, TransferError, Transport
from dualpath_jax.transfer.cutting import CopyPair, cut_copies, cut_writes
from dualpath_jax.transfer.links import NodeCards
from dualpath_jax.transfer.storage_traffic import BlockRun, Hold, StorageTraffic
from dualpath_jax.transfer.tasks import run_all
from dualpath_jax.transfer.window import Need, Window
from dualpath_storage.layout import KVLayout
from dualpath_storage.store import BlockRead, BlockResult, BlockStore, BlockWrite

SUBMISSION_BYTES = 1024 * 1024
"""Most bytes of one submission to the transport: what a more urgent write may have to wait for."""

MIN_DEADLINE_S = 0.001
"""A write that begins in the moment of its deadline fails by it."""

COPY_BYTES = 512 * 1024
"""Most bytes that a staging copy moves without yielding to the event loop (0.1–0.3 ms)."""

IN_FLIGHT_BYTES = {Lane.MODEL: 4 * SUBMISSION_BYTES, Lane.LOAD: 4 * SUBMISSION_BYTES, Lane.STORE: 2 * SUBMISSION_BYTES}
"""Bytes of one lane to one peer that the transport may hold."""


@final
@dataclass(frozen=True)
class LaneTraffic:
    """What one lane carried to one peer, whole submissions only; `host` is this node's own staging copies.

    Blocks are what callers handed over, counted once all of their call has arrived; pieces are what was posted of them.
    """

    lane: Lane
    peer: str
    bytes: int
    submissions: int
    pieces: int
    blocks: int

    @property
    def submissions_per_block(self) -> float:
        """What doorbell batches are for: far below 1 for Layer Blocks, and 1 where each block is posted by itself."""
        return self.submissions / self.blocks if self.blocks else 0.0


@final
@dataclass(frozen=True)
class SnicSample:
    """The storage card in the wall-clock seconds `[time_s, time_s + seconds)`."""

    time_s: float
    seconds: float
    read_bytes: int
    written_bytes: int


@final
@dataclass(frozen=True)
class TrafficStats:
    """Totals since the manager was made. Busy seconds are bytes over rate: zero for a card without a limit."""

    lanes: tuple[LaneTraffic, ...]
    snic_read_bytes: int
    memory_read_bytes: int
    """Blocks that were read from the node's DRAM tier, and passed no card."""
    snic_written_bytes: int
    snic_read_busy_s: float
    snic_write_busy_s: float
    snic_samples: tuple[SnicSample, ...]
    cnic_bytes: tuple[int, ...]
    """Per engine: sent, received and staged."""
    cnic_busy_s: tuple[float, ...]
    """Per engine: the busier of the card's two directions."""


@final
class TrafficManager:
    """The traffic of one node. Methods are called from one event loop."""

    def __init__(
        self, transport: Transport, *, layout: KVLayout, network: NetworkSpec, engines: int, free: bool = False
    ) -> None:
        self._transport = transport
        self._cards = NodeCards(network, engines=engines, free=free)
        self._storage = StorageTraffic(layout, self._cards)
        self._windows: dict[tuple[str, Lane], Window] = {}
        self._sends = count()
        self._lane_bytes: Counter[tuple[Lane, str]] = Counter()
        self._lane_submissions: Counter[tuple[Lane, str]] = Counter()
        self._lane_pieces: Counter[tuple[Lane, str]] = Counter()
        self._lane_blocks: Counter[tuple[Lane, str]] = Counter()

    async def close(self) -> None:
        """Cut off storage operations that outlived their deadline. Safe to call twice."""
        await self._storage.close()

    @property
    def read_queue_tokens(self) -> int:
        """Tokens of reads that were accepted and are not through yet (`read_q` of the paper's scheduling)."""
        return self._storage.read_queue_tokens

    async def inbound_gate(self, engine: int, lane: Lane, nbytes: int) -> None:
        """The transport's `InboundGate`: passes the receiving engine's card, the most urgent lane first."""
        await self._cards.compute_receive[engine].send(nbytes, lane=lane)

    async def read(
        self,
        store: BlockStore,
        reads: Sequence[BlockRead],
        *,
        deadline_s: float,
        need: Need = (),
        stop_at_failure: bool = True,
        hold: Hold | None = None,
    ) -> list[BlockResult]:
        """Blocks or layer ranges of them: storage to host memory through the storage card, by (need, call, block).

        `deadline_s` bounds each block from its turn (when storage is asked) until it has passed the card; it waits for
        its turn as long as the blocks before it need. Blocks of a DRAM tier pass no card and do not wait for those that
        do. A block that is not OK costs the card nothing; with
        `stop_at_failure`, those after the first such block that have not passed yet are MISSING, "not read" (the usable
        prefix has ended).

        `quiet` of a result says until when its buffer must rest; `hold` is called with each such future as well, which
        covers cancellation too. When cancelled, returns once no store operation is running, by the deadline.
        """
        run = BlockRun(store, deadline_s, need, hold)
        return await self._storage.read(run, reads, stop_at_failure=stop_at_failure)

    async def write(
        self, store: BlockStore, writes: Sequence[BlockWrite], *, deadline_s: float, hold: Hold | None = None
    ) -> list[BlockResult]:
        """Host memory to storage through the storage card, first come, first served, few bytes in flight.

        Deadline, `hold` and cancellation as for `read`; one block's failure does not stop the others.
        """
        return await self._storage.write(BlockRun(store, deadline_s, (), hold), writes)

    async def send(
        self,
        peer: str,
        batch: Sequence[RegionWrite],
        *,
        engine: int,
        lane: Lane,
        need: Need = (),
        deadline_s: float,
    ) -> None:
        """Write to a peer's region through `engine`'s card, the most urgent lane and need first.

        Returns when all of it lies in the peer's memory. Raises TransferError by the deadline, which covers waiting;
        then, and when cancelled, no source is read any more.
        """
        order = (need, next(self._sends))
        until_s = asyncio.get_running_loop().time() + deadline_s
        try:
            async with asyncio.timeout_at(until_s):
                await run_all(
                    self._submit(peer, part, engine=engine, lane=lane, need=(*order, i), until_s=until_s)
                    for i, part in enumerate(cut_writes(batch, SUBMISSION_BYTES))
                )
        except TimeoutError:
            raise TransferError(
                Failure.TIMED_OUT, peer, f"{lane.name} write not done within {deadline_s:g} s, waiting included"
            ) from None
        self._lane_blocks[lane, peer] += sum(len(write.source) > 0 for write in batch)

    async def copy(self, pairs: Sequence[CopyPair], *, engine: int, need: Need = ()) -> None:
        """Copy each `(destination, source)` through `engine`'s card, as DualPath does with every host-to-device copy.

        Raises ValueError, before any byte is copied, where a pair differs in length. Cancelled, it leaves the
        destinations partly written and touches them no more.
        """
        for index, (target, source) in enumerate(pairs):
            if len(target) != len(source):
                raise ValueError(f"pair {index} copies {len(source)} bytes into {len(target)}: expected equal lengths")
        link = self._cards.compute_receive[engine]
        order = (need, next(self._sends))
        for part in cut_copies(pairs, COPY_BYTES):
            size_bytes = sum(len(source) for _, source in part)
            await link.send(size_bytes, lane=Lane.LOAD, need=order)
            for target, source in part:
                target[:] = source
            self._count(Lane.LOAD, "host", size_bytes, len(part))
        self._lane_blocks[Lane.LOAD, "host"] += sum(len(source) > 0 for _, source in pairs)

    def stats(self) -> TrafficStats:
        """A snapshot of all counters."""
        cards = self._cards
        both = list(zip(cards.compute_send, cards.compute_receive, strict=True))
        return TrafficStats(
            lanes=tuple(
                LaneTraffic(*key, nbytes, self._lane_submissions[key], self._lane_pieces[key], self._lane_blocks[key])
                for key, nbytes in sorted(self._lane_bytes.items())
            ),
            snic_read_bytes=cards.storage_read.total_bytes,
            memory_read_bytes=self._storage.memory_read_bytes,
            snic_written_bytes=cards.storage_write.total_bytes,
            snic_read_busy_s=cards.storage_read.busy_s,
            snic_write_busy_s=cards.storage_write.busy_s,
            snic_samples=self._snic_samples(),
            cnic_bytes=tuple(send.total_bytes + receive.total_bytes for send, receive in both),
            cnic_busy_s=tuple(max(send.busy_s, receive.busy_s) for send, receive in both),
        )

    def _snic_samples(self) -> tuple[SnicSample, ...]:
        read, written = self._cards.storage_read.samples, self._cards.storage_write.samples
        seconds = self._cards.storage_read.sample_s
        return tuple(
            SnicSample(bucket * seconds, seconds, read.get(bucket, 0), written.get(bucket, 0))
            for bucket in sorted({*read, *written})
        )

    async def _submit(
        self, peer: str, part: list[RegionWrite], *, engine: int, lane: Lane, need: Need, until_s: float
    ) -> None:
        size_bytes = sum(len(write.source) for write in part)
        await self._cards.compute_send[engine].send(size_bytes, lane=lane, need=need)
        window = self._windows.setdefault((peer, lane), Window(IN_FLIGHT_BYTES[lane]))
        async with window.slot(size_bytes, need):
            deadline_s = max(until_s - asyncio.get_running_loop().time(), MIN_DEADLINE_S)
            await self._transport.write(peer, part, lane=lane, deadline_s=deadline_s)
        self._count(lane, peer, size_bytes, len(part))

    def _count(self, lane: Lane, peer: str, size_bytes: int, pieces: int) -> None:
        self._lane_bytes[lane, peer] += size_bytes
        self._lane_submissions[lane, peer] += 1
        self._lane_pieces[lane, peer] += pieces
