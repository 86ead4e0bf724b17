"""The simulator against a real local cluster: the same trace and spec, replayed and simulated.

    python benchmarks/simulated_local.py [--trace=demo] [--max_turns=8] [--repeats=1] [--within=0.15]

A round times the engines' computing on this machine and what a turn costs beside (one session alone on the real
cluster), then replays `basic` and `dualpath` and simulates them with these constants. Prints both completion times of
each, medians over the rounds. Exit status: 0 where all are within `--within` of each other, else 1.
"""

import gc
import json
import os
import statistics
import sys
from dataclasses import dataclass
from tempfile import TemporaryDirectory

from absl import app, flags

from dualpath_configs import MODES, ClusterSpec, MeasuredSpec, load_cluster, simulated_cluster
from dualpath_jax.cluster.prefill_pass import layer_groups
from dualpath_jax.launch.platform import configure_jax
from dualpath_jax.replay.run import ReplayOptions, run_mode
from dualpath_scheduler.report import summarise
from dualpath_scheduler.simulator.simulation import Simulation
from dualpath_scheduler.simulator.workload import make_workload
from dualpath_scheduler.workload import Trace, load_trace

CONFIG = flags.DEFINE_string("config", "local_1p1d", "Preset or TOML file.")
TRACE = flags.DEFINE_string("trace", "demo", "As for dualpath-replay.")
SESSIONS = flags.DEFINE_integer("max_sessions", None, "Replay so many sessions at most.")
TURNS = flags.DEFINE_integer("max_turns", 8, "Replay so many turns of a session at most.")
REPEATS = flags.DEFINE_integer("repeats", 1, "Rounds.", lower_bound=1)
WITHIN = flags.DEFINE_float("within", 0.15, "Largest difference of completion times, as a share of the real one.")
CACHE = flags.DEFINE_string("compilation_cache", "", "Folder of compiled programs; empty: one that goes with the run.")

COMPARED = ("basic", "dualpath")
PROBE_TURNS = 6
"""Turns of the session that is alone on the cluster."""


@dataclass(frozen=True)
class Compared:
    """Completion times of one mode in one round."""

    mode: str
    real_s: float
    simulated_s: float


def measured_computing(spec: ClusterSpec, cache: str) -> dict[str, MeasuredSpec]:
    """Of each mode: prefill runs in other layer groups where it is not layerwise."""
    from dualpath_jax.engine.compute_time import measure_compute
    from dualpath_jax.engine.flax_engine import FlaxEngineGroup

    engine = FlaxEngineGroup(spec, compilation_cache_dir=cache)
    try:
        engine.warm_up_decode()
        found = {}
        for mode in COMPARED:
            layers = engine.layout.layers
            groups = layer_groups(layers, spec.scheduling.layers_per_group if MODES[mode].layerwise else layers)
            engine.warm_up_prefill(groups)
            found[mode] = measure_compute(
                engine,
                groups,
                widths=spec.engine.prefill_token_buckets,
                max_context_tokens=spec.max_context_tokens,
                shared_cores=len(os.sched_getaffinity(0)),
            )
        return found
    finally:
        engine.close()
        del engine
        gc.collect()


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
    modelled_s = simulated_s("dualpath", spec, trace, measured=measured, turn_s=0.0)
    return max(0.0, (replayed_s("dualpath", spec, trace, cache) - modelled_s) / turns)


def compare(spec: ClusterSpec, trace: Trace, cache: str) -> list[Compared]:
    """One round."""
    measured = measured_computing(spec, cache)
    turn_s = measured_turn_s(spec, measured["dualpath"], cache)
    print(json.dumps({"turn_s": turn_s, **{mode: found.model_dump() for mode, found in measured.items()}}), flush=True)
    results = []
    for mode in COMPARED:
        expected_s = simulated_s(mode, spec, trace, measured=measured[mode], turn_s=turn_s)
        results.append(Compared(mode, replayed_s(mode, spec, trace, cache), expected_s))
        print(json.dumps({"load": os.getloadavg()[0], **results[-1].__dict__}), flush=True)
    return results


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
        rounds = [result for _ in range(REPEATS.value) for result in compare(spec, trace, CACHE.value or own)]
    worst = 0.0
    for mode in COMPARED:
        of_mode = [result for result in rounds if result.mode == mode]
        real_s = statistics.median(result.real_s for result in of_mode)
        expected_s = statistics.median(result.simulated_s for result in of_mode)
        worst = max(worst, abs(expected_s / real_s - 1))
        print(f"{mode}: replayed {real_s:.2f} s, simulated {expected_s:.2f} s, {expected_s / real_s - 1:+.1%}")
    sys.exit(worst > WITHIN.value)


if __name__ == "__main__":
    app.run(main)
