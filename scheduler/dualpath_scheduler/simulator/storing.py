"""What storage has of each session: a turn that comes soon may find blocks still on their way there."""

import math
from typing import final


@final
class StoredBlocks:
    """The stored prefix of each session, in tokens. A storage card writes a block in `block_s`, in order."""

    def __init__(self, sessions: int, *, block_tokens: int, block_s: float) -> None:
        self._block_tokens = block_tokens
        self._block_s = block_s
        self._stored = [0] * sessions
        self._writing: list[tuple[tuple[int, int, float], ...]] = [()] * sessions

    def write(self, session: int, last: int, new: int, end_s: float) -> None:
        """Of the session's first `last` tokens, the `new` last ones are on their way and all there at `end_s`."""
        self._writing[session] += ((last, new, end_s),)

    def tokens(self, now: float, session: int) -> int:
        """The session's tokens that storage has, without a gap. Those after them are forgotten: the turn that asks
        computes them again, and writes them again.
        """
        stored = self._stored[session]
        for last, new, end_s in self._writing[session]:
            late_blocks = max(0, math.ceil((end_s - now) / self._block_s))
            there = last - min(new, late_blocks * self._block_tokens)
            stored = max(stored, there)
            if there < last:
                break
        self._stored[session], self._writing[session] = stored, ()
        return stored
