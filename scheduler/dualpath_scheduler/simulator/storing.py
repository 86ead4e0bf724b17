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
        """The session's tokens that storage has, without a gap.

        A turn that finds a gap computes and writes again what comes after it; what is on its way arrives all the same.
        """
        writing = self._writing[session]
        if writing:
            stored = self._stored[session]
            for last, new, end_s in writing:
                late_blocks = max(0, math.ceil((end_s - now) / self._block_s))
                there = last - late_blocks * self._block_tokens
                if last - new <= stored < there:
                    stored = there
            self._stored[session] = stored
            self._writing[session] = tuple([run for run in writing if run[2] > now])
        return self._stored[session]
