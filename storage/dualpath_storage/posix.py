"""Blocks as files of any mounted POSIX file system: local disks, NFS, Lustre, 3FS. One file a block."""

import contextlib
import os
from collections.abc import Iterator, Sequence
from typing import final

from dualpath_storage.layout import KVLayout
from dualpath_storage.medium import Medium, Staged
from dualpath_storage.medium_store import MediumStore
from dualpath_storage.posix_folder import PosixFolder, remove_if_possible, sync_folder
from dualpath_storage.store import StoreError

_READ = os.O_RDONLY | os.O_CLOEXEC
_SCAN_CHUNK = 256
_UNUSED = _READ | getattr(os, "O_NOATIME", 0)
_CREATE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC


@final
class PosixMedium(Medium):
    """Files in a `PosixFolder`. The kernel cannot be told a deadline, so none is kept here."""

    def __init__(self, folder: PosixFolder) -> None:
        self._folder = folder
        self._beyond = bytearray(1)  # takes the byte after the block, if there is one; nobody looks at it

    def read(self, key: bytes, header: bytearray, payload: memoryview, *, deadline_at: float) -> int:
        descriptor = os.open(self._folder.path(key), _READ)
        try:
            seen = os.preadv(descriptor, (header, payload, self._beyond), 0)
            while 0 < seen < len(header) + len(payload):  # truncated, or a file system that reads in pieces
                more = os.preadv(descriptor, _after((header, payload, self._beyond), seen), seen)
                if more == 0:
                    break
                seen += more
            return seen
        finally:
            os.close(descriptor)

    def peek(self, key: bytes, size_bytes: int) -> bytes:
        descriptor = _open_unused(self._folder.path(key))
        try:
            return os.pread(descriptor, size_bytes, 0)
        finally:
            os.close(descriptor)

    def stage(self, key: bytes, header: bytes, payload: memoryview, *, deadline_at: float) -> Staged:
        part = self._folder.new_part()
        descriptor = os.open(part, _CREATE, 0o666)
        try:
            written = 0
            while written < len(header) + len(payload):
                written += os.writev(descriptor, _after((header, payload), written))
            os.fsync(descriptor)
        except BaseException:
            remove_if_possible(part)
            raise
        finally:
            os.close(descriptor)
        return Staged(key, part)

    def commit(self, staged: Sequence[Staged], *, deadline_at: float) -> list[OSError | None]:
        outcomes = [self._rename(block) for block in staged]
        paths = [self._folder.path(block.key) for block in staged]
        synced = {folder: _try_sync(folder) for folder in {os.path.dirname(path) for path in paths}}
        return [outcome or synced[os.path.dirname(path)] for outcome, path in zip(outcomes, paths, strict=True)]

    def discard(self, staged: Sequence[Staged]) -> None:
        for block in staged:
            if isinstance(block.handle, str):
                remove_if_possible(block.handle)

    def contains(self, key: bytes) -> bool:
        return os.path.exists(self._folder.path(key))

    def last_used_s(self, key: bytes) -> float:
        """As exact as the mount keeps access times: to a day under `relatime`, from the writing on under `noatime`."""
        status = os.stat(self._folder.path(key))
        return max(status.st_atime, status.st_mtime)

    def delete(self, key: bytes) -> None:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self._folder.path(key))

    def keys(self) -> Iterator[list[bytes]]:
        chunk: list[bytes] = []
        for subfolder in self._folder.subfolders:
            chunk += self._folder.keys_of(subfolder)
            if len(chunk) >= _SCAN_CHUNK:
                yield chunk
                chunk = []
        yield chunk

    def close(self) -> None:
        self._folder.close()

    def _rename(self, block: Staged) -> OSError | None:
        if not isinstance(block.handle, str):
            return None
        try:
            os.rename(block.handle, self._folder.path(block.key))
        except OSError as error:
            self.discard([block])
            return error
        return None


@final
class PosixStore(MediumStore):
    """`file:///folder`: a folder that any number of processes and hosts may have open at once.

    Makes the folder where it is missing and removes what dead writers left in it. Raises StoreError where `root` is
    not an absolute path, is a file, cannot be written to, or holds something else.
    """

    def __init__(self, root: str | os.PathLike[str], layout: KVLayout, *, threads: int = 4) -> None:
        self._root = os.fspath(root)
        if not os.path.isabs(self._root):
            raise StoreError(f"store folder {self._root!r} is a relative path: give an absolute one")
        super().__init__(PosixMedium(PosixFolder(self._root)), layout, threads=threads)

    @property
    def url(self) -> str:
        return f"file://{self._root}"


def _after(parts: Sequence[bytes | bytearray | memoryview], skip: int) -> list[memoryview]:
    """What is left of `parts`, laid end to end, after their first `skip` bytes."""
    left = []
    for part in parts:
        left.append(memoryview(part)[skip:])
        skip = max(0, skip - len(part))
    return left


def _try_sync(folder: str) -> OSError | None:
    try:
        sync_folder(folder)
    except OSError as error:
        return error
    return None


def _open_unused(path: str) -> int:
    """Open a file for a look that does not count as use; only its owner may ask for that."""
    try:
        return os.open(path, _UNUSED)
    except PermissionError:
        return os.open(path, _READ)
