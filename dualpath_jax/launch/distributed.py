"""Joining the other processes of an engine group: JAX's own coordination, made to end in time and with a word."""

import contextlib
import functools
import os
import sys
import threading
from collections.abc import Callable, Iterator

import jax

from dualpath_jax.launch.group_flags import Coordinates

UNJOINED = 2
SHUTDOWN_S = 5
_SPARE_S = 30
"""JAX ends the process with a stack trace when its own time is over: it gets more than it is given."""


def join_group(coordinates: Coordinates | None, *, timeout_s: int) -> None:
    """Wait until all processes of the group have met; before the first device is asked for.

    None leaves the place to what JAX detects: Slurm, Kubernetes indexed jobs, and whatever else it knows. Collectives
    on CPU run over Gloo, which tells the others the address that this host's name resolves to.

    Raises ValueError where nothing is detected. Where the others do not come in time, the process ends, with status
    2 and one line.
    """
    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    jax.config.update("jax_enable_preemption_service", False)  # it would take SIGTERM for itself
    initialize = functools.partial(
        jax.distributed.initialize,
        initialization_timeout=timeout_s + _SPARE_S,
        shutdown_timeout_seconds=SHUTDOWN_S,
    )
    where = "the coordinator that was detected" if coordinates is None else coordinates.address
    with _ended_after(
        timeout_s,
        f"not all processes of this node have met at {where} within {timeout_s} s: expected each to be started, and to "
        "reach that address; where starting takes longer, raise --initialization_timeout",
    ):
        if coordinates is None:
            _detect(initialize)
            return
        # Without an address to bind to, process 0 would listen on all of its host's.
        initialize(
            coordinates.address,
            coordinates.count,
            coordinates.index,
            cluster_detection_method="deactivate",
            coordinator_bind_address=coordinates.address,
        )


def _detect(initialize: Callable[[], None]) -> None:
    try:
        initialize()
    except (ValueError, RuntimeError) as error:
        raise ValueError(
            f"this node has several processes, and JAX detects nothing that started them together ({error}): "
            "expected Slurm, a Kubernetes indexed job, or --coordinator_address, --num_processes and --process_id"
        ) from error


@contextlib.contextmanager
def _ended_after(seconds: float, line: str) -> Iterator[None]:
    """End the process with `line` where the block takes longer: JAX cannot be interrupted there."""

    def end() -> None:
        print(line, file=sys.stderr, flush=True)
        os._exit(UNJOINED)

    timer = threading.Timer(seconds, end)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
