"""The simulator against a real local cluster: the same trace and spec, replayed and simulated.

    python benchmarks/simulated_local.py [--trace=demo] [--max_turns=12] [--repeats=1] [--within=0.15]

A round times what a turn costs beside all that is modelled (one session alone on the real cluster); then, for `basic`
and `dualpath`, it times the engines' computing on this machine, replays the trace, times them again, and simulates the
trace with these constants. Prints both completion times of each mode, medians over the rounds. Takes two to three
minutes a round on an idle machine; other work on it slows the replay more than the simulation, whose groups do not
know of it.

Exit status: 0 where all are within `--within` of each other, else 1.
"""

import os
import statistics
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from tempfile import TemporaryDirectory

from absl import app, flags

from dualpath_configs import MODES, ClusterSpec, MeasuredSpec, load_cluster, simulated_cluster
from dualpath_jax.cluster.layer_groups import layer_groups
from dualpath_jax.engine.compute_time import measure_compute
from dualpath_jax.engine.flax_engine import FlaxEngineGroup
from dualpath_jax.launch.platform import configure_jax
from dualpath_jax.replay.run import ReplayOptions, run_mode
from dualpath_scheduler.report import summarise
from dualpath_scheduler.simulator.simulation import Simulation
from dualpath_scheduler.simulator.workload import make_workload
from dualpath_scheduler.workload import Trace, load_trace

CONFIG = flags.DEFINE_string("config", "local_1p1d", "Preset or TOML file.")
TRACE = flags.DEFINE_string("trace", "demo", "As for dualpath-replay.")
SESSIONS = flags.DEFINE_integer("max_sessions", None, "Replay so many sessions at most.")
TURNS = flags.DEFINE_integer("max_turns", 12, "Replay so many turns of a session at most.")
REPEATS = flags.DEFINE_integer("repeats", 1, "Rounds.", lower_bound=1)
WITHIN = flags.DEFINE_float("within", 0.15, "Largest difference of completion times, as a share of the real one.")
CACHE = flags.DEFINE_string("compilation_cache", "", "Folder of compiled programs; empty: one that goes with the run.")

COMPARED = ("basic", "dualpath")
PROBE_MODE, PROBE_TURNS = "dualpath", 6
"""Turns of the session that is alone on the cluster."""


@dataclass(frozen=True)
class Compared:
    """Completion times of one mode in one round."""

    mode: str
    real_s: float
    simulated_s: float

    @property
    def difference(self) -> float:
        """Of the simulated time from the real one, as a share of that."""
        return self.simulated_s / self.real_s - 1

    def line(self) -> str:
        return f"replayed {self.real_s:.2f} s, simulated {self.simulated_s:.2f} s, {self.difference:+.1%}"


def measured_computing(engine: FlaxEngineGroup, mode: str) -> MeasuredSpec:
    """As the nodes of a cluster in this mode compute: prefill runs in other layer groups where it is not layerwise."""
    spec, layers = engine.spec, engine.layout.layers
    groups = layer_groups(layers, spec.scheduling.layers_per_group if MODES[mode].layerwise else layers)
    engine.warm_up_prefill(groups)
    return measure_compute(
        engine,
        groups,
        widths=spec.engine.prefill_token_buckets,
        max_context_tokens=spec.max_context_tokens,
        shared_cores=len(os.sched_getaffinity(0)),
    )


def replayed_s(mode: str, spec: ClusterSpec, trace: Trace, cache: str) -> float:
    """Completion time on the real cluster."""
    run = run_mode(mode, spec, trace, ReplayOptions(compilation_cache=cache))
    if run.failures:
        raise SystemExit(f"{mode}: {len(run.failures)} requests failed: {run.failures[0].error}")
    return summarise([run.record])[mode]["completion_s"]


def simulated_s(mode: str, spec: ClusterSpec, trace: Trace, *, measured: MeasuredSpec, turn_s: float) -> float:
    """Completion time in the simulator."""
    simulated = simulated_cluster(spec.model_copy(update={"mode": MODES[mode]}), measured, turn_s=turn_s)
    simulation = Simulation(simulated, make_workload(trace))
    simulation.run()
    return simulation.completion_s


def measured_turn_s(spec: ClusterSpec, measured: MeasuredSpec, cache: str) -> float:
    """What a turn takes beside all that is modelled: a session alone, replayed, less the same simulated."""
    trace = load_trace(TRACE.value, vocab_size=spec.model.vocab_size, max_sessions=1, max_turns=PROBE_TURNS)
    turns = len(trace.sessions[0].turns)
    modelled_s = simulated_s(PROBE_MODE, spec, trace, measured=measured, turn_s=0.0)
    return max(0.0, (replayed_s(PROBE_MODE, spec, trace, cache) - modelled_s) / turns)


def compare(engine: FlaxEngineGroup, trace: Trace, cache: str) -> Iterator[Compared]:
    """One round. Constants are measured right before a replay and right after it, and both simulations averaged, in
    case the machine has other work that comes or goes meanwhile.
    """
    spec = engine.spec
    turn_s = measured_turn_s(spec, measured_computing(engine, PROBE_MODE), cache)
    print(f"turn_s = {turn_s:.4f}")
    for mode in COMPARED:
        before = measured_computing(engine, mode)
        real_s = replayed_s(mode, spec, trace, cache)
        found = (before, measured_computing(engine, mode))
        expected_s = [simulated_s(mode, spec, trace, measured=measured, turn_s=turn_s) for measured in found]
        result = Compared(mode, real_s, statistics.mean(expected_s))
        for measured, seconds in zip(found, expected_s, strict=True):
            print(f"{mode}: {seconds:.2f} s with {measured}")
        print(f"{mode}, load {os.getloadavg()[0]:.1f}: {result.line()}", flush=True)
        yield result


def median_of(mode: str, rounds: Sequence[Compared]) -> Compared:
    """The medians of a mode's completion times."""
    of_mode = [result for result in rounds if result.mode == mode]
    real_s, expected_s = ([getattr(result, name) for result in of_mode] for name in ("real_s", "simulated_s"))
    return Compared(mode, statistics.median(real_s), statistics.median(expected_s))


def main(_: list[str]) -> None:
    spec = load_cluster(CONFIG.value)
    configure_jax("cpu", devices=spec.engines_per_node)
    trace = load_trace(
        TRACE.value,
        vocab_size=spec.model.vocab_size,
        max_sessions=SESSIONS.value,
        max_turns=TURNS.value,
        max_context_tokens=spec.max_context_tokens,
    )
    with TemporaryDirectory(prefix="dualpath-programs-") as own:
        cache = CACHE.value or own
        engine = FlaxEngineGroup(spec, compilation_cache_dir=cache)
        try:
            engine.warm_up_decode()
            rounds = [result for _ in range(REPEATS.value) for result in compare(engine, trace, cache)]
        finally:
            engine.close()
    medians = [median_of(mode, rounds) for mode in COMPARED]
    for median in medians:
        print(f"{median.mode}: {median.line()}")
    sys.exit(any(abs(median.difference) > WITHIN.value for median in medians))


if __name__ == "__main__":
    app.run(main)
