"""Nothing that a test started may outlive it."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack

import pytest


@pytest.fixture
async def no_task_left_behind() -> AsyncIterator[None]:
    """Every task that a test started has ended when it ends."""
    before = asyncio.all_tasks()
    yield
    for _ in range(100):
        left = asyncio.all_tasks() - before - {asyncio.current_task()}
        if not left:
            return
        await asyncio.sleep(0.01)
    raise AssertionError(f"tasks are left behind: {left}")


@pytest.fixture
async def stack(no_task_left_behind: None) -> AsyncIterator[AsyncExitStack]:
    """What is entered here ends with the test, the last first."""
    async with AsyncExitStack() as stack:
        yield stack
