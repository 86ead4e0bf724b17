"""Cutting work into submissions of a bounded size."""

from collections.abc import Iterable, Sequence

from dualpath_jax.transfer.base import RegionWrite

CopyPair = tuple[memoryview, memoryview]
"""Destination and source of a copy within the host."""

Cut = tuple[int, int, int]
"""Bytes `[start, stop)` of item `index`."""


def cut(sizes: Iterable[int], limit_bytes: int) -> list[list[Cut]]:
    """Group items, in order, into parts of at most `limit_bytes`; only items longer than that are split."""
    parts: list[list[Cut]] = []
    room = 0
    for index, size in enumerate(sizes):
        for start in range(0, size, limit_bytes):
            stop = min(start + limit_bytes, size)
            if stop - start > room:
                parts.append([])
                room = limit_bytes
            parts[-1].append((index, start, stop))
            room -= stop - start
    return parts


def cut_writes(batch: Sequence[RegionWrite], limit_bytes: int) -> list[list[RegionWrite]]:
    """A batch as submissions of at most `limit_bytes`."""
    return [
        [
            RegionWrite(batch[i].source[start:stop], batch[i].region, batch[i].offset_bytes + start)
            for i, start, stop in part
        ]
        for part in cut((len(write.source) for write in batch), limit_bytes)
    ]


def cut_copies(pairs: Sequence[CopyPair], limit_bytes: int) -> list[list[CopyPair]]:
    """Copies as parts of at most `limit_bytes`."""
    return [
        [(pairs[i][0][start:stop], pairs[i][1][start:stop]) for i, start, stop in part]
        for part in cut((len(source) for _, source in pairs), limit_bytes)
    ]
