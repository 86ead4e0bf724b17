"""One child process of a local cluster: started, watched, stopped; it never outlives its parent."""

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import final

POLL_S = 0.02
STOP_S = 5.0


class ClusterError(RuntimeError):
    """A local cluster that did not start, or lost a process; the text names it and says what it said last."""


@contextlib.contextmanager
def interrupt_deferred() -> Iterator[None]:
    """A Ctrl-C that comes within is raised at the end, when what was begun is known to whoever must clean it up."""
    if threading.current_thread() is not threading.main_thread():
        yield  # only the main thread is interrupted
        return
    came: list[int] = []
    before = signal.signal(signal.SIGINT, lambda number, frame: came.append(number))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
        if came:
            signal.raise_signal(signal.SIGINT)


def terminated_as_interrupted() -> None:
    """From now on SIGTERM is a Ctrl-C: for commands that have something to take down."""
    signal.signal(signal.SIGTERM, lambda number, frame: signal.raise_signal(signal.SIGINT))


@final
@dataclass(frozen=True)
class Place:
    """Where a process of a cluster runs: what stands before its command, the host that it listens at, and what its
    environment has besides this one's."""

    command: tuple[str, ...] = ()
    host: str = "127.0.0.1"
    environment: Mapping[str, str] = field(default_factory=dict)


HERE = Place()


@final
class RoleProcess:
    """`dualpath-launch` in a process of its own, in a session of its own, so that Ctrl-C reaches the parent alone.

    Its standard input is a pipe from this process: it stops when the pipe ends, however this process ends.
    """

    def __init__(self, name: str, flags: Sequence[str], folder: Path, place: Place = HERE) -> None:
        self.name = name
        self.log = folder / f"{name}.log"
        self._address_file = folder / f"{name}.address"
        command = [*place.command, sys.executable, "-m", "dualpath_jax.launch.main", "--stop_with_stdin", *flags]
        self._address_file.unlink(missing_ok=True)  # of a process of that name before
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                [*command, f"--bind={place.host}:0", f"--address_file={self._address_file}"],
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                start_new_session=True,
                env={**child_environment(), **place.environment},
            )

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def running(self) -> bool:
        return self.status is None

    @property
    def status(self) -> int | None:
        """What it ended with, negative for a signal; None while it runs."""
        return self._process.poll()

    @property
    def ready(self) -> bool:
        """Whether it serves."""
        return self._address_file.exists()

    def address(self, *, deadline_s: float) -> str:
        """Wait until it serves. Raises ClusterError where it ends first, or does not by the deadline."""
        end = time.monotonic() + deadline_s
        while not self.ready:
            self.check()
            if time.monotonic() > end:
                raise ClusterError(
                    f"{self.name} is not ready after {deadline_s:g} s; its log ends: {self.last_words()}"
                )
            time.sleep(POLL_S)
        return self._address_file.read_text()

    def check(self) -> None:
        """Raises ClusterError where the process has ended."""
        if not self.running:
            raise ClusterError(f"{self.name} ended with status {self.status}: {self.last_words()}")

    def last_words(self) -> str:
        """The last line of its log."""
        lines = self.log.read_text(errors="replace").strip().splitlines() if self.log.exists() else []
        return lines[-1] if lines else "nothing"

    def kill(self) -> None:
        """SIGKILL, as a crash would."""
        self._process.kill()
        self._process.wait()

    def ask_to_stop(self) -> None:
        """SIGTERM, without waiting."""
        if self.running:
            self._process.send_signal(signal.SIGTERM)

    def stop(self) -> None:
        """Wait for its end, and force it where it does not come. Safe to call twice."""
        self.ask_to_stop()
        try:
            self._process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            self.kill()
        if self._process.stdin is not None:
            with contextlib.suppress(OSError):
                self._process.stdin.close()


def child_environment() -> dict[str, str]:
    """This environment; a count of emulated devices set for this process is not the child's."""
    environment = dict(os.environ)
    kept = [flag for flag in environment.get("XLA_FLAGS", "").split() if "host_platform_device_count" not in flag]
    environment["XLA_FLAGS"] = " ".join(kept)
    return environment
