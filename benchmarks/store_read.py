"""Reads with verification through `PosixStore`, from page cache, against plain `preadv` into the same buffers.

Prints the median of both over interleaved rounds, and the ratio of their rates; only the ratio means anything on a
shared machine. The plain loop is one thread that opens, reads and closes file after file and checks nothing.
"""

import asyncio
import os
import statistics
import tempfile
import time

from absl import app, flags

from dualpath_storage import BlockRead, BlockWrite, KVLayout, PosixStore, chain_keys

ROUNDS = flags.DEFINE_integer("rounds", 30, "Rounds of each side.", lower_bound=1)
BATCH = flags.DEFINE_integer("batch_bytes", 64 << 20, "Bytes that one batch reads.", lower_bound=1 << 22)
THREADS = flags.DEFINE_integer("threads", 4, "Threads of the store.", lower_bound=1)
FOLDER = flags.DEFINE_string("folder", None, "Where the blocks are written; a temporary folder by default.")

LAYERS = 8
TOKENS = 64


def block_reads(layout: KVLayout, blocks: int) -> list[BlockRead]:
    """Reads of a chain of blocks of token 0, into buffers whose pages are there."""
    keys = chain_keys(bytes(32), [0] * (blocks * layout.block_tokens), layout.block_tokens)
    tokens = bytes(4 * layout.block_tokens)
    return [BlockRead(key, tokens, memoryview(bytearray(os.urandom(layout.block_bytes)))) for key in keys]


def plain(paths: list[str], reads: list[BlockRead]) -> float:
    """Seconds of a plain loop; skips the header by its offset."""
    start = time.perf_counter()
    for path, read in zip(paths, reads, strict=True):
        descriptor = os.open(path, os.O_RDONLY)
        os.preadv(descriptor, [read.into], 4096)
        os.close(descriptor)
    return time.perf_counter() - start


async def verified(store: PosixStore, reads: list[BlockRead]) -> float:
    """Seconds of one `get`."""
    start = time.perf_counter()
    results = await store.get(reads, deadline_s=60)
    seconds = time.perf_counter() - start
    if not all(result.ok for result in results):
        raise SystemExit(f"a read failed: {next(result for result in results if not result.ok)}")
    return seconds


async def measure(folder: str, block_bytes: int) -> None:
    """Write blocks, read them in both ways, print a line."""
    width = block_bytes // (LAYERS * TOKENS)
    layout = KVLayout.mla(layers=LAYERS, latent=width - width // 8, rope=width // 8, dtype="uint8", block_tokens=TOKENS)
    reads = block_reads(layout, BATCH.value // block_bytes)
    store = PosixStore(folder, layout, threads=THREADS.value)
    writes = [BlockWrite(read.key, bytes(32), read.tokens, read.into) for read in reads]
    await store.put(writes, deadline_s=300)
    paths = [os.path.join(folder, key[:2], f"{key}.kv") for key in (read.key.hex() for read in reads)]
    sides: dict[str, list[float]] = {"plain": [], "store": []}
    for _ in range(ROUNDS.value + 1):
        sides["plain"].append(plain(paths, reads))
        sides["store"].append(await verified(store, reads))
    await store.close()
    seconds = {name: statistics.median(values[1:]) for name, values in sides.items()}
    rates = {name: f"{len(reads) * block_bytes / value / 1e9:.2f} GB/s" for name, value in seconds.items()}
    per_block_us = 1e6 * seconds["store"] / len(reads)
    print(
        f"{block_bytes >> 10:5d} KiB x {len(reads):4d}: plain {rates['plain']}, store {rates['store']} "
        f"({per_block_us:.0f} us a block), ratio {seconds['plain'] / seconds['store']:.2f}"
    )


def main(_: list[str]) -> None:
    for block_bytes in (256 << 10, 4 << 20):
        with tempfile.TemporaryDirectory(dir=FOLDER.value) as folder:
            asyncio.run(measure(folder, block_bytes))


if __name__ == "__main__":
    app.run(main)
