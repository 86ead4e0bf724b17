"""Make room in a store: leaves of the trie first, least recently used among them."""

import heapq
from collections import Counter
from dataclasses import dataclass

from dualpath_storage.medium import Medium
from dualpath_storage.tool.blocks import Damage
from dualpath_storage.tool.survey import Entry, entries


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
    children = Counter(entry.parent for entry in left.values())
    coldest = [(_last_used_s(medium, entry), key) for key, entry in left.items() if not children[key]]
    heapq.heapify(coldest)
    evicted = Evicted(0, 0, len(left), sum(entry.size_bytes for entry in left.values()))
    while coldest and evicted.size_bytes < at_least_bytes:
        _, key = heapq.heappop(coldest)
        medium.delete(key)
        entry = left.pop(key)
        evicted.blocks += 1
        evicted.left_blocks -= 1
        evicted.size_bytes += entry.size_bytes
        evicted.left_bytes -= entry.size_bytes
        children[entry.parent] -= 1
        if not children[entry.parent] and (parent := left.get(entry.parent)):
            heapq.heappush(coldest, (_last_used_s(medium, parent), parent.key))
    return evicted


def _last_used_s(medium: Medium, entry: Entry) -> float:
    try:
        return medium.last_used_s(entry.key)
    except FileNotFoundError:
        return 0.0  # gone already; to delete it again is fine
