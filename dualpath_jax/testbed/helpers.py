"""A module of ours that runs in a namespace of a testbed, beside a cluster or without one."""

import contextlib
import select
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Self, final

from dualpath_jax.launch.processes import child_environment

STOP_S = 5.0
ANSWER_S = 20.0


class HelperError(RuntimeError):
    """A process that did not do its part; the text names it and says what it said last."""


@final
class Helper:
    """A context manager: `python -m MODULE FLAGS`, whose standard input is a pipe from this process."""

    def __init__(
        self, name: str, namespace_command: Sequence[str], module: str, flags: Sequence[str], log: Path
    ) -> None:
        self.name = name
        self._log = log
        with log.open("wb") as errors:
            self._process = subprocess.Popen(
                [*namespace_command, sys.executable, "-m", module, *flags],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                start_new_session=True,
                env=child_environment(),
            )

    def ask(self, *, deadline_s: float = ANSWER_S) -> str:
        """Send an empty line, and return the line that it answers with. Raises HelperError."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        try:
            self._process.stdin.write(b"\n")
            self._process.stdin.flush()
        except OSError as error:
            raise HelperError(f"{self.name} has ended: {self._last_words()}") from error
        if not select.select([self._process.stdout], [], [], deadline_s)[0]:
            raise HelperError(f"{self.name} does not answer within {deadline_s:g} s: {self._last_words()}")
        answer = self._process.stdout.readline().decode().strip()
        if not answer:
            raise HelperError(f"{self.name} has ended: {self._last_words()}")
        return answer

    def end(self, *, deadline_s: float) -> None:
        """Wait for its end. Raises HelperError where it does not come, or with a status."""
        try:
            status = self._process.wait(deadline_s)
        except subprocess.TimeoutExpired as error:
            raise HelperError(f"{self.name} has not ended after {deadline_s:g} s: {self._last_words()}") from error
        if status:
            raise HelperError(f"{self.name} ended with status {status}: {self._last_words()}")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                with contextlib.suppress(OSError):
                    pipe.close()
        end = time.monotonic() + STOP_S
        while self._process.poll() is None and time.monotonic() < end:
            time.sleep(0.02)
        self._process.kill()
        self._process.wait()

    def _last_words(self) -> str:
        lines = self._log.read_text(errors="replace").strip().splitlines()
        return lines[-1] if lines else "it said nothing"
