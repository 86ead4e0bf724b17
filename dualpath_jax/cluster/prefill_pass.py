"""One prefill pass: layer groups run one after the other while the next one's KV moves in and the last one's moves out.

fill(g + 1)      stage B  <- own host buffer (copies) and the decode nodes (their writes)
run_layers(g)    stage A  -> new KV
give_back(g)     new KV and own hit blocks of group g -> decode nodes' buffers
"""

import asyncio
import contextlib
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import ParamSpec, TypeVar

import numpy as np

from dualpath_jax.cluster.jobs import JobError
from dualpath_jax.cluster.layer_groups import LayerGroup
from dualpath_jax.cluster.peers import Push
from dualpath_jax.cluster.prefill_jobs import PrefillJob
from dualpath_jax.cluster.services import NodeServices
from dualpath_jax.engine.base import PrefillPass, Stage, TokenChoice
from dualpath_jax.transfer import Lane, RegionWrite, TransferError

P = ParamSpec("P")
T = TypeVar("T")


@dataclass(frozen=True)
class Entry:
    """A job that is to run its next `tokens`; its reads have until `reads_until_s` of the loop's clock."""

    job: PrefillJob
    tokens: int
    reads_until_s: float


@dataclass
class Share:
    """One job's part of a pass."""

    job: PrefillJob
    index: int
    tokens: int
    start: int
    returns_own: bool
    reads_until_s: float
    left_behind: bool = False
    choice: TokenChoice | None = None

    @property
    def runs(self) -> bool:
        """Whether anybody wants its result still."""
        return self.job.runnable and not self.left_behind

    @property
    def prefix_blocks(self) -> int:
        return self.start // self.job.block_tokens


class PassRunner:
    """Runs passes on a node's engine group; one at a time."""

    def __init__(self, services: NodeServices, groups: Sequence[LayerGroup], parts: Sequence[LayerGroup]) -> None:
        self._services = services
        self.groups = tuple(groups)
        self._parts = len(parts)
        self.computed_s = 0.0  # what the last pass took on the device
        widest = max(last - first for first, last in groups)
        self._stages = [services.engine.new_stage(widest) for _ in range(min(2, len(groups)))]

    async def run(self, batch: Sequence[Entry]) -> list[Share]:
        """Run each job's next tokens through all layers; a share's choice is the token that its job's end sampled.

        A job whose KV does not arrive is failed and its result is garbage; the others are not touched by it. Nor are
        they by one whose reads are late: it is left behind, and nothing has happened to it. The KV that is given back
        is under way when this returns: see `PrefillJob.sends`.
        """
        pass_ = self._services.engine.plan_prefill([entry.job.chunk(entry.tokens) for entry in batch])
        shares = [
            Share(e.job, i, e.tokens, e.job.position, not e.job.own_returned, e.reads_until_s)
            for i, e in enumerate(batch)
        ]
        self.computed_s = 0.0
        with contextlib.ExitStack() as holds:
            for share in shares:
                holds.enter_context(share.job.blocks.reservation.touching())
            await self._run(pass_, shares)
        return shares

    async def _run(self, pass_: PrefillPass, shares: Sequence[Share]) -> None:
        engine = self._services.engine
        filled = asyncio.create_task(self._fill(pass_, shares, 0))
        try:
            await self._compute(engine.start_prefill, pass_)
            for g, (first, last) in enumerate(self.groups):
                await filled
                if not any(share.runs for share in shares):
                    return  # the next pass takes this one's place
                if g + 1 < len(self.groups):
                    filled = asyncio.create_task(self._fill(pass_, shares, g + 1))
                new_kv = await self._compute(engine.run_layers, first, last, self._stage(g))
                self._give_back(pass_, shares, (first, last), new_kv)
            for share, choice in zip(shares, await self._compute(engine.finish_prefill), strict=True):
                share.choice = choice
        finally:
            filled.cancel()
            await asyncio.wait([filled])

    async def _compute(self, call: Callable[P, T], *arguments: P.args, **keywords: P.kwargs) -> T:
        start = time.perf_counter()
        result = await self._services.device.run(call, *arguments, **keywords)
        self.computed_s += time.perf_counter() - start
        return result

    def _stage(self, group: int) -> Stage:
        return self._stages[group % len(self._stages)]

    async def _fill(self, pass_: PrefillPass, shares: Sequence[Share], group: int) -> None:
        """Bring the prefix KV of a layer group into its stage. A share that fails fails its job alone."""
        async with asyncio.TaskGroup() as tasks:
            for share in shares:
                if share.prefix_blocks and share.runs:
                    tasks.create_task(self._fill_share(pass_, share, group))

    async def _fill_share(self, pass_: PrefillPass, share: Share, group: int) -> None:
        try:
            if not await self._has_come(share, group):
                share.left_behind = True
                return
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._copy_local(pass_, share, group))
                tasks.create_task(self._pull_remote(pass_, share, group))
        except* (JobError, TransferError, TimeoutError) as errors:
            share.job.fail(JobError(f"{share.job.label}: prefix KV did not arrive: {errors.exceptions[0]}"))

    async def _has_come(self, share: Share, group: int) -> bool:
        """Whether the share's prefix is there for a layer group, or comes while the pass waits for it."""
        part = group if self._parts > 1 else 0
        try:
            async with asyncio.timeout_at(share.reads_until_s):
                await share.job.blocks.part(part)
        except TimeoutError:
            return False
        except Exception as error:
            share.job.fail(error)
            return False
        return True

    def _offset(self, pass_: PrefillPass, share: Share, group: int, *, layer: int, block: int) -> int:
        first, last = self.groups[group]
        return self._stage(group).offset(
            pass_,
            last - first,
            engine=share.job.engine,
            layer=layer - first,
            block=pass_.stage_blocks[share.index] + block,
        )

    async def _copy_local(self, pass_: PrefillPass, share: Share, group: int) -> None:
        """Own read blocks, and blocks that an earlier chunk computed: host buffer to stage."""
        layout = self._services.engine.layout
        first, last = self.groups[group]
        stage = self._stage(group).buffer.data
        pairs = []
        for block in range(share.prefix_blocks):
            slot = share.job.blocks.slot(block)
            if slot is None:
                continue
            for layer in range(first, last):
                offset = self._offset(pass_, share, group, layer=layer, block=block)
                source = slot[layout.layer_span(layer, layer + 1)].data
                pairs.append((stage[offset : offset + layout.layer_block_bytes], source))
        need = (first, share.job.assignment.serial)
        await self._services.traffic.copy(pairs, engine=share.job.engine, need=need)

    async def _pull_remote(self, pass_: PrefillPass, share: Share, group: int) -> None:
        """Blocks that the decode node read: it writes them into the stage."""
        job, blocks = share.job, share.job.blocks
        if blocks.own == blocks.usable:
            return
        assert job.peer is not None
        transport, layout = self._services.transport, self._services.engine.layout
        first, last = self.groups[group]
        handle = transport.register([self._stage(group).buffer.data], engine=job.engine)
        try:
            push = Push(
                stage=handle,
                first_layer=first,
                last_layer=last,
                first_block=blocks.own,
                last_block=blocks.usable,
                offset_bytes=self._offset(pass_, share, group, layer=first, block=blocks.own),
                layer_stride_bytes=pass_.stage_capacity * layout.layer_block_bytes,
            )
            deadline_s = self._services.spec.scheduling.transfer_deadline_s
            await job.peer.push(job, push, reply_to=transport.address, deadline_s=deadline_s)
        finally:
            # A write that is still under way must not land in the stage's next use.
            await transport.deregister(handle)

    def _give_back(self, pass_: PrefillPass, shares: Sequence[Share], group: LayerGroup, new_kv: np.ndarray) -> None:
        """Keep the group's new KV in the host buffer and start its way to the decode nodes."""
        for share in shares:
            if not share.runs:
                continue
            blocks = self._keep(pass_, share, group, new_kv)
            if share.returns_own:
                blocks = [*range(share.job.blocks.own), *blocks]
            share.job.sends.append(asyncio.create_task(self._send(share.job, blocks, group)))

    def _keep(self, pass_: PrefillPass, share: Share, group: LayerGroup, new_kv: np.ndarray) -> list[int]:
        """Copy new KV `[engines, layers, tokens, bytes]` into the job's slots; returns the blocks that it touches."""
        layout, job = self._services.engine.layout, share.job
        (first, last), size = group, layout.block_tokens
        offset = pass_.token_offsets[share.index]
        kv = new_kv[job.engine, :, offset : offset + share.tokens]
        blocks = list(range(share.prefix_blocks, layout.blocks_of(share.start + share.tokens)))
        for i, block in enumerate(blocks):
            slot = job.blocks.slot(block)
            assert slot is not None
            full = slot.reshape(layout.layers, size, layout.token_layer_bytes)
            piece = kv[:, i * size : (i + 1) * size]
            full[first:last, : piece.shape[1]] = piece
        return blocks

    async def _send(self, job: PrefillJob, blocks: Sequence[int], group: LayerGroup) -> None:
        layout = self._services.engine.layout
        assert job.peer is not None
        assert job.buffer is not None
        span = layout.layer_span(*group)
        batch = []
        for block in blocks:
            slot = job.blocks.slot(block)
            assert slot is not None
            batch.append(RegionWrite(slot[span].data, job.buffer, block * layout.block_bytes + span.start))
        with job.blocks.reservation.touching():
            await self._services.traffic.send(
                job.peer.address,
                batch,
                engine=job.engine,
                lane=Lane.LOAD,
                need=(group[0], job.assignment.serial),
                deadline_s=self._services.spec.scheduling.transfer_deadline_s,
            )
