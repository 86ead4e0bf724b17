"""`dualpath-replay`: replay a trace of agent sessions on a local cluster, and say what happened."""

import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from absl import flags

from dualpath_configs import MODES, ClusterSpec
from dualpath_jax.launch.flags import UsageError, cluster_from_flags, define_config_flags, run_command
from dualpath_jax.launch.local import LocalCluster
from dualpath_jax.launch.processes import HERE, ClusterError, Place
from dualpath_jax.replay.agreement import Agreement
from dualpath_jax.replay.run import ModeRun, ReplayOptions, check, run_mode
from dualpath_scheduler.report import ModeSummary, format_table, summarise, write_report
from dualpath_scheduler.workload import Trace, TraceError, load_trace

FLAGS = flags.FLAGS
FAILED = 1
SHOWN = 5


def define_replay_flags() -> None:
    """Those that say what is replayed, and on what."""
    define_config_flags()
    flags.DEFINE_string("trace", "demo", "A Mooncake-format file, or demo, paper-32k, paper-48k, paper-64k.")
    flags.DEFINE_enum("mode", "dualpath", sorted(MODES), "How the cluster reads and schedules.")
    flags.DEFINE_bool("compare", False, "Run basic, dualpath and oracle one after the other, instead of --mode.")
    flags.DEFINE_string("report", "", "Folder for report.json, requests.csv and plots; empty: the table alone.")
    flags.DEFINE_float(
        "scale", 1.0, "Multiply the trace's lengths by this factor: 0.1, a tenth.", lower_bound=1e-6, upper_bound=1e6
    )
    flags.DEFINE_integer("max_sessions", None, "Replay so many sessions at most.", lower_bound=1)
    flags.DEFINE_integer("sessions_at_once", None, "Replay so many sessions at a time; absent: all.", lower_bound=1)
    flags.DEFINE_integer("max_turns", None, "Replay so many turns of a session at most.", lower_bound=1)
    flags.DEFINE_integer("seed", 0, "Seed of a generated trace.")
    flags.DEFINE_float("delay_scale", 0.0, "Factor of the trace's arrival times and tool delays.", lower_bound=0.0)
    flags.DEFINE_integer("check_requests", 8, "Requests to compare with the no-cache reference.", lower_bound=0)
    flags.DEFINE_float(
        "min_speedup", 0.0, "Fail where dualpath is not so many times as fast as basic.", lower_bound=0.0
    )
    flags.DEFINE_string("platform", "cpu", "JAX platform of the nodes and of the reference.")
    flags.DEFINE_string("compilation_cache", "", "Folder where compiled programs are kept between runs; empty: none.")


def main() -> int:
    """0: every request succeeded, all runs agree, and are fast enough; 1: not so, or the cluster did not start."""
    spec, trace = inputs()
    modes = list(MODES) if FLAGS.compare else [FLAGS.mode]
    specs = {mode: _own_store(spec, mode, modes) for mode in modes}
    try:
        return replay(spec, trace, modes, lambda mode: run_mode(mode, specs[mode], trace, options()))
    except ClusterError as error:
        print(f"dualpath-replay: {error}", file=sys.stderr)
        return FAILED


def options(place: Callable[[str], Place] = lambda name: HERE) -> ReplayOptions:
    """What the flags say of how it is replayed."""
    return ReplayOptions(
        FLAGS.delay_scale, FLAGS.compilation_cache, FLAGS.platform, place, sessions_at_once=FLAGS.sessions_at_once
    )


def replay(spec: ClusterSpec, trace: Trace, modes: Sequence[str], run: Callable[[str], ModeRun]) -> int:
    """Run each mode, print the table and whether they agree; returns the status.

    Raises ClusterError where one does not start.
    """
    _say_what_is_replayed(trace)
    runs = [run(mode) for mode in modes]
    summaries = _summaries(spec, trace, runs)
    if spec.engine.kind == "flax":
        from dualpath_jax.launch.platform import configure_jax

        configure_jax(FLAGS.platform, devices=1)  # only now: the nodes had the devices
    comparisons, epsilon = check(spec, trace, runs, sample=FLAGS.check_requests)
    print(format_table(summaries))
    verdict = _verdict(runs, comparisons, epsilon)
    slow = _too_slow(summaries)
    if slow:
        print(slow, file=sys.stderr)
    return FAILED if slow else verdict


def inputs() -> tuple[ClusterSpec, Trace]:
    """What is replayed and on what, once everything that can be known to be wrong without starting anything is not."""
    for override in FLAGS.set:
        if override.startswith(("mode=", "mode.")):
            raise UsageError(f"--set={override}: the replay chooses the mode itself: expected --mode or --compare")
    spec = cluster_from_flags()
    try:
        LocalCluster(spec)
        if spec.engine.kind == "flax":
            _check_model(spec)
    except ValueError as error:
        raise UsageError(f"--config={FLAGS.config}: {error}") from error
    if spec.engine.kind == "flax":
        _check_platform()
    if FLAGS.report:
        try:
            Path(FLAGS.report).mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise UsageError(
                f"--report={FLAGS.report}: expected a folder, or room for one: {error.strerror}"
            ) from error
    try:
        trace = load_trace(
            FLAGS.trace,
            vocab_size=spec.model.vocab_size,
            scale=FLAGS.scale,
            max_sessions=FLAGS.max_sessions,
            max_turns=FLAGS.max_turns,
            seed=FLAGS.seed,
            max_context_tokens=spec.max_context_tokens,
        )
    except TraceError as error:
        raise UsageError(str(error)) from error
    return spec, trace


def _check_model(spec: ClusterSpec) -> None:
    """Raises ValueError where the checkpoint or the comparison that comes last would not do. Asks for no device."""
    from dualpath_jax.models import agreement_epsilon, check_hugging_face

    agreement_epsilon(spec.model)
    if spec.checkpoint:
        check_hugging_face(spec.checkpoint, spec.model)


def _check_platform() -> None:
    from dualpath_jax.launch.platform import check_platform

    try:
        check_platform(FLAGS.platform)
    except ValueError as error:
        raise UsageError(f"--platform={FLAGS.platform}: {error}") from error


def _own_store(spec: ClusterSpec, mode: str, modes: Sequence[str]) -> ClusterSpec:
    """Runs that are compared must not find each other's blocks: each gets a folder below the store's."""
    if len(modes) == 1 or not spec.storage.url:
        return spec
    folder, question, faults = spec.storage.url.partition("?")
    storage = spec.storage.model_copy(update={"url": f"{folder.rstrip('/')}/{mode}{question}{faults}"})
    return spec.model_copy(update={"storage": storage})


def _say_what_is_replayed(trace: Trace) -> None:
    summary = trace.summary()
    print(
        f"{summary['name']}: {summary['sessions']} sessions, {summary['turns']} turns, "
        f"{summary['prompt_tokens']} prompt tokens, longest context {summary['longest_context_tokens']}",
        file=sys.stderr,
    )
    if trace.cut_turns:
        print(f"{trace.cut_turns} turns beyond the longest context are left out", file=sys.stderr)


def _summaries(spec: ClusterSpec, trace: Trace, runs: Sequence[ModeRun]) -> dict[str, ModeSummary]:
    """The metrics of each mode; written to the report before anything that comes later can fail."""
    records = [run.record for run in runs]
    if FLAGS.report:
        return write_report(Path(FLAGS.report), spec.model_dump(mode="json"), trace.summary(), records)
    return summarise(records)


def _too_slow(summaries: Mapping[str, ModeSummary]) -> str:
    """What to say where `--min_speedup` is not reached; empty: nothing."""
    speedup = summaries["dualpath"].get("speedup_over_basic") if "dualpath" in summaries else None
    if not FLAGS.min_speedup or (speedup is not None and speedup >= FLAGS.min_speedup):
        return ""
    reached = "not known" if speedup is None else f"{speedup:.2f}"
    return (
        f"{Path(sys.argv[0]).name}: the speed-up of dualpath over basic is {reached}: expected at least "
        f"{FLAGS.min_speedup:g}; "
        "other work on this machine's cores slows the faster run most"
    )


def _verdict(runs: Sequence[ModeRun], comparisons: Sequence[Agreement], epsilon: float) -> int:
    for comparison in comparisons:
        print(comparison.line(epsilon))
        for problem in comparison.problems[:SHOWN]:
            print(f"  {problem}", file=sys.stderr)
    for line in dict.fromkeys(line for comparison in comparisons for line in comparison.near_ties):
        print(f"  {line}")
    failures = [(run.record.mode, turn) for run in runs for turn in run.failures]
    for mode, turn in failures[:SHOWN]:
        print(f"{mode}: session {turn.session_id} turn {turn.turn} failed: {turn.error}", file=sys.stderr)
    if len(failures) > SHOWN:
        print(f"... and {len(failures) - SHOWN} more failed requests", file=sys.stderr)
    if FLAGS.report:
        print(f"Report: {FLAGS.report}")
    return FAILED if failures or any(comparison.problems for comparison in comparisons) else 0


def run() -> None:
    """Entry point of `dualpath-replay`."""
    define_replay_flags()
    run_command(main)


if __name__ == "__main__":
    run()
