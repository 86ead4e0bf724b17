"""Blocks as objects of a Mooncake Store: in the memory of a cluster's nodes, one object a block."""

import contextlib
import ctypes
import errno
import math
import re
import threading
from collections.abc import Iterator, Sequence
from typing import Any, final

from dualpath_storage.medium import Medium, Staged
from dualpath_storage.mooncake_master import ask_master
from dualpath_storage.mooncake_url import MooncakeLocation

_LIST_DEADLINE_S = 20.0
_KEYS_PER_CHUNK = 4096

_NO_ROOM, _OUT_OF_RANGE = -200, -600
_BEING_WRITTEN, _NOT_FOUND = -703, -704
_CAUSES = {
    -101: "a segment is not there any more",
    _NO_ROOM: "no segment of the cluster has room: more segment_bytes, on more nodes, is the remedy",
    -800: "the transfer failed: the node that holds the block does not answer",
    -900: "the master does not answer",
}


@final
class _Scratch:
    """Memory that Mooncake reads into and writes from. Registered, which a network card needs."""

    def __init__(self, client: Any, size_bytes: int) -> None:
        self.memory = bytearray(size_bytes)
        self._pin = (ctypes.c_char * size_bytes).from_buffer(self.memory)
        self.address = ctypes.addressof(self._pin)
        if client.register_buffer(self.address, size_bytes):
            raise OSError(errno.ENOMEM, f"Mooncake does not register {size_bytes} bytes of memory")


@final
class MooncakeMedium(Medium):
    """`client` is a `MooncakeDistributedStore` that is set up, `replicated` its setting for how many copies it keeps.
    `block_bytes` is how long a block is as a rule, header included; less than that is a part, and no more
    than that is moved.

    What Mooncake does not promise is made good as follows. It keeps no checksum, and a read that outlives its lease
    sees whatever was put in the block's place, a part of another block perhaps. All reads go to memory of the thread
    that asks, are copied from there to the caller's buffers once the transfer has ended, and are verified after that,
    in the buffers that the caller gets: header, key, tokens and checksum of every byte. A transfer that Mooncake gave
    up but which goes on can hit only the thread's memory, and what it does there is found in the same way.

    Mooncake makes an object visible when its last byte is written, so `stage` is all of a write. Where a damaged block
    is written anew, it is missing for the moment that this takes. Calls of Mooncake end when they end, after some
    seconds where a server hangs, and take no deadline.
    """

    def __init__(self, client: Any, replicated: Any, location: MooncakeLocation, *, block_bytes: int) -> None:
        self._client = client
        self._replicated = replicated
        self._location = location
        self._block_bytes = block_bytes
        self._own = threading.local()
        self._scratches: list[_Scratch] = []
        self._lock = threading.Lock()
        self._running = 0
        self._closed = False
        self._name = re.compile(re.escape(location.prefix) + r"([0-9a-f]{64})\.kv")

    def read(
        self, key: bytes, header: bytearray, payload: memoryview, *, deadline_at: float, skip_bytes: int = 0
    ) -> int:
        """Of the `skip_bytes` between header and payload nothing is moved."""
        first = len(header) + skip_bytes
        end = first + len(payload)
        with self._call() as client:
            if end < self._block_bytes:
                ranges = [(0, len(header)), (first, len(payload))]
                if (moved := self._ranges(client, key, ranges)) is not None:
                    header[:], payload[:] = moved[: len(header)], moved[len(header) :]
                    return end
            stored = self._first(client, key, end + 1)
            start, rest = stored[: len(header)], stored[first:end]
            header[: len(start)] = start
            payload[: len(rest)] = rest
            return len(stored)

    def peek(self, key: bytes, size_bytes: int) -> bytes:
        with self._call() as client:
            size_bytes = min(size_bytes, _checked(client.get_size(self._named(key)), key))
            moved = self._ranges(client, key, [(0, size_bytes)])
            return bytes(self._first(client, key, size_bytes) if moved is None else moved)

    def stage(self, key: bytes, header: bytes, payload: memoryview, *, deadline_at: float) -> Staged:
        size = len(header) + len(payload)
        with self._call() as client:
            scratch = self._scratch(client, size)
            scratch.memory[: len(header)] = header
            scratch.memory[len(header) : size] = payload
            _checked(client.upsert_from(self._named(key), scratch.address, size, self._replicated), key)
        return Staged(key, None)

    def commit(self, staged: Sequence[Staged], *, deadline_at: float) -> list[OSError | None]:
        return [None] * len(staged)

    def discard(self, staged: Sequence[Staged]) -> None:
        """What is visible may have been found by another writer, who relies on it."""

    def contains(self, key: bytes, *, deadline_at: float = math.inf) -> bool:
        with self._call() as client:
            return _checked(client.is_exist(self._named(key)), key) == 1

    def delete(self, key: bytes) -> None:
        """At once, also where a reader has a lease: what that reader gets is verified."""
        with self._call() as client, contextlib.suppress(FileNotFoundError):
            _checked(client.remove(self._named(key), True), key)

    def keys(self) -> Iterator[list[bytes]]:
        """From the master's HTTP address, which gives all there are at once; clients have no list."""
        try:
            listed = ask_master(self._location, "/get_all_keys", timeout_s=_LIST_DEADLINE_S)
        except OSError as error:
            raise OSError(errno.EIO, f"the master does not list its keys: {error}") from None
        names = map(self._name.fullmatch, listed.splitlines())
        keys = [bytes.fromhex(match[1]) for match in names if match]
        for start in range(0, len(keys), _KEYS_PER_CHUNK):
            yield keys[start : start + _KEYS_PER_CHUNK]

    def close(self) -> None:
        """Takes this process's segment from the cluster, with the blocks in it. Mooncake takes a second for that, and
        holds the interpreter lock. A client in which a thread is stuck is left to the end of the process, since
        closing it would pull the memory from under that thread."""
        with self._lock:
            closes = not self._closed and not self._running
            self._closed = True
        if closes:
            self._client.close()

    @contextlib.contextmanager
    def _call(self) -> Iterator[Any]:
        with self._lock:
            if self._closed:
                raise OSError(errno.EBADF, "the Mooncake client is closed")
            self._running += 1
        try:
            yield self._client
        finally:
            with self._lock:
                self._running -= 1

    def _first(self, client: Any, key: bytes, size_bytes: int) -> memoryview:
        """The first bytes of a block, in this thread's memory; less where it ends early."""
        scratch = self._scratch(client, size_bytes)
        moved = client.get_into(self._named(key), scratch.address, size_bytes)
        if moved == _OUT_OF_RANGE:  # the block is longer
            return self._ranges(client, key, [(0, size_bytes)]) or memoryview(b"")
        return memoryview(scratch.memory)[: _checked(moved, key)]

    def _ranges(self, client: Any, key: bytes, ranges: Sequence[tuple[int, int]]) -> memoryview | None:
        """These ranges (start, length) of a block one after the other, in this thread's memory; None where it is too
        short."""
        starts, sizes = map(list, zip(*ranges, strict=True))
        scratch = self._scratch(client, sum(sizes))
        into = [sum(sizes[:index]) for index in range(len(sizes))]
        name = self._named(key)
        ((moved,),) = client.get_into_ranges([scratch.address], [[name]], [[into]], [[starts]], [[sizes]])
        if _OUT_OF_RANGE in moved:
            return None
        return memoryview(scratch.memory)[: sum(_checked(count, key) for count in moved)]

    def _scratch(self, client: Any, size_bytes: int) -> _Scratch:
        """This thread's memory, with room for what is asked. It outlives the thread and stays registered as long as
        the client: transfers that were given up may go on in it, and Mooncake takes no address twice."""
        mine: _Scratch | None = getattr(self._own, "scratch", None)
        if mine is None or len(mine.memory) < size_bytes:
            mine = self._own.scratch = _Scratch(client, max(size_bytes, self._block_bytes + 1))
            with self._lock:
                self._scratches.append(mine)
        return mine

    def _named(self, key: bytes) -> str:
        return f"{self._location.prefix}{key.hex()}.kv"


def _checked(code: int, key: bytes) -> int:
    """What a call returned; its error code as an exception."""
    if code >= 0:
        return code
    if code in (_BEING_WRITTEN, _NOT_FOUND):
        raise FileNotFoundError(key.hex())
    cause = f"Mooncake error {code}" + (f": {_CAUSES[code]}" if code in _CAUSES else "")
    raise OSError(errno.ENOSPC if code == _NO_ROOM else errno.EIO, cause)
