"""How a process of a cluster ends: a signal, or the end of the process that started it."""

import asyncio
import contextlib
import os
import signal
import sys
import threading
import time
from collections.abc import Coroutine
from pathlib import Path

GRACE_S = 5.0
LOST_PARENT = 3
LOST_GROUP = 4
INTERRUPTED = 130


async def until_stopped(serve: Coroutine[object, object, None], *, with_stdin: bool) -> bool:
    """Run `serve` until it ends, or until SIGTERM or SIGINT, or the end of standard input, cancels it.

    What is being compiled or loaded then is waited for; a second SIGINT ends the process at once, with status 130.
    Returns whether standard input had ended: whoever started this process is gone.
    """
    loop = asyncio.get_running_loop()
    orphaned = threading.Event()
    task = asyncio.create_task(serve)
    # Both stay until the loop is closed, which may wait for a thread.
    loop.add_signal_handler(signal.SIGTERM, task.cancel)
    loop.add_signal_handler(signal.SIGINT, _interrupt, task)
    if with_stdin:
        threading.Thread(target=_watch_stdin, args=(loop, task, orphaned), daemon=True, name="stdin").start()
    with contextlib.suppress(asyncio.CancelledError):
        await task
    return orphaned.is_set()


def _interrupt(task: "asyncio.Task[None]") -> None:
    if task.done() or task.cancelling():
        os._exit(INTERRUPTED)
    task.cancel()


def _watch_stdin(loop: asyncio.AbstractEventLoop, task: "asyncio.Future[None]", orphaned: threading.Event) -> None:
    """The pipe ends however the parent ends, SIGKILL included; a process that does not stop then is ended."""
    fd = sys.stdin.fileno()
    while os.read(fd, 4096):
        pass
    orphaned.set()
    loop.call_soon_threadsafe(task.cancel)
    time.sleep(GRACE_S)
    os._exit(LOST_PARENT)


def write_address(path: str, address: str) -> None:
    """Write whole or not at all: readers poll for the file."""
    temporary = Path(f"{path}.tmp")
    temporary.write_text(address)
    temporary.replace(path)
