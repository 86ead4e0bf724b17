"""What the contests of all backends are made of: blocks, the two sides of a line, and a store's side."""

import contextlib
import dataclasses
import mmap
import os
from collections.abc import Awaitable, Callable, Sequence

from dualpath_storage import BlockRead, BlockResult, BlockStore, BlockWrite, KVLayout, chain_keys

LAYERS = 8
TOKENS = 64
DEADLINE_S = 300.0


@dataclasses.dataclass(frozen=True)
class Blocks:
    """The blocks that all contests of one size move: one chain of keys, random data, and buffers to read into."""

    layout: KVLayout
    reads: Sequence[BlockRead]
    writes: Sequence[BlockWrite]

    @property
    def total_bytes(self) -> int:
        return len(self.reads) * self.layout.block_bytes

    @classmethod
    def of_size(cls, block_bytes: int, total_bytes: int) -> "Blocks":
        """As many as are in `total_bytes`; their pages are there, and aligned as those of a host arena are."""
        width = block_bytes // (LAYERS * TOKENS)
        rope = width // 8
        layout = KVLayout.mla(layers=LAYERS, latent=width - rope, rope=rope, dtype="uint8", block_tokens=TOKENS)
        count = total_bytes // block_bytes
        keys, tokens = chain_keys(bytes(32), [0] * (count * TOKENS), TOKENS), bytes(4 * TOKENS)
        memory = memoryview(mmap.mmap(-1, count * block_bytes))
        memory[:] = os.urandom(count * block_bytes)
        views = [memory[start : start + block_bytes] for start in range(0, len(memory), block_bytes)]
        reads = [BlockRead(key, tokens, view) for key, view in zip(keys, views, strict=True)]
        parents = [bytes(32), *keys]
        writes = [BlockWrite(read.key, parent, tokens, read.into) for read, parent in zip(reads, parents, strict=False)]
        return cls(layout, reads, writes)


Step = Callable[[], Awaitable[None]]


@dataclasses.dataclass(frozen=True)
class Contest:
    """One line of the table, each side with what readies it, whose time does not count. No target: for orientation."""

    name: str
    plain: tuple[Step, Step]
    store: tuple[Step, Step]
    target: float | None = None


@dataclasses.dataclass(frozen=True)
class Setting:
    """How often each side moves all blocks, after a first round that does not count; where files go, if it matters."""

    rounds: int
    folder: str | None


Backend = Callable[[Blocks, Setting], contextlib.AbstractAsyncContextManager[list[Contest]]]
"""Opens a store and whatever it needs, and gives its contests; closes both in the end. Raises `MissingError`."""


class MissingError(Exception):
    """A backend cannot be measured here; says why."""


async def nothing() -> None:
    """For contests that need no preparation."""


async def get(store: BlockStore, blocks: Blocks) -> None:
    """One round of verified reads."""
    check(await store.get(blocks.reads, deadline_s=DEADLINE_S))


async def put(store: BlockStore, blocks: Blocks) -> None:
    """One round of writes."""
    check(await store.put(blocks.writes, deadline_s=DEADLINE_S))


def check(results: Sequence[BlockResult]) -> None:
    """A round that did not do all its work must not count."""
    if failed := [result for result in results if not result.ok]:
        raise SystemExit(f"{len(failed)} of {len(results)} blocks failed: {failed[0]}")
