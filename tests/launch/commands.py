"""Running the project's commands as a person would, in processes of their own."""

import contextlib
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

MODULES = {
    "dualpath-launch": "dualpath_jax.launch.main",
    "dualpath-replay": "dualpath_jax.replay.main",
    "dualpath-testbed": "dualpath_jax.testbed.main",
}
"""Those whose module runs as a program."""


@dataclass(frozen=True)
class Ended:
    """How a command ended, and what it said."""

    status: int
    output: str
    errors: str


def command(name: str, *flags: str) -> list[str]:
    """The console script beside this interpreter, or its module where it is not installed."""
    script = Path(sys.executable).parent / name
    return [str(script), *flags] if script.exists() else [sys.executable, "-m", MODULES[name], *flags]


def run(name: str, *flags: str, timeout_s: float = 60.0) -> Ended:
    """Run to the end. Raises TimeoutExpired, with the process killed, where it does not come."""
    done = subprocess.run(command(name, *flags), capture_output=True, text=True, timeout=timeout_s, check=False)
    return Ended(done.returncode, done.stdout, done.stderr)


def run_unread(name: str, *flags: str, timeout_s: float = 60.0) -> Ended:
    """Run to the end with a standard output that nobody reads any more, as after `| head`."""
    reader, writer = os.pipe()
    os.close(reader)
    try:
        done = subprocess.run(
            command(name, *flags), stdout=writer, stderr=subprocess.PIPE, text=True, timeout=timeout_s, check=False
        )
    finally:
        os.close(writer)
    return Ended(done.returncode, "", done.stderr)


def check_refused(ended: Ended, *texts: str) -> None:
    """One line on standard error, with these texts, exit status 2, and nothing on standard output."""
    lines = ended.errors.splitlines()
    assert (ended.status, len(lines), ended.output) == (2, 1, ""), ended
    for text in texts:
        assert text in lines[0]


class Started:
    """A command that runs, with its standard output and error in files, and temporary files below `folder / "tmp"`."""

    def __init__(self, folder: Path, label: str, name: str, *flags: str) -> None:
        self.temporary = folder / "tmp"
        self.temporary.mkdir(exist_ok=True)
        self._output, self._errors = folder / f"{label}.out", folder / f"{label}.err"
        with self._output.open("wb") as output, self._errors.open("wb") as errors:
            self.process = subprocess.Popen(
                command(name, *flags),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=errors,
                start_new_session=True,
                env={**os.environ, "TMPDIR": str(self.temporary)},
            )

    @property
    def errors(self) -> str:
        return self._errors.read_text()

    def signal(self, number: signal.Signals) -> None:
        """To the command and all that it started in its own session, as a terminal does."""
        os.killpg(self.process.pid, number)

    def end(self, timeout_s: float = 30.0) -> Ended:
        """Wait for its end."""
        status = self.process.wait(timeout_s)
        return Ended(status, self._output.read_text(), self.errors)

    def until_says(self, pattern: str, *, deadline_s: float = 60.0) -> None:
        """Wait until its standard error has what matches `pattern`."""
        end = time.monotonic() + deadline_s
        while not re.search(pattern, self.errors):
            assert self.process.poll() is None, f"it ended with {self.process.returncode}: {self.errors}"
            assert time.monotonic() < end, f"it has not said {pattern!r}: {self.errors}"
            time.sleep(0.02)


@contextlib.contextmanager
def ended_in_the_end(*started: Started) -> Iterator[None]:
    """None of these survives the block."""
    try:
        yield
    finally:
        for one in started:
            if one.process.poll() is None:
                one.process.kill()
                one.process.wait()


def descendants(pid: int) -> dict[int, str]:
    """Living processes that `pid` started, and those that they started, with their command lines."""
    parents = {}
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            with contextlib.suppress(OSError):
                state, parent = (folder / "stat").read_text().rsplit(")", 1)[1].split()[:2]
                line = (folder / "cmdline").read_text().replace("\0", " ")
                if state != "Z":
                    parents[int(folder.name)] = int(parent), line
    found: dict[int, str] = {}
    below = {pid}
    while below:
        found |= {child: line for child, (parent, line) in parents.items() if child in below and child != pid}
        below = {child for child, (parent, _) in parents.items() if parent in below}
    return found


def alive(pid: int) -> bool:
    """Whether the process runs: it exists, and is more than an exit status that nobody has read."""
    try:
        return (Path("/proc") / str(pid) / "stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


def all_gone(pids: Iterable[int], *, deadline_s: float = 15.0) -> bool:
    """Whether all of them have ended by the deadline."""
    end = time.monotonic() + deadline_s
    while any(map(alive, pids)) and time.monotonic() < end:
        time.sleep(0.05)
    return not any(map(alive, pids))
