"""Time to first token under several read plans and read orders, one session at a time, on a real local cluster.

    python benchmarks/ttft.py [--read_plan shorter-queue split] [--read_order blocks layers] [--rounds=2] [--turns=16]
    python benchmarks/ttft.py --sessions=12 --sessions_at_once=12    full load: look at the completion times

A cluster is started for each combination, and the trace is replayed on it: the first combination is what the others
are compared with. All are run in turns, round after round, so that the ratios mean something on a busy machine too.
What counts are the read-bound turns, those that read longer than they compute under the first combination; of
these the means and medians over all rounds are printed, and how much of the smaller of reading and computing
another combination saves (what reading by layers could hide at best). The medians of the completion times stand
beside them.
"""

import argparse
import itertools
import statistics
import sys
from collections import defaultdict
from dataclasses import dataclass

from dualpath_configs import ClusterSpec, load_cluster
from dualpath_jax.launch.flags import parse_override
from dualpath_jax.replay.run import ReplayOptions, run_mode
from dualpath_scheduler.report import RunRecord
from dualpath_scheduler.report.metrics import completion_s
from dualpath_scheduler.workload import Trace, load_trace

MODE = "dualpath"
TurnKey = tuple[str, int]
LINE = "{:24} {:>10} {:>9} {:>6} {:>6} {:>9} {:>10} {:>13} {:>11}"


@dataclass(frozen=True)
class TurnTimes:
    """Of one turn, in seconds: arrival to first token, storage reads, and prefill; blocks that each side read."""

    ttft_s: float
    reading_s: float
    computing_s: float
    blocks: tuple[int, int]

    @property
    def is_read_bound(self) -> bool:
        return self.reading_s > self.computing_s


class Measured:
    """All rounds of one combination."""

    def __init__(self) -> None:
        self.turns: dict[TurnKey, list[TurnTimes]] = defaultdict(list)
        self.completion_s: list[float] = []

    def add(self, run: RunRecord) -> None:
        """One more replay, in which no request failed."""
        self.completion_s.append(completion_s(run))
        for request in run.requests:
            assert request.first_token_s is not None
            assert request.prefill_start_s is not None
            self.turns[request.session_id, request.turn].append(
                TurnTimes(
                    ttft_s=request.first_token_s - request.arrival_s,
                    reading_s=(request.read_end_s or 0.0) - (request.read_start_s or 0.0),
                    computing_s=request.first_token_s - request.prefill_start_s,
                    blocks=(request.prefill_side_blocks, request.decode_side_blocks),
                )
            )


def main() -> int:
    """0; 1 where a turn failed or none is read-bound."""
    flags = _parser().parse_args()
    specs = _specs(flags)
    trace = load_trace(
        flags.trace,
        vocab_size=next(iter(specs.values())).model.vocab_size,
        max_sessions=flags.sessions,
        max_turns=flags.turns,
        max_context_tokens=next(iter(specs.values())).max_context_tokens,
    )
    options = ReplayOptions(compilation_cache=flags.compilation_cache, sessions_at_once=flags.sessions_at_once)
    measured = {name: Measured() for name in specs}
    for _ in range(flags.rounds):
        for name, spec in specs.items():
            print(name, file=sys.stderr)
            measured[name].add(_replay(spec, trace, options))
    return _say(measured)


def _specs(flags: argparse.Namespace) -> dict[str, ClusterSpec]:
    """By what is printed of each: the values of the keys that were given, all combinations."""
    axes = {"read_plan": flags.read_plan, "read_order": flags.read_order}
    keys = [key for key, values in axes.items() if values]
    overrides = dict(parse_override(text) for text in flags.set)
    return {
        " ".join(values): load_cluster(
            flags.config,
            {**overrides, **{f"scheduling.{key}": value for key, value in zip(keys, values, strict=True)}},
        )
        for values in itertools.product(*(axes[key] for key in keys))
    }


def _replay(spec: ClusterSpec, trace: Trace, options: ReplayOptions) -> RunRecord:
    """One replay on a cluster of its own, whose store is empty at the start."""
    run = run_mode(MODE, spec, trace, options)
    if run.failures:
        sys.exit(f"{run.failures[0].key} failed: {run.failures[0].error}")
    return run.record


def _say(measured: dict[str, Measured]) -> int:
    first = next(iter(measured))
    turns = measured[first].turns
    bound = [key for key, times in turns.items() if statistics.mean(t.is_read_bound for t in times) > 0.5]
    print(f"{len(bound)} of {len(turns)} turns are read-bound under {first}")
    if not bound:
        return 1
    base = [times for key in bound for times in turns[key]]
    base_s = statistics.mean(times.ttft_s for times in base)
    smaller_s = statistics.mean(min(times.reading_s, times.computing_s) for times in base)
    print(LINE.format("", "TTFT mean", "median", "ratio", "saved", "reading", "computing", "blocks", "completion"))
    for name, rounds in measured.items():
        times = [times for key in bound for times in rounds.turns[key]]
        mean_s = statistics.mean(t.ttft_s for t in times)
        print(
            LINE.format(
                name,
                f"{mean_s:.3f} s",
                f"{statistics.median(t.ttft_s for t in times):.3f} s",
                f"{mean_s / base_s:.2f}",
                f"{(base_s - mean_s) / smaller_s:.2f}",
                f"{statistics.mean(t.reading_s for t in times):.3f} s",
                f"{statistics.mean(t.computing_s for t in times):.3f} s",
                " + ".join(f"{statistics.mean(t.blocks[side] for t in times):.1f}" for side in (0, 1)),
                f"{statistics.median(rounds.completion_s):.1f} s",
            )
        )
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--config", default="local_1p1d", help="preset, or a TOML file")
    add("--set", action="append", default=[], metavar="KEY=VALUE", help="override one key of the spec")
    add("--trace", default="demo", help="as for dualpath-replay")
    add("--read_plan", nargs="*", default=["shorter-queue", "split"], help="values of scheduling.read_plan")
    add("--read_order", nargs="*", default=[], help="values of scheduling.read_order")
    add("--sessions", type=int, default=3, help="of the trace")
    add("--sessions_at_once", type=int, default=1, help="1: one after the other")
    add("--turns", type=int, default=16, help="of each session, at most")
    add("--rounds", type=int, default=2, help="replays of each combination")
    add("--compilation_cache", default="build/compiled", help="folder where compiled programs are kept")
    return parser


if __name__ == "__main__":
    sys.exit(main())
