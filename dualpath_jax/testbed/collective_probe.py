"""How long a group's collectives take: one process of several that run the experts' exchange again and again.

    python -m dualpath_jax.testbed.collective_probe --coordinator_address=10.0.0.1:9300 --num_processes=2 --process_id=0

The same command with `--process_id=1`, on the other host, is the other half. Process 0 prints the median, the 99th
percentile and the mean of the times of one exchange, in milliseconds, and writes them to `--json_out`.
"""

import json
import os
import sys
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, final

import jax
import jax.numpy as jnp
import numpy as np
from absl import flags
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from dualpath_jax.launch.distributed import join_group
from dualpath_jax.launch.flags import run_command
from dualpath_jax.launch.group_flags import Coordinates
from dualpath_jax.models.parameters import ENGINE_AXIS

FLAGS = flags.FLAGS
LOST = 4
BATCH = 20
"""Exchanges between two looks at the clock, which all processes take together."""

WARM_UP = 50
HIDDEN = 256


def _define_flags() -> None:
    flags.DEFINE_string("coordinator_address", "127.0.0.1:9300", "host:port where process 0 waits for the others.")
    flags.DEFINE_integer("num_processes", 2, "Processes that take part, one engine each.", lower_bound=2)
    flags.DEFINE_integer("process_id", 0, "Which of them this one is.", lower_bound=0)
    flags.DEFINE_enum("collective", "all_to_all", sorted(COLLECTIVES), "Which exchange is timed.")
    flags.DEFINE_integer("bytes", 65536, "Bytes that each process gives to one exchange.", lower_bound=1)
    flags.DEFINE_float("seconds", 10.0, "Time to measure for.", lower_bound=0.0)
    flags.DEFINE_string("json_out", "", "File for the figures and all times; empty: the printed line alone.")
    flags.DEFINE_float("deadline_s", 30.0, "Longest time of one exchange: then the others are taken for dead.")
    flags.DEFINE_integer("initialization_timeout", 60, "Seconds to wait for the others.", lower_bound=1)


def _all_to_all(x_TD: jax.Array) -> jax.Array:
    """Each process keeps its share of the rows and gives the others theirs."""
    return jax.lax.all_to_all(x_TD, ENGINE_AXIS, split_axis=0, concat_axis=0, tiled=True)


def _experts(x_TD: jax.Array) -> jax.Array:
    """What a mixture-of-experts layer does here: gather all tokens, scatter the sums (`models.feed_forward`)."""
    gathered = jax.lax.all_gather(x_TD, ENGINE_AXIS, tiled=True)
    return jax.lax.psum_scatter(gathered, ENGINE_AXIS, scatter_dimension=0, tiled=True)


COLLECTIVES: dict[str, Callable[[jax.Array], jax.Array]] = {"all_to_all": _all_to_all, "experts": _experts}


@final
class Watchdog:
    """Ends the process where `rest` is not called in time: nothing interrupts a collective whose peer is silent."""

    def __init__(self, deadline_s: float) -> None:
        self._deadline_s = deadline_s
        self._last = time.monotonic()
        threading.Thread(target=self._watch, daemon=True, name="watchdog").start()

    def rest(self) -> None:
        """An exchange has ended."""
        self._last = time.monotonic()

    def _watch(self) -> None:
        while time.monotonic() < self._last + self._deadline_s:
            time.sleep(0.1)
        print(f"an exchange takes longer than {self._deadline_s:g} s: the others are gone", file=sys.stderr, flush=True)
        os._exit(LOST)


def measure(collective: str, size_bytes: int, seconds: float, watchdog: Watchdog) -> list[float]:
    """Times of single exchanges, in seconds; all processes of the group call this together."""
    mesh = Mesh(np.array(jax.devices()), (ENGINE_AXIS,))
    sharded = NamedSharding(mesh, PartitionSpec(ENGINE_AXIS))
    processes = len(mesh.devices)
    rows = max(processes, size_bytes // (4 * HIDDEN) // processes * processes)
    exchange = jax.jit(
        jax.shard_map(
            COLLECTIVES[collective],
            mesh=mesh,
            in_specs=PartitionSpec(ENGINE_AXIS),
            out_specs=PartitionSpec(ENGINE_AXIS),
            check_vma=False,
        )
    )
    anyone = jax.jit(jnp.max, out_shardings=NamedSharding(mesh, PartitionSpec()))
    x = _sharded(np.ones((processes * rows, HIDDEN), np.float32), sharded)
    times: list[float] = []
    end = float("inf")
    while True:
        times += [_timed(exchange, x, watchdog) for _ in range(BATCH)]
        if len(times) >= WARM_UP and end == float("inf"):
            times, end = [], time.monotonic() + seconds
        # Process 0's clock decides for all.
        over = np.full(processes, time.monotonic() >= end and jax.process_index() == 0)
        if bool(np.asarray(anyone(_sharded(over, sharded)).addressable_data(0))):
            return times


def _sharded(array: np.ndarray, sharding: NamedSharding) -> jax.Array:
    return jax.make_array_from_callback(array.shape, sharding, lambda index: array[index])


def _timed(exchange: Any, x: jax.Array, watchdog: Watchdog) -> float:
    start = time.perf_counter()
    jax.block_until_ready(exchange(x))
    watchdog.rest()
    return time.perf_counter() - start


def summary(times: Sequence[float]) -> dict[str, float]:
    """Median, 99th percentile and mean, in milliseconds, and how many exchanges there were."""
    milliseconds = 1e3 * np.array(times)
    return {
        "median_ms": float(np.median(milliseconds)),
        "p99_ms": float(np.percentile(milliseconds, 99)),
        "mean_ms": float(np.mean(milliseconds)),
        "exchanges": len(times),
    }


def main() -> int:
    """0: measured; 4: another process is gone."""
    jax.config.update("jax_platforms", "cpu")
    jax.config.update("jax_num_cpu_devices", 1)
    place = Coordinates(FLAGS.coordinator_address, FLAGS.num_processes, FLAGS.process_id)
    join_group(place, timeout_s=FLAGS.initialization_timeout)
    try:
        times = measure(FLAGS.collective, FLAGS.bytes, FLAGS.seconds, Watchdog(FLAGS.deadline_s))
    except ValueError as error:  # what JAX raises for a connection that breaks
        print(f"an exchange failed: {error}", file=sys.stderr, flush=True)
        os._exit(LOST)  # JAX's own end would wait for those who are gone
    figures = summary(times)
    if FLAGS.process_id == 0:
        print(" ".join(f"{name}={value:.4g}" for name, value in figures.items()), flush=True)
        if FLAGS.json_out:
            Path(FLAGS.json_out).write_text(json.dumps({**figures, "bytes": FLAGS.bytes, "times_s": times}))
    jax.distributed.shutdown()
    return 0


if __name__ == "__main__":
    _define_flags()
    run_command(main)
