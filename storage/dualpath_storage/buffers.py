"""Callers' buffers: what `BlockRead.into` and `BlockWrite.data` must be, checked before anything begins."""

from collections.abc import Sequence

from dualpath_storage.keys import KEY_BYTES
from dualpath_storage.layout import KVLayout
from dualpath_storage.store import BlockRead, BlockWrite


def read_span(read: BlockRead, layout: KVLayout) -> slice:
    """The bytes of a block that are asked for. Raises ValueError for layers that the layout does not have."""
    if read.layers is None:
        return slice(0, layout.block_bytes)
    span = layout.layer_span(*read.layers)
    if span.start == span.stop:
        raise ValueError(f"a block's `layers` is {read.layers}: expected at least one layer")
    return span


def read_buffers(reads: Sequence[BlockRead], layout: KVLayout) -> list[memoryview]:
    """The reads' buffers as bytes. Raises ValueError where one breaks `BlockRead`'s terms."""
    spans = [read_span(read, layout) for read in reads]
    buffers = [
        _checked("into", read.into, span.stop - span.start, read.key) for read, span in zip(reads, spans, strict=True)
    ]
    if any(buffer.readonly for buffer in buffers):
        raise ValueError("a block's `into` is read-only: expected a writable buffer")
    return buffers


def write_buffers(writes: Sequence[BlockWrite], layout: KVLayout) -> list[memoryview]:
    """The writes' data as bytes. Raises ValueError where one breaks `BlockWrite`'s terms."""
    return [_checked("data", write.data, layout.block_bytes, write.key, write.parent) for write in writes]


def _checked(name: str, buffer: memoryview, size_bytes: int, *keys: bytes) -> memoryview:
    for key in keys:
        if len(key) != KEY_BYTES:
            raise ValueError(f"key {key!r} has {len(key)} bytes: expected {KEY_BYTES}")
    if buffer.nbytes != size_bytes or not buffer.c_contiguous:
        raise ValueError(
            f"a block's `{name}` has {buffer.nbytes} bytes (C-contiguous: {buffer.c_contiguous}): "
            f"expected {size_bytes} contiguous bytes, as the layout says"
        )
    return buffer if buffer.format == "B" and buffer.ndim == 1 else buffer.cast("B")
