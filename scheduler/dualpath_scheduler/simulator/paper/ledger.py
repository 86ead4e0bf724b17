"""Results that stay: a line of JSON a run, written as soon as it is there, and read again by the next start."""

import contextlib
import json
import os
import sys
import threading
from collections.abc import Iterable
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from contextlib import ExitStack
from itertools import islice
from multiprocessing import get_context, parent_process
from multiprocessing.connection import wait as wait_for
from pathlib import Path
from typing import final

from pydantic import ValidationError

from dualpath_configs import SimulatedSpec
from dualpath_scheduler.simulator.accounting import ConservationError
from dualpath_scheduler.simulator.paper.runs import Result, Run, execute, key_of
from dualpath_scheduler.workload import TraceError


@final
class Ledger:
    """What has been run so far, by `Run.key`. `failed` has what was wrong with runs of this process, by their names."""

    def __init__(self, path: Path) -> None:
        """Reads the file. A line that was cut short by the end of a process goes.

        A key of a spec that is new since a line was written has its default there; a line whose spec has a key that is
        no more is left alone and counts for nothing.
        """
        self._path = path
        self._results: dict[str, Result] = {}
        self.failed: dict[str, str] = {}
        whole = b""
        if path.exists():
            data = path.read_bytes()
            whole = data[: data.rfind(b"\n") + 1]
            if whole != data:
                path.write_bytes(whole)
        for line in whole.splitlines():
            entry = json.loads(line)
            with contextlib.suppress(ValidationError):
                spec = SimulatedSpec.model_validate(entry["spec"])
                self._results[key_of(spec, entry["work"])] = entry["result"]

    def get(self, run: Run) -> Result | None:
        return self._results.get(run.key)

    def is_settled(self, run: Run) -> bool:
        """Whether there is nothing left to do: it has a result, or has failed."""
        return run.key in self._results or run.name in self.failed

    def add(self, run: Run, result: Result, seconds: float) -> None:
        """The result is in the file when this returns."""
        what = {"name": run.name, "spec": run.spec.model_dump(mode="json"), "work": run.work}
        entry = {**what, "seconds": round(seconds, 2), "result": result}
        with self._path.open("a") as file:
            file.write(json.dumps(entry) + "\n")
        self._results[run.key] = result

    def fill(self, runs: Iterable[Run], workers: int) -> None:
        """Executes those that are not there, the cheapest first, and says so line by line on standard error.

        One that fails is noted in `failed`, not tried again by this process, and keeps no other from running.
        """
        missing = {run.key: run for run in runs if not self.is_settled(run)}
        todo = sorted(missing.values(), key=lambda run: (run.expected_requests, run.name))
        if not todo:
            return
        progress = _Progress(todo)
        waiting = iter(todo)
        with ExitStack() as stack:
            pool = stack.enter_context(ProcessPoolExecutor(workers, get_context("spawn"), initializer=_end_with_parent))
            under_way: dict[Future[tuple[Result, float]], Run] = {}
            while True:
                for run in islice(waiting, workers - len(under_way)):
                    under_way[pool.submit(execute, run)] = run
                if not under_way:
                    return
                for future in wait(under_way, return_when=FIRST_COMPLETED).done:
                    run = under_way.pop(future)
                    try:
                        result, seconds = future.result()
                    except (TraceError, ConservationError) as error:
                        self.failed[run.name] = str(error)
                        continue
                    self.add(run, result, seconds)
                    progress.say(run, result, seconds)


def _end_with_parent() -> None:
    """A worker whose parent was killed would wait for its next run forever."""
    parent = parent_process()
    assert parent is not None

    def wait_for_its_end() -> None:
        wait_for([parent.sentinel])
        os._exit(1)

    threading.Thread(target=wait_for_its_end, daemon=True).start()


@final
class _Progress:
    """A line a run; the time left is guessed from requests done and requests to come."""

    def __init__(self, todo: list[Run]) -> None:
        self._runs, self._done = len(todo), 0
        self._requests_left = sum(run.expected_requests for run in todo)
        self._requests, self._seconds = 0.0, 0.0

    def say(self, run: Run, result: Result, seconds: float) -> None:
        self._done += 1
        self._requests += run.expected_requests
        self._requests_left -= run.expected_requests
        self._seconds += seconds
        left_min = self._requests_left * self._seconds / self._requests / 60
        print(
            f"{self._done}/{self._runs}  {run.name}: {result['completion_s']:.0f} s "
            f"(took {seconds:.1f} s; {left_min:.0f} min of a processor to go)",
            file=sys.stderr,
            flush=True,
        )
