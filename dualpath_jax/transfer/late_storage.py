"""Storage that lets writes run out of time."""

import asyncio
import math
from typing import final

from dualpath_storage.store import BlockResult, Status

NOT_QUEUED = BlockResult(Status.TIMED_OUT, "storage is late with other blocks, and this one was not queued behind them")


@final
class LateStorage:
    """Whether storage has let a write run out of time lately, and so should not be queued for.

    A card that is slow works its queue off, and blocks may wait for it as long as that takes. Storage that hangs does
    not: its queue would grow until no host buffer were left to serve requests with. What is written meanwhile without
    a queue shows whether storage is there again.
    """

    def __init__(self) -> None:
        self._until_s = -math.inf

    def __bool__(self) -> bool:
        return asyncio.get_running_loop().time() < self._until_s

    def note(self, result: BlockResult, *, rest_s: float) -> None:
        """What became of a write; one that ran out of time makes storage late for `rest_s`."""
        if result.status is Status.TIMED_OUT:
            self._until_s = asyncio.get_running_loop().time() + rest_s
