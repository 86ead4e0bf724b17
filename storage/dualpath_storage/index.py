"""Which blocks are stored: the longest stored prefix of a sequence, and the leaves of the trie of keys."""

from collections.abc import Iterable, Sequence
from typing import final

from dualpath_storage.store import BlockStore


@final
class PrefixIndex:
    """Keys with their parents. Each chain key stands for its whole prefix, so a set of keys is a trie.

    A block whose parent is not there (evicted, lost, not yet published) is kept, counts as present, and is reached
    again when the parent returns. Not thread-safe; no operation but `rebuild` waits for anything.
    """

    def __init__(self) -> None:
        self._parents: dict[bytes, bytes] = {}
        self._children: dict[bytes, int] = {}

    def __len__(self) -> int:
        return len(self._parents)

    def __contains__(self, key: bytes) -> bool:
        return key in self._parents

    def add(self, key: bytes, parent: bytes) -> None:
        """Record a stored block; one that is there already is fine."""
        known = self._parents.get(key)
        if known == parent:
            return
        if known is not None:
            self.discard(key)
        self._parents[key] = parent
        self._children[parent] = self._children.get(parent, 0) + 1

    def add_many(self, blocks: Iterable[tuple[bytes, bytes]]) -> None:
        """`add` for each (key, parent)."""
        for key, parent in blocks:
            self.add(key, parent)

    def discard(self, key: bytes) -> bytes | None:
        """Forget a block and return its parent; None where it is not there, which is fine. Its children stay."""
        parent = self._parents.pop(key, None)
        if parent is None:
            return None
        left = self._children[parent] - 1
        if left:
            self._children[parent] = left
        else:
            del self._children[parent]
        return parent

    def longest_prefix(self, keys: Sequence[bytes]) -> int:
        """How many of a sequence's keys, from the first on without a gap, are present."""
        for count, key in enumerate(keys):
            if key not in self._parents:
                return count
        return len(keys)

    def is_leaf(self, key: bytes) -> bool:
        """Whether a block is there and no stored block has it as its parent."""
        return key in self._parents and key not in self._children

    def leaves(self) -> list[bytes]:
        """The blocks that no stored block has as its parent: those that may go without making others unreachable."""
        return [key for key in self._parents if key not in self._children]

    async def rebuild(self, store: BlockStore) -> int:
        """Forget everything and add what `store` holds; returns how many blocks that are.

        Blocks added meanwhile stay. A block that is deleted from the store meanwhile may be listed: its next read
        says MISSING.
        """
        self._parents.clear()
        self._children.clear()
        found = 0
        async for block in store.scan():
            self.add(block.key, block.parent)
            found += 1
        return found
