"""The processes of one node of a local cluster: they start, live and end together, and are started anew together."""

import logging
import signal
import socket
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import final

from dualpath_jax.launch.lifetime import LOST_GROUP
from dualpath_jax.launch.processes import POLL_S, ClusterError, Place, RoleProcess

FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.5, 30.0
SETTLED_S = 60.0
"""A node that ran for so long is started anew after the first pause again."""

_FOLLOWED = (LOST_GROUP, -signal.SIGABRT)
"""How the processes end that lose another one; JAX aborts those that lose their coordinator."""


@final
class NodeProcesses:
    """One node, of `count` processes: `name`, which leads and is what others know, then `name`.1, ..."""

    def __init__(
        self, name: str, flags: Sequence[str], folder: Path, *, count: int, place: Callable[[str], Place]
    ) -> None:
        self.name = name
        self.processes: tuple[RoleProcess, ...] = ()
        self._flags = list(flags)
        self._folder = folder
        self._count = count
        self._place = place
        self._started = 0.0
        self._pause_s = FIRST_PAUSE_S
        self._next_start = 0.0
        self.start()

    @property
    def leader(self) -> RoleProcess:
        return self.processes[0]

    @property
    def is_group(self) -> bool:
        return self._count > 1

    def start(self) -> None:
        """Start all processes; those of before have ended."""
        coordinator = f"{self._place(self.name).host}:{_free_port()}" if self.is_group else ""
        self._started = time.monotonic()
        self.processes = ()
        for index in range(self._count):
            group = [f"--coordinator_address={coordinator}", f"--num_processes={self._count}"]
            flags = [*self._flags, *group, f"--process_id={index}"] if self.is_group else self._flags
            name = f"{self.name}.{index}" if index else self.name
            self.processes += (RoleProcess(name, flags, self._folder, self._place(name)),)

    def wait_ready(self, *, deadline_s: float) -> None:
        """Wait until the node serves. Raises ClusterError where a process ends first, or at the deadline."""
        end = time.monotonic() + deadline_s
        while not self.leader.ready:
            self.check()
            if time.monotonic() > end:
                raise ClusterError(
                    f"{self.name} is not ready after {deadline_s:g} s; its log ends: {self.leader.last_words()}"
                )
            time.sleep(POLL_S)

    def check(self) -> None:
        """Raises ClusterError where a process has ended: of several, the one that the others followed."""
        if all(process.running for process in self.processes):
            return
        time.sleep(POLL_S)  # a process that is about to end of its own accord does so
        ended = [process for process in self.processes if not process.running]
        first = next((process for process in ended if process.status not in _FOLLOWED), ended[0])
        first.check()

    def keep(self) -> None:
        """Where a process has ended, start all anew after a pause: the node's next incarnation."""
        now = time.monotonic()
        if all(process.running for process in self.processes):
            if now > self._started + SETTLED_S:
                self._pause_s = FIRST_PAUSE_S
            self._next_start = 0.0
            return
        if not self._next_start:
            self._next_start, self._pause_s = now + self._pause_s, min(2 * self._pause_s, LONGEST_PAUSE_S)
        elif now > self._next_start:
            for process in self.processes:
                process.kill()  # those that have not noticed may be frozen
                process.stop()
            logging.warning("%s lost a process and is started anew: %s", self.name, self._what_ended())
            self.start()

    def _what_ended(self) -> str:
        return ", ".join(f"{process.name} with status {process.status}" for process in self.processes)


@final
class Keeper:
    """A thread that keeps nodes running, from `start` to `close`."""

    def __init__(self, nodes: Sequence[NodeProcesses]) -> None:
        self._nodes = nodes
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True, name="keeper")
        self._thread.start()

    def close(self) -> None:
        """Start nothing any more."""
        self._over.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._over.wait(5 * POLL_S):
            for node in self._nodes:
                try:
                    node.keep()
                except OSError as error:  # no process, no file, no port for now
                    logging.warning("%s cannot be started: %s", node.name, error)


def _free_port() -> int:
    """A port that nobody listens on now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
