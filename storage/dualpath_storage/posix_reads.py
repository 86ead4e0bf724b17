"""How bytes of a block's file come into buffers: through the page cache, or past it (O_DIRECT)."""

import errno
import mmap
import os
import threading
from collections.abc import Sequence
from typing import final

import numpy as np

from dualpath_storage.store import StoreError

ALIGNMENT_BYTES = 4096
"""What unbuffered reads want offsets, lengths and memory to be multiples of: the largest block size of common disks."""

PIECE_BYTES = 256 * 1024
"""What is read from the page cache at a time: it is still in a core's own cache when its checksum is computed."""

Parts = Sequence[bytearray | memoryview]


def fill_buffered(descriptor: int, parts: Parts, offset: int) -> int:
    """Read into `parts`, laid end to end, from `offset` on.

    Returns how many bytes there are: fewer than fit where the file ends early, one more where it goes on.
    """
    beyond = bytearray(1)
    size = sum(map(len, parts))
    seen = os.preadv(descriptor, (*parts, beyond), offset)
    while 0 < seen < size:  # truncated, or a file system that reads in pieces
        more = os.preadv(descriptor, after((*parts, beyond), seen), offset + seen)
        if more == 0:
            break
        seen += more
    return seen


@final
class DirectReads:
    """Reads past the page cache, for a device that is faster than a copy, or memory that is needed for other things.

    Bytes come straight into buffers that are aligned, as those of a host arena are. Others, and layer ranges that begin
    or end within 4 KiB, take a detour through memory of this object: its thread's largest such read, per thread.
    """

    def __init__(self) -> None:
        self._own = threading.local()

    def fill(self, descriptor: int, parts: Parts, offset: int) -> int:
        """As `fill_buffered`, for a descriptor that was opened with O_DIRECT."""
        lead, size = offset % ALIGNMENT_BYTES, sum(map(len, parts))
        targets: list[memoryview]
        if lead or any(len(part) % ALIGNMENT_BYTES for part in parts):
            targets = [self._scratch(lead + size + 1)]
            copies = list(zip(parts, _cut(targets[0][lead:], parts), strict=True))
        else:
            scratch = self._scratch(size + 1)
            stand_ins = _cut(scratch, parts)
            targets = [
                memoryview(part) if _is_aligned(part) else stand_in
                for part, stand_in in zip(parts, stand_ins, strict=True)
            ]
            copies = [pair for pair in zip(parts, stand_ins, strict=True) if not _is_aligned(pair[0])]
            targets.append(scratch[size:][:ALIGNMENT_BYTES])
        seen = max(os.preadv(descriptor, targets, offset - lead) - lead, 0)
        if seen < size and offset + seen < os.fstat(descriptor).st_size:
            raise OSError(errno.EIO, f"an unbuffered read of {size} bytes ended after {seen}, within the file")
        for part, source in copies:
            part[:] = source
        return min(seen, size + 1)

    def _scratch(self, size_bytes: int) -> memoryview:
        """At least so many bytes, of whole pages."""
        pages = -(-size_bytes // ALIGNMENT_BYTES)
        own: memoryview | None = getattr(self._own, "scratch", None)
        if own is None or len(own) < pages * ALIGNMENT_BYTES:
            own = self._own.scratch = memoryview(mmap.mmap(-1, pages * ALIGNMENT_BYTES))
        return own[: pages * ALIGNMENT_BYTES]


def check_direct(path: str) -> None:
    """Raises StoreError where the file system of `path`, a file, does not take unbuffered reads."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_DIRECT)
        try:
            DirectReads().fill(descriptor, [bytearray(ALIGNMENT_BYTES)], 0)
        finally:
            os.close(descriptor)
    except OSError as error:
        raise StoreError(
            f"the file system of {path} refuses unbuffered reads (O_DIRECT: {error.strerror}): "
            "open the store without ?direct=1, or put it on a local disk"
        ) from error


def after(parts: Sequence[bytes | bytearray | memoryview], skip: int) -> list[memoryview]:
    """What is left of `parts`, laid end to end, after their first `skip` bytes."""
    left = []
    for part in parts:
        left.append(memoryview(part)[skip:])
        skip = max(0, skip - len(part))
    return left


def _cut(whole: memoryview, parts: Parts) -> list[memoryview]:
    """Pieces of `whole`, as long as the parts and laid end to end."""
    pieces, start = [], 0
    for part in parts:
        pieces.append(whole[start : start + len(part)])
        start += len(part)
    return pieces


def _is_aligned(buffer: bytearray | memoryview) -> bool:
    address: int = np.frombuffer(buffer, np.uint8).__array_interface__["data"][0]
    return address % ALIGNMENT_BYTES == 0
