"""Pages of device memory on one engine: all that a request may come to need, taken at once."""

from typing import final


@final
class PagePool:
    """Hands out page numbers. Not thread-safe: the thread that owns the device calls it."""

    def __init__(self, pages: int) -> None:
        self._free = list(range(pages - 1, -1, -1))

    @property
    def free(self) -> int:
        """Pages that nobody holds."""
        return len(self._free)

    def take(self, pages: int) -> list[int]:
        """All of them or ValueError; the lowest numbers that are free were given back last."""
        if pages > len(self._free):
            raise ValueError(f"{pages} pages wanted, {len(self._free)} are free: expected the caller to have checked")
        return [self._free.pop() for _ in range(pages)]

    def give_back(self, pages: list[int]) -> None:
        """Pages of one `take`, once."""
        self._free.extend(reversed(pages))
