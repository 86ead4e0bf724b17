"""Running a trace in one mode after the other, and checking that they agree."""

import asyncio
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from tqdm import tqdm

from dualpath_configs import MODES, ClusterSpec
from dualpath_jax.engine.base import TokenChoice
from dualpath_jax.engine.oracle import build_oracle
from dualpath_jax.launch.local import LocalCluster
from dualpath_jax.launch.processes import HERE, Place
from dualpath_jax.replay.agreement import Agreement, compare, spread_sample
from dualpath_jax.replay.play import PlayedTurn, TurnKey, play
from dualpath_jax.replay.records import run_record
from dualpath_jax.replay.ties import TieSearch
from dualpath_scheduler.report import RunRecord
from dualpath_scheduler.workload import Trace


@dataclass(frozen=True)
class ReplayOptions:
    """How a trace is replayed."""

    delay_scale: float = 0.0
    compilation_cache: str = ""
    platform: str = "cpu"
    place: Callable[[str], Place] = lambda name: HERE
    """Where each process of the cluster runs."""
    sessions_at_once: int | None = None
    """None: all of them."""


@dataclass(frozen=True)
class ModeRun:
    """One mode's run: its record for the report, and its turns."""

    record: RunRecord
    turns: tuple[PlayedTurn, ...]

    @property
    def choices(self) -> dict[TurnKey, Sequence[TokenChoice]]:
        return {turn.key: turn.generation.choices for turn in self.turns if turn.generation is not None}

    @property
    def failures(self) -> list[PlayedTurn]:
        return [turn for turn in self.turns if turn.error]


def run_mode(mode: str, spec: ClusterSpec, trace: Trace, options: ReplayOptions) -> ModeRun:
    """Start a cluster in `mode`, replay, and stop it. Raises ClusterError where it does not start."""
    spec = spec.model_copy(update={"mode": MODES[mode]})
    total = sum(len(session.turns) for session in trace.sessions)
    with tqdm(total=total, desc=f"{mode:>8}", unit="req", file=sys.stderr, dynamic_ncols=True) as bar:
        bar.set_postfix_str("starting the cluster")
        with LocalCluster(
            spec, platform=options.platform, compilation_cache=options.compilation_cache, place=options.place
        ) as cluster:
            bar.set_postfix_str("")
            bar.reset()
            started = time.time()
            turns = asyncio.run(
                play(
                    cluster.client,
                    trace,
                    delay_scale=options.delay_scale,
                    ended=lambda _: bar.update(),
                    sessions_at_once=options.sessions_at_once,
                )
            )
            finished = time.time()
            stats = cluster.stats()
            record = run_record(mode, cluster.spec, turns, stats, started=started, finished=finished)
    return ModeRun(record, tuple(turns))


def check(spec: ClusterSpec, trace: Trace, runs: Sequence[ModeRun], *, sample: int) -> tuple[list[Agreement], float]:
    """Compare every run with the first one over all turns, and with the no-cache reference on a sample of them.

    Returns the comparisons and ε. Turns that failed are compared nowhere: they are failures already.
    """
    oracle, epsilon = build_oracle(spec)
    search = TieSearch(oracle, epsilon, trace)
    first = runs[0]
    comparisons = []
    for run in runs[1:]:
        expected = in_both(first.choices, run.choices)
        comparisons.append(_compare_but_for_ties(search, [run, first], first.record.mode, expected, epsilon=epsilon))
    common = [key for key in first.choices if all(key in run.choices for run in runs)]
    sampled = tqdm(spread_sample(common, sample), desc="no-cache", unit="req", file=sys.stderr, dynamic_ncols=True)
    reference = {key: search.reference(key[0]).choices(key[1]) for key in sampled}
    for run in runs:
        comparisons.append(_compare_but_for_ties(search, [run], "the no-cache reference", reference, epsilon=epsilon))
    return comparisons, epsilon


def _compare_but_for_ties(
    search: TieSearch,
    runs: Sequence[ModeRun],
    reference: str,
    expected: Mapping[TurnKey, Sequence[TokenChoice]],
    *,
    epsilon: float,
) -> Agreement:
    """Compare the first of `runs`; where it disagrees in a session, near-ties of all of them may explain that."""
    name, choices = runs[0].record.mode, runs[0].choices
    found = compare(name, choices, reference, expected, epsilon=epsilon)
    near_ties = {}
    for session_id in found.sessions:
        explanations = [search.explain(run.record.mode, run.turns, session_id) for run in runs]
        lines = [explanation.line() for explanation in explanations if explanation and explanation.ties]
        if lines and all(explanations):
            near_ties[session_id] = "; ".join(lines)
    rest = {key: wanted for key, wanted in expected.items() if key[0] not in near_ties}
    strict = compare(name, choices, reference, rest, epsilon=epsilon)
    return replace(strict, near_ties=tuple(near_ties.values()))


def in_both(
    expected: dict[TurnKey, Sequence[TokenChoice]], got: dict[TurnKey, Sequence[TokenChoice]]
) -> dict[TurnKey, Sequence[TokenChoice]]:
    """The turns of `expected` that `got` has as well."""
    return {key: choices for key, choices in expected.items() if key in got}
