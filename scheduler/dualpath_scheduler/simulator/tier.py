"""A node's DRAM tier: blocks that it read from storage or wrote to it lately, in memory beside its buffer."""

from collections import OrderedDict
from typing import final


@final
class Tier:
    """Room for `capacity` blocks. A session's are one run of blocks, the session that was used least lately goes first.

    Prefill nodes read prompts from the front, so what is left of a session that has to give way is its front; decode
    nodes read and write the end, and keep that (`keeps_end`). A session that comes back with blocks that do not touch
    those that are here has been elsewhere in between: the old ones, which no read can use any more, go.
    """

    def __init__(self, capacity: int, *, keeps_end: bool) -> None:
        self._capacity = capacity
        self._keeps_end = keeps_end
        self._runs: OrderedDict[int, tuple[int, int]] = OrderedDict()
        self.blocks = 0

    def front(self, session: int, hit_blocks: int) -> int:
        """How many of the first `hit_blocks` are here, without a gap."""
        start, end = self._runs.get(session, (0, 0))
        return min(end, hit_blocks) if start == 0 else 0

    def back(self, session: int, hit_blocks: int) -> int:
        """How many of the last of `hit_blocks` are here, without a gap."""
        start, end = self._runs.get(session, (0, 0))
        return max(0, hit_blocks - start) if end >= hit_blocks else 0

    def use(self, session: int, start: int, end: int) -> None:
        """The node has read or written these blocks of the session now."""
        if start >= end or not self._capacity:
            return
        was_start, was_end = self._runs.pop(session, (start, start))
        self.blocks -= was_end - was_start
        if start <= was_end and was_start <= end:
            start, end = min(start, was_start), max(end, was_end)
        self._runs[session] = (start, end)
        self.blocks += end - start
        while self.blocks > self._capacity:
            self._evict(self.blocks - self._capacity)

    def _evict(self, too_many: int) -> None:
        session, (start, end) = self._runs.popitem(last=False)
        going = min(too_many, end - start)
        self.blocks -= going
        if going < end - start:
            self._runs[session] = (start + going, end) if self._keeps_end else (start, end - going)
            self._runs.move_to_end(session, last=False)
