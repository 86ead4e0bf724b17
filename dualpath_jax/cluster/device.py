"""The one thread of a node that owns the device."""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")


class DeviceThread:
    """Runs engine calls one after the other, in the order they were asked for."""

    def __init__(self) -> None:
        self._executor = ThreadPoolExecutor(max_workers=1, thread_name_prefix="device")

    async def run(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Await one call on the device thread.

        A call that has begun is never left behind: where the waiting task is cancelled, the cancellation arrives
        once the call has ended, so that its buffers are free.
        """
        future = asyncio.wrap_future(self._executor.submit(function, *args, **kwargs))
        try:
            return await asyncio.shield(future)
        except asyncio.CancelledError:
            await asyncio.wait([future])
            if not future.cancelled():
                future.exception()  # mark as retrieved: the caller is gone
            raise

    def close(self) -> None:
        """Wait for the running call and drop the thread. Safe to call twice."""
        self._executor.shutdown(wait=True, cancel_futures=True)
