"""Registered memory: what peers may write to, and the checks in front of it."""

import secrets
from collections.abc import Iterator, Sequence
from itertools import count
from typing import final

from dualpath_jax.transfer.base import RegionHandle
from dualpath_jax.transfer.transfer_pb2 import Pieces


class RefusedError(Exception):
    """A write that the memory must not see: unknown or stale region, out of bounds, across segments."""


@final
class Region:
    """One registration: segments of one length, laid end to end.

    Byte `i` of the region is byte `i % segment_bytes` of segment `i // segment_bytes`.
    """

    def __init__(self, handle: RegionHandle, segments: Sequence[memoryview], engine: int) -> None:
        self.handle = handle
        self.engine = engine
        self._segments: Sequence[memoryview] | None = segments
        self._segment_bytes = len(segments[0]) if segments else 0

    def check(self, offset_bytes: int, size_bytes: int) -> None:
        """Raises RefusedError unless `[offset, offset + size)` may be written: inside, and within one segment."""
        if self._segments is None:
            raise RefusedError(f"region {self.handle.region_id:#x} was deregistered; ask its owner for a new handle")
        end = offset_bytes + size_bytes
        if end > self.handle.size_bytes:
            raise RefusedError(
                f"bytes [{offset_bytes}, {end}) of a region of {self.handle.size_bytes}: expected a range inside it"
            )
        if size_bytes and offset_bytes // self._segment_bytes != (end - 1) // self._segment_bytes:
            raise RefusedError(
                f"bytes [{offset_bytes}, {end}) cross a segment boundary (segments of {self._segment_bytes} bytes): "
                "write each segment's share as a piece of its own"
            )

    def write(self, offset_bytes: int, data: memoryview) -> None:
        """Copies `data` in, without yielding to the event loop. Raises RefusedError as `check` does."""
        segment, start = self.place(offset_bytes, len(data))
        if data:
            segment[start : start + len(data)] = data

    def place(self, offset_bytes: int, size_bytes: int) -> tuple[memoryview, int]:
        """The segment that this part of the memory lies in, and where in it. Raises RefusedError as `check` does."""
        self.check(offset_bytes, size_bytes)
        if not size_bytes or self._segments is None:
            return memoryview(b""), 0
        index, start = divmod(offset_bytes, self._segment_bytes)
        return self._segments[index], start

    def close(self) -> None:
        """Forget the memory: whatever comes later is refused."""
        self._segments = None


@final
class RegionTable:
    """The regions of one transport.

    Ids and generations count on from random 64-bit numbers, so that a handle of a former life of this process, or of
    another one that had its port, names nothing here.
    """

    def __init__(self) -> None:
        self._regions: dict[int, Region] = {}
        self._ids: Iterator[int] = count(secrets.randbits(63))
        self._generations: Iterator[int] = count(secrets.randbits(63))

    def register(self, segments: Sequence[memoryview], engine: int) -> RegionHandle:
        """A new registration. Raises ValueError for memory that cannot be written or segments that differ in length."""
        views = [_writable_bytes(segment) for segment in segments]
        lengths = {len(view) for view in views}
        if len(lengths) > 1:
            raise ValueError(f"segments of {sorted(lengths)} bytes: expected all of one length")
        handle = RegionHandle(next(self._ids), next(self._generations), sum(len(view) for view in views))
        self._regions[handle.region_id] = Region(handle, views, engine)
        return handle

    def deregister(self, handle: RegionHandle) -> bool:
        """Refuse this registration from now on; whether it was one. Unknown handles are fine."""
        region = self._regions.get(handle.region_id)
        if region is None or region.handle.generation != handle.generation:
            return False
        del self._regions[handle.region_id]
        region.close()
        return True

    def find(self, region_id: int, generation: int) -> Region:
        """The living registration of that name. Raises RefusedError where there is none."""
        region = self._regions.get(region_id)
        if region is None:
            raise RefusedError(
                f"region {region_id:#x} is not registered here (deregistered, or of a former life of this peer); "
                "ask its owner for a new handle"
            )
        if region.handle.generation != generation:
            raise RefusedError(
                f"region {region_id:#x} has generation {region.handle.generation:#x}, the write is for {generation:#x}"
            )
        return region

    def resolve(self, table: Pieces) -> list[tuple[Region, int, int]]:
        """Region, offset and size of each piece, all checked. Raises RefusedError, ValueError, IndexError."""
        named = [self.find(*names) for names in zip(table.region_id, table.generation, strict=True)]
        columns = zip(table.region, table.offset_bytes, table.size_bytes, strict=True)
        pieces = [(named[index], offset, size) for index, offset, size in columns]
        for region, offset, size in pieces:
            region.check(offset, size)
        return pieces

    def clear(self) -> None:
        """Refuse everything registered so far."""
        for region in self._regions.values():
            region.close()
        self._regions.clear()


def _writable_bytes(segment: memoryview) -> memoryview:
    if segment.readonly or not segment.c_contiguous:
        flaw = "read-only" if segment.readonly else "not contiguous"
        raise ValueError(f"a segment that is {flaw}: expected writable, contiguous memory")
    return segment if segment.format == "B" and segment.ndim == 1 else segment.cast("B")
