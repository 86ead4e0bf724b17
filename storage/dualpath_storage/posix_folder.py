"""The folder of a POSIX store: what lies where, opening it, and cleaning up after writers that died.

    root/dualpath-kv-store          marker: format name and version
    root/<2 hex digits>/<key>.kv    one file a block, by the first byte of its key
    root/tmp/<writer>.lock          held with flock as long as the writer lives
    root/tmp/<writer>-<n>.part      a block that the writer is writing

A writer is one open store, not one process. Its lock is made before its first file and removed after the last, so a
file whose writer's lock is gone, or can be taken, has no living writer; this holds for writers on other hosts too,
which a process id would not say.
"""

import contextlib
import errno
import fcntl
import itertools
import os
import re
import secrets
from typing import final

from dualpath_storage.store import StoreError

_MARKER = "dualpath-kv-store"
_MARKER_TEXT = "dualpath-kv-store 1\n"
_TMP = "tmp"
_LOST_FOUND = "lost+found"  # at the top of a file system made for the store alone
_SUFFIX = ".kv"
_BLOCK_NAME = re.compile(rf"[0-9a-f]{{64}}{re.escape(_SUFFIX)}").fullmatch
_FAN_OUT = [f"{value:02x}" for value in range(256)]


@final
class PosixFolder:
    """An open root. Raises StoreError where it cannot be used."""

    def __init__(self, root: str) -> None:
        self.root = root
        self._tmp = os.path.join(root, _TMP)
        self._writer = ""
        self._lock = -1
        self._count = itertools.count()
        try:
            self._open()
        except OSError as error:
            self.close()
            raise StoreError(f"store folder {root}: {error}: give a folder that can be written to") from error

    def path(self, key: bytes) -> str:
        """Where a block lies."""
        name = key.hex()
        return f"{self.root}/{name[:2]}/{name}{_SUFFIX}"

    def new_part(self) -> str:
        """A path of this writer's own, on the file system of the blocks."""
        return f"{self._tmp}/{self._writer}-{next(self._count)}.part"

    def keys_of(self, subfolder: str) -> list[bytes]:
        """The keys whose files lie in one of `subfolders`; anything else there is skipped."""
        return [bytes.fromhex(name[:64]) for name in os.listdir(f"{self.root}/{subfolder}") if _BLOCK_NAME(name)]

    @property
    def marker(self) -> str:
        """The path of the file that says what the folder is."""
        return f"{self.root}/{_MARKER}"

    @property
    def subfolders(self) -> list[str]:
        return _FAN_OUT

    def close(self) -> None:
        """Give up the writer's lock. Safe to call twice."""
        if self._lock >= 0:
            remove_if_possible(f"{self._tmp}/{self._writer}.lock")
            os.close(self._lock)
            self._lock = -1

    def _open(self) -> None:
        if os.path.exists(self.root) and not os.path.isdir(self.root):
            raise StoreError(f"store folder {self.root} is a file: give a folder, or a path where one can be made")
        _make_durably(self.root)
        present = set(os.listdir(self.root))
        self._check_marker(present)
        for name in {_TMP, *_FAN_OUT} - present:
            os.makedirs(os.path.join(self.root, name), exist_ok=True)
        self._take_lock()
        if _MARKER not in present:
            self._write_marker()
        sync_folder(self.root)  # also where another writer made the subfolders: it may not have come to this yet
        self._remove_dead_writers()

    def _check_marker(self, present: set[str]) -> None:
        """Take an empty folder, a store of this version, or what a store's interrupted first opening left."""
        if _MARKER in present:
            with open(os.path.join(self.root, _MARKER)) as file:
                text = file.read(100)
            if text != _MARKER_TEXT:
                raise StoreError(
                    f"store folder {self.root} is marked {text.strip()!r}: this library reads "
                    f"{_MARKER_TEXT.strip()!r}; give another folder, or remove this one"
                )
        elif strangers := sorted(present - {_TMP, _LOST_FOUND, *_FAN_OUT}):
            raise StoreError(
                f"store folder {self.root} is no block store and holds {strangers[0]!r}: give an empty or a new folder"
            )

    def _write_marker(self) -> None:
        part = self.new_part()
        with open(part, "w") as file:
            file.write(_MARKER_TEXT)
            file.flush()
            os.fsync(file.fileno())
        os.rename(part, os.path.join(self.root, _MARKER))

    def _take_lock(self) -> None:
        while self._lock < 0:
            writer = secrets.token_hex(8)
            path = f"{self._tmp}/{writer}.lock"
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
            self._writer, self._lock = writer, descriptor
            if not (self._try_lock(descriptor) and _is_same_file(descriptor, path)):
                os.close(descriptor)  # an opening store found it between the two calls, and removed it
                self._lock = -1

    def _remove_dead_writers(self) -> None:
        names = os.listdir(self._tmp)
        for writer in {name.partition("-")[0].removesuffix(".lock") for name in names} - {self._writer}:
            lock = f"{self._tmp}/{writer}.lock"
            with contextlib.suppress(OSError), contextlib.ExitStack() as stack:
                with contextlib.suppress(FileNotFoundError):
                    descriptor = os.open(lock, os.O_RDWR | os.O_CLOEXEC)
                    stack.callback(os.close, descriptor)
                    if not self._try_lock(descriptor):
                        continue
                for name in names:
                    if name.startswith(f"{writer}-"):
                        remove_if_possible(f"{self._tmp}/{name}")
                remove_if_possible(lock)

    def _try_lock(self, descriptor: int) -> bool:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        except OSError as error:
            self.close()
            raise StoreError(
                f"store folder {self.root} cannot be locked ({error.strerror}): mount its file system with flock "
                f"(Lustre: -o flock), or give another folder"
            ) from error
        return True


def sync_folder(path: str) -> None:
    """Make the names in a folder durable."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno != errno.EINVAL:  # EINVAL: this file system has no such operation, nor a need for it
            raise
    finally:
        os.close(descriptor)


def start_writeback(descriptor: int) -> None:
    """Let the device begin with what was written, so that a later fsync finds it done; a hint, which may do nothing.

    To be told that pages are not needed any more makes Linux write those that are dirty, without waiting for them.
    """
    os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)


def remove_if_possible(path: str) -> None:
    """Remove a file that is worth nothing; where that fails, the next opening of the store tries again."""
    with contextlib.suppress(OSError):
        os.unlink(path)


def _is_same_file(descriptor: int, path: str) -> bool:
    try:
        return os.path.samestat(os.fstat(descriptor), os.stat(path))
    except FileNotFoundError:
        return False


def _make_durably(path: str) -> None:
    if not os.path.isdir(path):
        parent = os.path.dirname(path)
        _make_durably(parent)
        os.makedirs(path, exist_ok=True)
        sync_folder(parent)
