"""Blocks in this process's memory, in the same format as on disk, so that they are verified in the same way."""

from collections.abc import Iterator, Sequence
from typing import final

from dualpath_storage.layout import KVLayout
from dualpath_storage.medium import Medium, Staged
from dualpath_storage.medium_store import MediumStore


@final
class MemoryMedium(Medium):
    """A dict of immutable bytes: a reader sees one version, whole. Several stores of one process may share it."""

    def __init__(self) -> None:
        self._blocks: dict[bytes, bytes] = {}

    def read(
        self, key: bytes, header: bytearray, payload: memoryview, *, deadline_at: float, skip_bytes: int = 0
    ) -> int:
        stored = memoryview(self._find(key))
        start = len(header) + skip_bytes
        first, second = stored[: len(header)], stored[start : start + len(payload)]
        header[: len(first)] = first
        payload[: len(second)] = second
        return min(len(stored), start + len(payload) + 1)

    def peek(self, key: bytes, size_bytes: int) -> bytes:
        return self._find(key)[:size_bytes]

    def stage(self, key: bytes, header: bytes, payload: memoryview, *, deadline_at: float) -> Staged:
        return Staged(key, b"".join((header, payload)))

    def commit(self, staged: Sequence[Staged], *, deadline_at: float) -> list[OSError | None]:
        for block in staged:
            if isinstance(block.handle, bytes):
                self._blocks[block.key] = block.handle
        return [None] * len(staged)

    def discard(self, staged: Sequence[Staged]) -> None:
        pass

    def contains(self, key: bytes) -> bool:
        return key in self._blocks

    def delete(self, key: bytes) -> None:
        self._blocks.pop(key, None)

    def keys(self) -> Iterator[list[bytes]]:
        yield list(self._blocks)

    def close(self) -> None:
        """Blocks stay: other stores may share them, and a store opened later finds them."""

    def _find(self, key: bytes) -> bytes:
        try:
            return self._blocks[key]
        except KeyError:
            raise FileNotFoundError(key.hex()) from None


_named: dict[str, MemoryMedium] = {}


@final
class MemoryStore(MediumStore):
    """`memory://name`: stores of one name in one process share their blocks, which live as long as the process.

    Without a name the store is alone. Each block takes its bytes and a header of 4 KiB; nothing is evicted.
    """

    def __init__(self, layout: KVLayout, *, name: str = "", threads: int = 2) -> None:
        medium = _named.setdefault(name, MemoryMedium()) if name else MemoryMedium()
        super().__init__(medium, layout, threads=threads)
        self._name = name

    @property
    def url(self) -> str:
        return f"memory://{self._name}"
