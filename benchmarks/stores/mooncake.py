"""Mooncake against itself: a master and a node on this machine, whose processor time counts as nobody's."""

import contextlib
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from benchmarks.stores.contest import Blocks, Contest, MissingError, Setting, get, nothing, put
from dualpath_storage.block_format import HEADER_BYTES
from dualpath_storage.mooncake_store import MooncakeStore
from tests.mooncake import running_mooncake, why_no_mooncake

ROOM = 5
"""The segment's size, in rounds: it has one of each side, and a master evicts long before a segment is full."""


@contextlib.asynccontextmanager
async def mooncake(blocks: Blocks, _: Setting) -> AsyncIterator[list[Contest]]:
    """Over TCP on 127.0.0.1."""
    if reason := why_no_mooncake():
        raise MissingError(reason)
    with running_mooncake(segment_bytes=ROOM * blocks.total_bytes) as cluster:
        store = MooncakeStore(cluster.url("store"), blocks.layout)
        buffer_bytes = 2 * store.threads * (HEADER_BYTES + blocks.layout.block_bytes)
        bare = BareMooncake(cluster.client(buffer_bytes=buffer_bytes), blocks, threads=store.threads)
        keys = [read.key for read in blocks.reads]
        yield [
            Contest("write", (bare.remove, bare.write), (lambda: store.delete(keys), lambda: put(store, blocks))),
            Contest("read", (nothing, bare.read), (nothing, lambda: get(store, blocks))),
        ]
        bare.close()
        await store.close()


class BareMooncake:
    """Mooncake's own `put` and `get` of bytes, asked by as many threads as a store has; nothing is checked."""

    def __init__(self, client: Any, blocks: Blocks, *, threads: int) -> None:
        self._client = client
        self._objects = {write.key.hex(): bytes(HEADER_BYTES) + write.data for write in blocks.writes}
        self._threads = ThreadPoolExecutor(threads)

    async def write(self) -> None:
        self._all(lambda name: self._client.put(name, self._objects[name]) == 0)

    async def read(self) -> None:
        self._all(lambda name: len(self._client.get(name)) == len(self._objects[name]))

    async def remove(self) -> None:
        self._all(lambda name: self._client.remove(name, True) <= 0)

    def close(self) -> None:
        self._threads.shutdown()
        self._client.close()

    def _all(self, done: Callable[[str], bool]) -> None:
        if not all(self._threads.map(done, self._objects)):
            raise SystemExit("a bare operation of Mooncake failed; its log says why")
