"""Single blocks become a store's batches."""

import asyncio
import math
from collections import deque
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from functools import partial
from typing import Any, Generic, TypeVar, final

from dualpath_storage.store import BlockResult, Status

T = TypeVar("T")

GRACE_S = 1.0
"""A store returns by the deadline (its contract); so long after it, the operation is left to itself."""

MIN_DEADLINE_S = 0.001

Left = set["asyncio.Task[Any]"]
"""Operations that outlived their deadline; whoever owns the set cancels them in the end."""


@final
@dataclass(eq=False)
class _Block(Generic[T]):
    item: T
    until_s: float
    on_begin: Callable[[], None]
    result: "asyncio.Future[BlockResult]"
    begun: bool = False


@final
class Handover(Generic[T]):
    """Hands blocks to `operate(items, deadline_s)` in batches, in the order in which they came.

    Blocks that come in one turn of the event loop go together, up to `most`, and so do those that come while `at_once`
    batches are under way: where storage keeps up there is little to gather, and where it does not, its cost per
    operation is shared. The first block of all goes alone, so that it is there as soon as it would be by itself.

    A block that hangs holds up the results of its batch: a batch of several has `share` of the time that there is, so
    that the others can still be used.
    """

    def __init__(
        self,
        operate: Callable[[list[T], float], Coroutine[Any, Any, list[BlockResult]]],
        left: Left,
        *,
        most: int,
        at_once: float = math.inf,
        share: float = 1.0,
    ) -> None:
        self._operate = operate
        self._left = left
        self._most = max(1, most)
        self._at_once = at_once
        self._share = share
        self._running = 0
        self._next_most = 1
        self._begins = False
        self._waiting: deque[_Block[T]] = deque()

    async def result(self, item: T, *, until_s: float, on_begin: Callable[[], None]) -> BlockResult:
        """What became of a block, by `until_s` of the loop's clock and, where its batch ignores that, a little later.

        `on_begin` is called when its batch begins, and from then on this must not be cancelled: nobody would know how
        long the store touches the block's buffer. A batch's deadline is its most urgent block's.
        """
        loop = asyncio.get_running_loop()
        block = _Block(item, until_s, on_begin, loop.create_future())
        self._waiting.append(block)
        if not self._begins:
            self._begins = True
            loop.call_soon(self._begin, loop)
        timer = loop.call_at(until_s, self._expire, block)
        try:
            return await block.result
        finally:
            timer.cancel()

    def _begin(self, loop: asyncio.AbstractEventLoop) -> None:
        self._begins = False
        while self._running < self._at_once and (blocks := self._next_blocks()):
            until_s = min(block.until_s for block in blocks)
            share = self._share if len(blocks) > 1 else 1.0
            deadline_s = max(round(share * (until_s - loop.time()), 3), MIN_DEADLINE_S)
            task = loop.create_task(self._operate([block.item for block in blocks], deadline_s))
            timer = loop.call_later(deadline_s + GRACE_S, self._give_up, task, blocks, deadline_s)
            task.add_done_callback(partial(self._finish, blocks, timer))
            self._running += 1
            for block in blocks:
                block.begun = True
                block.on_begin()

    def _next_blocks(self) -> list[_Block[T]]:
        blocks: list[_Block[T]] = []
        while self._waiting and len(blocks) < self._next_most:
            block = self._waiting.popleft()
            if not block.result.done():  # neither cancelled nor expired
                blocks.append(block)
        if blocks:
            self._next_most = self._most
        return blocks

    def _finish(self, blocks: list[_Block[T]], timer: asyncio.Handle, task: "asyncio.Task[list[BlockResult]]") -> None:
        timer.cancel()
        if task in self._left:
            return
        if task.cancelled():
            error: BaseException | None = RuntimeError("the store's operation was cancelled from outside")
        else:
            error = task.exception()
        for position, block in enumerate(blocks):
            if block.result.done():  # cancelled with everything else, as the loop ends
                continue
            if error is not None:
                block.result.set_exception(error)
            else:
                block.result.set_result(task.result()[position])
        self._end(task.get_loop())

    def _give_up(self, task: "asyncio.Task[list[BlockResult]]", blocks: list[_Block[T]], deadline_s: float) -> None:
        self._left.add(task)
        quiet: asyncio.Future[None] = task.get_loop().create_future()
        task.add_done_callback(lambda task: _retire(task, quiet, self._left))
        for block in blocks:
            detail = f"the store ignored its deadline of {deadline_s:g} s"
            block.result.set_result(BlockResult(Status.TIMED_OUT, detail, quiet))
        self._end(task.get_loop())

    def _end(self, loop: asyncio.AbstractEventLoop) -> None:
        self._running -= 1
        self._begin(loop)

    def _expire(self, block: _Block[T]) -> None:
        if not block.begun and not block.result.done():
            block.result.set_result(BlockResult(Status.TIMED_OUT, "storage did not come to it by its deadline"))


def _retire(task: "asyncio.Task[Any]", quiet: "asyncio.Future[None]", left: Left) -> None:
    left.discard(task)
    if not task.cancelled():
        task.exception()  # said to nobody: its callers were told TIMED_OUT
    quiet.set_result(None)
