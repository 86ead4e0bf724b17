"""Blocks as files of any mounted POSIX file system: local disks, NFS, Lustre, 3FS. One file a block."""

import contextlib
import math
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import final

from dualpath_storage.layout import KVLayout
from dualpath_storage.medium import Look, Medium, Staged
from dualpath_storage.medium_store import MediumStore
from dualpath_storage.posix_folder import PosixFolder, remove_if_possible, start_writeback, sync_folder
from dualpath_storage.posix_reads import PIECE_BYTES, DirectReads, after, check_direct, fill_buffered
from dualpath_storage.store import StoreError

_READ = os.O_RDONLY | os.O_CLOEXEC
_SCAN_CHUNK = 256
_CREATE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC


@final
class PosixMedium(Medium):
    """Files in a `PosixFolder`. The kernel cannot be told a deadline, so none is kept here."""

    def __init__(self, folder: PosixFolder, *, direct: bool) -> None:
        self._folder = folder
        self._read_flags = _READ | os.O_DIRECT if direct else _READ
        self._fill = DirectReads().fill if direct else fill_buffered
        self._piece_bytes = sys.maxsize if direct else PIECE_BYTES

    def read(
        self, key: bytes, header: bytearray, payload: memoryview, *, deadline_at: float, skip_bytes: int = 0
    ) -> int:
        descriptor = os.open(self._folder.path(key), self._read_flags)
        try:
            if not skip_bytes:
                return self._fill(descriptor, (header, payload), 0)
            start = len(header) + skip_bytes
            seen = self._fill(descriptor, (header,), 0)
            if seen > len(header) and (more := self._fill(descriptor, (payload,), start)):
                return start + more
            return min(seen, start)
        finally:
            os.close(descriptor)

    def read_whole(self, key: bytes, header: bytearray, payload: memoryview, look: Look, *, deadline_at: float) -> int:
        descriptor = os.open(self._folder.path(key), self._read_flags)
        try:
            seen = 0
            for start in range(0, len(payload), self._piece_bytes):
                piece = payload[start : start + self._piece_bytes]
                parts, offset = ((piece,), len(header) + start) if start else ((header, piece), 0)
                seen = offset + self._fill(descriptor, parts, offset)
                look(piece)
                if seen < len(header) + start + len(piece):
                    break
            return seen
        finally:
            os.close(descriptor)

    def peek(self, key: bytes, size_bytes: int) -> bytes:
        descriptor = os.open(self._folder.path(key), _READ)
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
                written += os.writev(descriptor, after((header, payload), written))
            start_writeback(descriptor)
        except BaseException:
            os.close(descriptor)
            remove_if_possible(part)
            raise
        return Staged(key, _Part(part, descriptor))

    def commit(self, staged: Sequence[Staged], *, deadline_at: float) -> list[OSError | None]:
        """Syncs of a group follow each other, so the file system makes one transaction of most of it."""
        paths = [self._folder.path(block.key) for block in staged]
        outcomes = [_try(_sync_part, block) for block in staged]
        for i, block in enumerate(staged):
            outcomes[i] = outcomes[i] or _try(_rename_part, block, paths[i])
        self.discard([block for block, outcome in zip(staged, outcomes, strict=True) if outcome])
        synced = {folder: _try(sync_folder, folder) for folder in {os.path.dirname(path) for path in paths}}
        return [outcome or synced[os.path.dirname(path)] for outcome, path in zip(outcomes, paths, strict=True)]

    def discard(self, staged: Sequence[Staged]) -> None:
        for block in staged:
            if isinstance(block.handle, _Part):
                block.handle.close()
                remove_if_possible(block.handle.path)

    def contains(self, key: bytes, *, deadline_at: float = math.inf) -> bool:
        return os.path.exists(self._folder.path(key))

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


@final
class PosixStore(MediumStore):
    """`file:///folder`: a folder that any number of processes and hosts may have open at once.

    Makes the folder where it is missing and removes what dead writers left in it. With `direct` (`?direct=1`), reads go
    past the page cache. Raises StoreError where `root` is not an absolute path, is a file, cannot be written to, or
    holds something else, and where its file system has no such reads.
    """

    def __init__(
        self, root: str | os.PathLike[str], layout: KVLayout, *, threads: int = 4, direct: bool = False
    ) -> None:
        self._root = os.fspath(root)
        if not os.path.isabs(self._root):
            raise StoreError(f"store folder {self._root!r} is a relative path: give an absolute one")
        self._direct = direct
        folder = PosixFolder(self._root)
        try:
            if direct:
                check_direct(folder.marker)
        except StoreError:
            folder.close()
            raise
        super().__init__(PosixMedium(folder, direct=direct), layout, threads=threads)

    @property
    def url(self) -> str:
        return f"file://{self._root}{'?direct=1' if self._direct else ''}"


@final
class _Part:
    """A file that is written and not yet durable. It stays open: a failed writeback is reported to who has it open."""

    def __init__(self, path: str, descriptor: int) -> None:
        self.path = path
        self.descriptor = descriptor

    def close(self) -> None:
        """Safe to call twice."""
        descriptor, self.descriptor = self.descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)


def _sync_part(block: Staged) -> None:
    if isinstance(block.handle, _Part):
        os.fsync(block.handle.descriptor)
        block.handle.close()


def _rename_part(block: Staged, path: str) -> None:
    if isinstance(block.handle, _Part):
        os.rename(block.handle.path, path)


def _try(step: Callable[..., None], *arguments: object) -> OSError | None:
    try:
        step(*arguments)
    except OSError as error:
        return error
    return None
