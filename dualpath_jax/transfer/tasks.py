"""Running several coroutines for one caller without leaving any behind."""

import asyncio
from collections.abc import Coroutine, Iterable, Sequence
from typing import Any


async def settle(tasks: "Sequence[asyncio.Task[Any]]") -> None:
    """Wait for tasks that are about to end; a cancellation of the waiter takes effect after that."""
    cancelled: asyncio.CancelledError | None = None
    while pending := [task for task in tasks if not task.done()]:
        try:
            await asyncio.wait(pending)
        except asyncio.CancelledError as error:
            cancelled = error
    if cancelled is not None:
        raise cancelled


def raise_first_error(tasks: "Iterable[asyncio.Task[Any]]") -> None:
    """Raise the first exception of tasks that are done; cancelled ones have none."""
    errors = [error for task in tasks if not task.cancelled() and (error := task.exception()) is not None]
    if errors:
        raise errors[0]


async def run_all(parts: Iterable[Coroutine[Any, Any, None]]) -> None:
    """Run all at once; the first failure cancels the rest and is raised. Leaves no task behind, also when cancelled."""
    tasks = [asyncio.create_task(part) for part in parts]
    try:
        if tasks:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_EXCEPTION)
    finally:
        for task in tasks:
            task.cancel()
        await settle(tasks)
    raise_first_error(tasks)
