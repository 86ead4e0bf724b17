"""Which blocks lie in a node's memory, as far as the node has said: a hint for read plans, never a promise."""

from collections import OrderedDict
from collections.abc import Iterable, Sequence
from typing import final

MOST_KEYS = 1 << 18
"""Keys that are remembered of one node (about 30 MB); beyond that, those that were said first are forgotten."""


@final
class Residents:
    """The keys of one life of a node."""

    def __init__(self, most_keys: int = MOST_KEYS) -> None:
        self._most_keys = most_keys
        self._keys: OrderedDict[bytes, None] = OrderedDict()

    def __len__(self) -> int:
        return len(self._keys)

    def update(self, added: Iterable[bytes], dropped: Iterable[bytes]) -> None:
        """Takes what a report says."""
        for key in dropped:
            self._keys.pop(key, None)
        for key in added:
            self._keys[key] = None
            self._keys.move_to_end(key)
        while len(self._keys) > self._most_keys:
            self._keys.popitem(last=False)

    def leading(self, keys: Sequence[bytes]) -> int:
        """How many of `keys`, from the first on without a gap, are resident."""
        for count, key in enumerate(keys):
            if key not in self._keys:
                return count
        return len(keys)

    def absent(self, keys: Iterable[bytes]) -> int:
        """How many of `keys` are not resident."""
        return sum(key not in self._keys for key in keys)
