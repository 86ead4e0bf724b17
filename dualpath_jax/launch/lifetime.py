"""How a process of a cluster ends: a signal, or the end of the process that started it."""

import asyncio
import os
import signal
import sys
import threading
import time
from collections.abc import Coroutine
from pathlib import Path

GRACE_S = 5.0
LOST_PARENT = 3


async def until_stopped(serve: Coroutine[object, object, None], *, with_stdin: bool) -> bool:
    """Run `serve` until it ends, or until SIGTERM or SIGINT, or the end of standard input, cancels it.

    Returns whether standard input had ended: whoever started this process is gone.
    """
    loop = asyncio.get_running_loop()
    orphaned = threading.Event()
    task = asyncio.ensure_future(serve)
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, task.cancel)
    if with_stdin:
        threading.Thread(target=_watch_stdin, args=(loop, task, orphaned), daemon=True, name="stdin").start()
    try:
        await task
    except asyncio.CancelledError:
        pass
    finally:
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.remove_signal_handler(number)
    return orphaned.is_set()


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
