"""Block stores against plain loops that move the same bytes and check nothing.

    python benchmarks/store.py [--backends=posix,s3,mooncake] [--rounds=9] [--megabytes=64] [--folder=/mnt/disk]

Both sides fill the same buffers from the same files, one round of each in turn, and medians are compared: on a shared
machine only the ratio of the rates means anything. A plain loop is one thread that goes from file to file: `preadv` of
what follows the header; write, fsync and rename. For an object store it is as many threads as the store has, in bare
TensorStore, and for Mooncake in its own `get` and `put`; both read into memory of their own. A store verifies what it
reads, and computes checksums and syncs folders where it writes. CPU seconds are the whole process's, all threads
together, per 10^9 bytes of blocks.
"""

import asyncio
import dataclasses
import os
import statistics
import time
from collections.abc import Mapping, Sequence

from absl import app, flags

from benchmarks.stores.contest import Backend, Blocks, Contest, MissingError, Setting, Step
from benchmarks.stores.mooncake import mooncake
from benchmarks.stores.posix import HOW_COLD, posix
from benchmarks.stores.s3 import s3

ROUNDS = flags.DEFINE_integer("rounds", 9, "Rounds of each side.", lower_bound=1)
MEGABYTES = flags.DEFINE_integer("megabytes", 64, "MiB that one round moves.", lower_bound=4)
FOLDER = flags.DEFINE_string("folder", None, "Where files are written; a temporary folder by default.")
BACKENDS = flags.DEFINE_list("backends", None, "Which backends to measure; all by default.")

BLOCK_BYTES = (256 << 10, 4 << 20)


ALL_BACKENDS: Mapping[str, Backend] = {"posix": posix, "s3": s3, "mooncake": mooncake}


@dataclasses.dataclass
class Times:
    """One side's rounds."""

    wall_s: list[float] = dataclasses.field(default_factory=list)
    cpu_s: list[float] = dataclasses.field(default_factory=list)

    async def measure(self, ready: Step, work: Step) -> None:
        await ready()
        wall, cpu = time.perf_counter(), time.process_time()
        await work()
        self.wall_s.append(time.perf_counter() - wall)
        self.cpu_s.append(time.process_time() - cpu)


async def run(backend: str, contest: Contest, blocks: Blocks) -> None:
    """One line: medians of the rounds after the first, sides interleaved."""
    plain, store = Times(), Times()
    for _ in range(ROUNDS.value + 1):
        await plain.measure(*contest.plain)
        await store.measure(*contest.store)
    wall = [statistics.median(times.wall_s[1:]) for times in (plain, store)]
    cpu = [statistics.median(times.cpu_s[1:]) for times in (plain, store)]
    gigabytes = blocks.total_bytes / 1e9
    ratio = wall[0] / wall[1]
    target = f" (to reach: {contest.target})" if contest.target else ""
    print(
        f"{backend}, {contest.name}, {len(blocks.reads)} x {blocks.layout.block_bytes >> 10} KiB: "
        f"plain {gigabytes / wall[0]:.2f} GB/s, store {gigabytes / wall[1]:.2f} GB/s, ratio {ratio:.2f}{target}; "
        f"CPU {cpu[0] / gigabytes:.2f} and {cpu[1] / gigabytes:.2f} s/GB",
        flush=True,
    )


async def run_all(names: Sequence[str]) -> None:
    """All contests of the backends, size by size."""
    setting = Setting(rounds=ROUNDS.value, folder=FOLDER.value)
    print(f"cold: after {HOW_COLD}; {os.cpu_count()} CPUs, load {os.getloadavg()[0]:.1f}")
    for block_bytes in BLOCK_BYTES:
        blocks = Blocks.of_size(block_bytes, MEGABYTES.value << 20)
        for name in names:
            try:
                async with ALL_BACKENDS[name](blocks, setting) as contests:
                    for contest in contests:
                        await run(name, contest, blocks)
            except MissingError as reason:
                print(f"{name} is not measured: {reason}", flush=True)


def main(_: list[str]) -> None:
    names = BACKENDS.value or list(ALL_BACKENDS)
    if unknown := sorted(set(names) - set(ALL_BACKENDS)):
        raise SystemExit(f"--backends has {unknown[0]!r}: expected some of {', '.join(ALL_BACKENDS)}")
    asyncio.run(run_all(names))


if __name__ == "__main__":
    app.run(main)
