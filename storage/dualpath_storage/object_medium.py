"""Blocks as objects of a TensorStore key-value store: one object a block, header and payload in one."""

import math
import re
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import final

import numpy as np
import tensorstore

from dualpath_storage.medium import Look, Medium, Staged
from dualpath_storage.object_requests import RequestError, perform, perform_all

Found = tensorstore.KvStore.ReadResult

_CALL_DEADLINE_S = 20.0
_NAME = re.compile(rb"[0-9a-f]{2}/([0-9a-f]{64})\.kv")
_LISTS_AT_ONCE = 16
_BEYOND_ITS_END = "OUT_OF_RANGE"
_NOTHING = slice(0, 0)
_ALL = slice(0, None)


@final
class ObjectMedium(Medium):
    """`kv` holds blocks under the names that a POSIX store's folder has for them, so that either can be copied.

    `block_bytes` is how long a block is as a rule, header included. What is asked for so many bytes is read without a
    range, which tells whether it goes on; less than that is a part, of which no more is moved.

    An object appears whole or not at all, and is durable once its write is acknowledged: so `stage` is all of a write,
    visible at once, and `commit` and `discard` have nothing to do. TensorStore reads into memory of its own, so a
    request that is given up never touches a caller's buffer. One thread copies from there, and computes the checksum,
    for all readers: in theirs it takes more time, and every heap grows by two blocks (docs/decisions/0007).
    """

    def __init__(self, kv: tensorstore.KvStore, *, block_bytes: int) -> None:
        self._kv = kv
        self._block_bytes = block_bytes
        self._copier = ThreadPoolExecutor(1, "object-copy")

    def read(
        self, key: bytes, header: bytearray, payload: memoryview, *, deadline_at: float, skip_bytes: int = 0
    ) -> int:
        """Of the `skip_bytes` between header and payload nothing is moved."""
        first = len(header) + skip_bytes
        end = first + len(payload)
        if end - skip_bytes >= self._block_bytes:
            ranges = [_ALL]
        else:
            ranges = [slice(0, end)] if skip_bytes == 0 else [slice(0, len(header)), slice(first, end)]
        found = self._fetch(key, ranges, deadline_at)
        return self._copier.submit(_copy, found, header, payload, skip_bytes).result()

    def read_whole(self, key: bytes, header: bytearray, payload: memoryview, look: Look, *, deadline_at: float) -> int:
        found = self._fetch(key, [_ALL], deadline_at)
        return self._copier.submit(_copy, found, header, payload, look=look).result()

    def peek(self, key: bytes, size_bytes: int) -> bytes:
        return self._fetch(key, [slice(0, size_bytes)], _soon())[0].value[:size_bytes]

    def stage(self, key: bytes, header: bytes, payload: memoryview, *, deadline_at: float) -> Staged:
        perform(partial(self._kv.write, _name(key), b"".join((header, payload))), deadline_at=deadline_at)
        return Staged(key, None)

    def commit(self, staged: Sequence[Staged], *, deadline_at: float) -> list[OSError | None]:
        return [None] * len(staged)

    def discard(self, staged: Sequence[Staged]) -> None:
        """What is visible may have been found by another writer, who relies on it."""

    def contains(self, key: bytes, *, deadline_at: float = math.inf) -> bool:
        start = partial(self._kv.read, _name(key), byte_range=_NOTHING)
        found = perform(start, deadline_at=min(deadline_at, _soon()))
        return found.state == "value"

    def delete(self, key: bytes) -> None:
        perform(partial(self._kv.write, _name(key), None), deadline_at=_soon())

    def keys(self) -> Iterator[list[bytes]]:
        folders = [f"{number:02x}" for number in range(256)]
        for start in range(0, len(folders), _LISTS_AT_ONCE):
            lists = [
                partial(self._kv.list, tensorstore.KvStore.KeyRange(f"{folder}/", f"{folder}0"))  # "0" follows "/"
                for folder in folders[start : start + _LISTS_AT_ONCE]
            ]
            found = (name for names in perform_all(lists, deadline_at=_soon()) for name in names)
            yield [bytes.fromhex(match[1].decode()) for match in map(_NAME.fullmatch, found) if match]

    def close(self) -> None:
        self._copier.shutdown(wait=False)

    def _fetch(self, key: bytes, ranges: Sequence[slice], deadline_at: float) -> list[Found]:
        """These ranges of a block, each whole, read at the same time; or all of the block, where it is too short."""
        starts = [partial(self._kv.read, _name(key), byte_range=wanted) for wanted in ranges]
        try:
            parts = perform_all(starts, deadline_at=deadline_at)
        except RequestError as error:
            if error.code != _BEYOND_ITS_END:
                raise
            parts = [perform(partial(self._kv.read, _name(key)), deadline_at=deadline_at)]
        if any(part.state != "value" for part in parts):
            raise FileNotFoundError(key.hex())
        return parts


def _copy(
    found: Sequence[Found], header: bytearray, payload: memoryview, skip_bytes: int = 0, look: Look | None = None
) -> int:
    """Header and payload from where they arrived, in one part or in two, without what is skipped between them."""
    first = len(header) + skip_bytes
    end = first + len(payload)
    if len(found) == 2:
        header[:], payload[:] = (part.value for part in found)
        return end
    arrived = memoryview(found[0].value)
    start, rest = arrived[: len(header)], arrived[first:end]
    header[: len(start)] = start
    # NumPy lets other threads run meanwhile, which an assignment to a memoryview does not.
    np.copyto(np.frombuffer(payload[: len(rest)], np.uint8), np.frombuffer(rest, np.uint8))
    if look is not None:
        look(payload)
    return min(len(arrived), end + 1)


def _name(key: bytes) -> str:
    name = key.hex()
    return f"{name[:2]}/{name}.kv"


def _soon() -> float:
    return time.monotonic() + _CALL_DEADLINE_S
