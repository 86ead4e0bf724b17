"""Make room in a store: leaves of the trie first, least recently used among them."""

import heapq
from dataclasses import dataclass

from dualpath_storage.index import PrefixIndex
from dualpath_storage.medium import Medium
from dualpath_storage.tool.blocks import Damage
from dualpath_storage.tool.survey import entries


@dataclass
class Evicted:
    """What went, and what is left of the blocks whose headers can be read."""

    blocks: int
    size_bytes: int
    left_blocks: int
    left_bytes: int

    def as_json(self) -> dict[str, object]:
        return {
            "blocks": self.blocks,
            "bytes": self.size_bytes,
            "left_blocks": self.left_blocks,
            "left_bytes": self.left_bytes,
        }


def evict(medium: Medium, at_least_bytes: int) -> Evicted:
    """Delete blocks until `at_least_bytes` are free, or nothing is left; interrupted anywhere, no prefix has a gap.

    A block goes only after all blocks that follow it. What a medium does not know the last use of counts as never
    used. Raises StoreError.
    """
    left = {entry.key: entry for entry in entries(medium) if not isinstance(entry, Damage)}
    index = PrefixIndex()
    index.add_many((entry.key, entry.parent) for entry in left.values())
    coldest = [(_last_used_s(medium, key), key) for key in index.leaves()]
    heapq.heapify(coldest)
    evicted = Evicted(0, 0, len(left), sum(entry.size_bytes for entry in left.values()))
    while coldest and evicted.size_bytes < at_least_bytes:
        _, key = heapq.heappop(coldest)
        medium.delete(key)
        evicted.blocks += 1
        evicted.left_blocks -= 1
        evicted.size_bytes += left[key].size_bytes
        evicted.left_bytes -= left[key].size_bytes
        parent = index.discard(key)
        if parent is not None and index.is_leaf(parent):
            heapq.heappush(coldest, (_last_used_s(medium, parent), parent))
    return evicted


def _last_used_s(medium: Medium, key: bytes) -> float:
    try:
        return medium.last_used_s(key)
    except FileNotFoundError:
        return 0.0  # gone already; to delete it again is fine
