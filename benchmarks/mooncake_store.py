"""Verified reads through `MooncakeStore`, against Mooncake's own `get` of the same blocks.

A master and a node that lends memory run in processes of their own, and blocks come over TCP on 127.0.0.1, so they
share the processors with what is measured. Bare reads are made by as many threads as the store has; nothing is checked,
and what was read stays where Mooncake put it. Prints medians over interleaved rounds, the processor seconds of this
process a GB, and the ratio of the rates: only the ratio means anything on a shared machine.
"""

import asyncio
import os
import statistics
import time
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from absl import app, flags

from dualpath_storage import BlockRead, BlockResult, BlockWrite, KVLayout, chain_keys
from dualpath_storage.block_format import HEADER_BYTES
from dualpath_storage.mooncake_store import MooncakeStore
from dualpath_storage.mooncake_url import parse_mooncake_url
from tests.mooncake import Mooncake, running_mooncake, why_no_mooncake

ROUNDS = flags.DEFINE_integer("rounds", 15, "Rounds of each side.", lower_bound=1)
BATCH = flags.DEFINE_integer("batch_bytes", 64 << 20, "Bytes that one batch reads.", lower_bound=1 << 22)
THREADS = flags.DEFINE_integer("threads", 8, "Threads of the store, and of bare reads.", lower_bound=1)

LAYERS = 8
TOKENS = 64
ROOM = 4
"""The segment's size, in batches: a master evicts long before one is full."""

Side = Callable[[], Awaitable[None]]


def bare_client(master: str, buffer_bytes: int) -> Any:
    from mooncake.store import MooncakeDistributedStore

    client = MooncakeDistributedStore()
    if client.setup("127.0.0.1", "P2PHANDSHAKE", 0, buffer_bytes, "tcp", "", master):
        raise SystemExit("Mooncake refuses; its log says why")
    return client


async def measure(cluster: Mooncake, block_bytes: int) -> None:
    """Both sides in turn; prints a line."""
    width = block_bytes // (LAYERS * TOKENS)
    layout = KVLayout.mla(layers=LAYERS, latent=width - width // 8, rope=width // 8, dtype="uint8", block_tokens=TOKENS)
    count = BATCH.value // block_bytes
    url = cluster.url()
    store = MooncakeStore(url, layout, threads=THREADS.value)
    client = bare_client(cluster.master, 2 * THREADS.value * (HEADER_BYTES + block_bytes))
    keys = chain_keys(os.urandom(32), [0] * (count * TOKENS), TOKENS)
    names = [f"{parse_mooncake_url(url).prefix}{key.hex()}.kv" for key in keys]
    buffers = [memoryview(bytearray(os.urandom(block_bytes))) for _ in keys]
    tokens = bytes(4 * TOKENS)
    writes = [BlockWrite(key, bytes(32), tokens, data) for key, data in zip(keys, buffers, strict=True)]
    check(await store.put(writes, deadline_s=300))
    reads = [BlockRead(key, tokens, into) for key, into in zip(keys, buffers, strict=True)]

    with ThreadPoolExecutor(THREADS.value) as pool:

        async def bare() -> None:
            if any(len(found) != HEADER_BYTES + block_bytes for found in pool.map(client.get, names)):
                raise SystemExit("a bare read failed")

        async def ours() -> None:
            check(await store.get(reads, deadline_s=300))

        sides: dict[str, Side] = {"bare": bare, "store": ours}
        taken: dict[str, list[tuple[float, float]]] = {name: [] for name in sides}
        for _ in range(ROUNDS.value + 1):  # the first round is not counted
            for name, side in sides.items():
                taken[name].append(await timed(side))
    report(f"read {block_bytes >> 10:5d} KiB x {count:4d}", count * block_bytes / 1e9, taken)
    await store.delete(keys)
    await store.close()
    client.close()


def check(results: list[BlockResult]) -> None:
    bad = [result for result in results if not result.ok]
    if bad:
        raise SystemExit(f"an operation failed: {bad[0]}")


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
    if reason := why_no_mooncake():
        print(f"not measured: {reason}")
        return
    os.environ["MC_TCP_BIND_ADDRESS"] = "127.0.0.1"
    with running_mooncake(segment_bytes=ROOM * BATCH.value) as cluster:
        for block_bytes in (256 << 10, 4 << 20):
            asyncio.run(measure(cluster, block_bytes))


if __name__ == "__main__":
    app.run(main)
