"""Files, read through the page cache, cold, and past it, against a plain loop."""

import contextlib
import os
import tempfile
from collections.abc import AsyncIterator

from benchmarks.stores.contest import Blocks, Contest, Setting, get, nothing, put
from dualpath_storage import PosixStore, StoreError
from dualpath_storage.block_format import HEADER_BYTES

DROP_CACHES = "/proc/sys/vm/drop_caches"
HOW_COLD = "dropping all caches" if os.access(DROP_CACHES, os.W_OK) else "POSIX_FADV_DONTNEED"


@contextlib.asynccontextmanager
async def posix(blocks: Blocks, setting: Setting) -> AsyncIterator[list[Contest]]:
    """A folder of files, read through the page cache and past it."""
    with tempfile.TemporaryDirectory(dir=setting.folder) as folder:
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
