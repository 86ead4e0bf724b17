"""Callers' buffers: what `BlockRead.into` and `BlockWrite.data` must be, checked before anything begins."""

from collections.abc import Sequence

from dualpath_storage.keys import KEY_BYTES
from dualpath_storage.store import BlockRead, BlockWrite


def read_buffers(reads: Sequence[BlockRead], block_bytes: int) -> list[memoryview]:
    """The reads' buffers as bytes. Raises ValueError where one breaks `BlockRead`'s terms."""
    buffers = [_checked("into", read.into, block_bytes, read.key) for read in reads]
    if any(buffer.readonly for buffer in buffers):
        raise ValueError("a block's `into` is read-only: expected a writable buffer")
    return buffers


def write_buffers(writes: Sequence[BlockWrite], block_bytes: int) -> list[memoryview]:
    """The writes' data as bytes. Raises ValueError where one breaks `BlockWrite`'s terms."""
    return [_checked("data", write.data, block_bytes, write.key, write.parent) for write in writes]


def _checked(name: str, buffer: memoryview, block_bytes: int, *keys: bytes) -> memoryview:
    for key in keys:
        if len(key) != KEY_BYTES:
            raise ValueError(f"key {key!r} has {len(key)} bytes: expected {KEY_BYTES}")
    if buffer.nbytes != block_bytes or not buffer.c_contiguous:
        raise ValueError(
            f"a block's `{name}` has {buffer.nbytes} bytes (C-contiguous: {buffer.c_contiguous}): "
            f"expected {block_bytes} contiguous bytes, the layout's block"
        )
    return buffer if buffer.format == "B" and buffer.ndim == 1 else buffer.cast("B")
