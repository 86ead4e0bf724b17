"""Writes blocks without end and prints each key that was acknowledged; the crash tests kill it.

Usage: python writer.py ROOT SEED
"""

import asyncio
import sys

from dualpath_storage import PosixStore
from tests.storage.blocks import LAYOUT, chain


async def main(root: str, seed: int) -> None:
    blocks = chain(2000, seed=seed)
    print("opening", flush=True)
    store = PosixStore(root, LAYOUT)
    for start in range(0, len(blocks), 8):
        batch = blocks[start : start + 8]
        results = await store.put([block.write() for block in batch], deadline_s=20)
        for block, result in zip(batch, results, strict=True):
            assert result.ok, result
            print(block.key.hex(), flush=True)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], int(sys.argv[2])))
