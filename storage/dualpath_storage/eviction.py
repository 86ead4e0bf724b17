"""Which blocks go when a store is full, or when nothing has used them for long: the longest unused leaves first."""

import heapq
import itertools
import math
from collections.abc import Callable, Container, Iterable
from typing import final

from dualpath_storage.index import PrefixIndex
from dualpath_storage.store import StoredBlock

HIGH_WATER, LOW_WATER = 0.95, 0.85
"""Shares of the capacity: eviction begins above the one, so that writes under way find room, and ends at the other."""

_EXPIRY_LOOKS = 20
"""How often in a time to live expired blocks are looked for."""


@final
class Eviction:
    """Decides over the blocks of an index, all of `block_bytes`; touches no store itself.

    A block may go when no stored block has it as its parent. Used are blocks that were planned to be read or were just
    written; asking whether a block is stored uses nothing. Blocks of which no use is known count as used at `now_s` of
    the start. Without a capacity and a time to live nothing is ever evicted, and nothing remembered. Times are seconds
    on one clock that does not go back.

    A write that finds its block stored does nothing, and its publication may come after the block has been deleted. So
    what is published within `doubt_s` of its eviction is in doubt: it counts as stored once the store was asked.
    """

    def __init__(
        self,
        index: PrefixIndex,
        *,
        block_bytes: int,
        now_s: float,
        capacity_bytes: int | None = None,
        time_to_live_s: float | None = None,
        doubt_s: float = 0.0,
    ) -> None:
        self._index = index
        self._block_bytes = block_bytes
        self._capacity_blocks = math.inf if capacity_bytes is None else capacity_bytes / block_bytes
        self._time_to_live_s = math.inf if time_to_live_s is None else time_to_live_s
        self._doubt_s = doubt_s
        self._start_s = now_s
        self._looked_s = now_s
        self._used_s: dict[bytes, float] = {}
        self._going: set[bytes] = set()
        self._gone_s: dict[bytes, float] = {}  # in order of time
        self._doubts: dict[bytes, bytes] = {}
        self._found_full = False
        self.evicted_blocks = 0

    @property
    def enabled(self) -> bool:
        """Whether anything can ever be evicted."""
        return math.isfinite(self._capacity_blocks) or math.isfinite(self._time_to_live_s)

    def used(self, keys: Iterable[bytes], now_s: float) -> None:
        """These blocks are used now."""
        if self.enabled:
            self._used_s.update(dict.fromkeys(keys, now_s))

    def published(self, key: bytes, parent: bytes, now_s: float) -> None:
        """A node has written the block, or found it stored: into the index, now or by `settle`."""
        if key in self._going or now_s - self._gone_s.get(key, -math.inf) < self._doubt_s:
            self._doubts[key] = parent
        else:
            self._index.add(key, parent)
        self.used([key], now_s)

    def take_doubts(self) -> list[StoredBlock]:
        """Blocks of which the store must be asked whether it has them; none that is being deleted."""
        taken = {key: parent for key, parent in self._doubts.items() if key not in self._going}
        for key in taken:
            del self._doubts[key]
        return [StoredBlock(key, parent, self._block_bytes) for key, parent in taken.items()]

    def settle(self, blocks: Iterable[StoredBlock]) -> None:
        """The store has these of the blocks that were in doubt."""
        for block in blocks:
            self._index.add(block.key, block.parent)

    def found_full(self) -> None:
        """A write found no room, whatever the capacity says: as much goes as if what is stored now were the limit."""
        self._found_full = math.isfinite(self._capacity_blocks)

    def choose(self, now_s: float, in_use: Callable[[], Container[bytes]]) -> list[StoredBlock]:
        """Blocks to delete, children before parents, gone from the index already; none of `in_use()`.

        Costs next to nothing where it is not the moment; only otherwise is asked what is in use.
        Each must be answered for by `deleted` or `kept`; until then nothing more is chosen for room.
        """
        blocks = self._surplus()
        expired_before_s = self._expiry(now_s)
        if not blocks and expired_before_s == -math.inf:
            return []
        chosen: list[StoredBlock] = []
        spared = in_use()
        self._forget_unknown()
        leaves = [(self._last_use(key), key) for key in self._index.leaves() if key not in spared]
        heapq.heapify(leaves)
        while leaves and (len(chosen) < blocks or leaves[0][0] < expired_before_s):
            _, key = heapq.heappop(leaves)
            parent = self._index.discard(key)
            assert parent is not None
            chosen.append(StoredBlock(key, parent, self._block_bytes))
            self._used_s.pop(key, None)
            if self._index.is_leaf(parent) and parent not in spared:
                heapq.heappush(leaves, (self._last_use(parent), parent))
        self._going.update(block.key for block in chosen)
        return chosen

    def deleted(self, blocks: Iterable[StoredBlock], now_s: float) -> None:
        """The store has them no longer."""
        for block in blocks:
            self._going.discard(block.key)
            self._gone_s.pop(block.key, None)
            self._gone_s[block.key] = now_s
            self.evicted_blocks += 1
        over = itertools.takewhile(lambda key: now_s - self._gone_s[key] >= self._doubt_s, self._gone_s)
        for key in list(over):
            del self._gone_s[key]

    def kept(self, blocks: Iterable[StoredBlock]) -> None:
        """They could not be deleted: back into the index."""
        for block in blocks:
            self._going.discard(block.key)
            self._index.add(block.key, block.parent)

    def _surplus(self) -> int:
        """How many blocks must go to make room."""
        stored, limit = len(self._index), self._capacity_blocks
        found_full, self._found_full = self._found_full, False
        if self._going or not (found_full or stored > HIGH_WATER * limit):
            return 0
        return max(0, stored - math.floor(LOW_WATER * (min(limit, stored) if found_full else limit)))

    def _expiry(self, now_s: float) -> float:
        """The time before which a last use is too long ago; minus infinity where it is not the moment to look."""
        if now_s - self._looked_s < self._time_to_live_s / _EXPIRY_LOOKS:
            return -math.inf
        self._looked_s = now_s
        return now_s - self._time_to_live_s

    def _last_use(self, key: bytes) -> float:
        return self._used_s.get(key, self._start_s)

    def _forget_unknown(self) -> None:
        """Blocks that have left the index by other ways."""
        if len(self._used_s) > len(self._index):
            self._used_s = {key: used_s for key, used_s in self._used_s.items() if key in self._index}
