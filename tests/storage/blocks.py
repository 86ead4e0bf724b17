"""Small blocks, and raw access to what a store has of them."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from dualpath_storage import BlockRead, BlockWrite, KVIdentity, KVLayout, chain_keys, token_bytes
from dualpath_storage.block_format import HEADER_BYTES
from dualpath_storage.medium_store import MediumStore

REPOSITORY = Path(__file__).parents[2]
LAYOUT = KVLayout.mla(layers=3, latent=12, rope=4, dtype="uint8", block_tokens=4)
OTHER_LAYOUT = KVLayout.mla(layers=3, latent=8, rope=8, dtype="uint8", block_tokens=4)
FILE_BYTES = HEADER_BYTES + LAYOUT.block_bytes


@dataclass(frozen=True)
class Block:
    """A block of a chain, with the bytes that belong under its key."""

    key: bytes
    parent: bytes
    tokens: bytes
    data: bytes

    def write(self) -> BlockWrite:
        return BlockWrite(self.key, self.parent, self.tokens, memoryview(self.data))

    def read(self, into: bytearray | memoryview | None = None) -> BlockRead:
        buffer = bytearray(len(self.data)) if into is None else into
        return BlockRead(self.key, self.tokens, memoryview(buffer))


def chain(count: int, *, seed: int = 0, layout: KVLayout = LAYOUT) -> list[Block]:
    """Blocks of one sequence; the same seed gives the same keys and bytes in every process."""
    random = np.random.default_rng(seed)
    tokens = random.integers(0, 1000, count * layout.block_tokens)
    root = KVIdentity("model", "weights", 0, layout.digest.hex(), layout.block_tokens).root(f"tenant {seed}")
    keys = chain_keys(root, tokens, layout.block_tokens)
    return [
        Block(key, parent, token_bytes(ids), random.bytes(layout.block_bytes))
        for key, parent, ids in zip(keys, [root, *keys], tokens.reshape(count, -1), strict=False)
    ]


async def put_all(store: MediumStore, blocks: Sequence[Block]) -> None:
    results = await store.put([block.write() for block in blocks], deadline_s=20)
    assert all(result.ok for result in results), results


async def statuses(store: MediumStore, blocks: Sequence[Block], *, deadline_s: float = 20) -> list[str]:
    """What a `get` says of each block; an OK block with other bytes than its own fails the test."""
    reads = [block.read() for block in blocks]
    results = await store.get(reads, deadline_s=deadline_s)
    for block, read, result in zip(blocks, reads, results, strict=True):
        assert not result.ok or bytes(read.into) == block.data
    return [result.status.value for result in results]


def raw(store: MediumStore, block: Block) -> bytes:
    """All bytes that the store's medium has of a block."""
    return store.medium.peek(block.key, 1 << 20)


def overwrite(store: MediumStore, block: Block, stored: bytes) -> None:
    """Put other bytes in a block's place, past all checks."""
    parts = stored[:HEADER_BYTES], memoryview(stored[HEADER_BYTES:])
    staged = store.medium.stage(block.key, *parts, deadline_at=float("inf"))
    assert store.medium.commit([staged], deadline_at=float("inf")) == [None]
