"""`dualpath-simulate`: a trace on a simulated cluster of any size, in seconds to minutes on one core.

Exit status: 0; 1 where no arrival rate keeps the targets; 2 with one line on standard error where an argument is wrong.
"""

import argparse
import dataclasses
import itertools
import json
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NoReturn

from dualpath_configs import SIMULATED_MODES, SimulatedSpec, load_simulated
from dualpath_scheduler.report import RunRecord, format_table, summarise, write_report
from dualpath_scheduler.simulator.flags import (
    UsageError,
    add_workload_flags,
    guarded,
    parse_override,
    positive,
    simulate,
    trace_of,
    workload_of,
)
from dualpath_scheduler.simulator.outcome import Outcome, outcome_of, run_record
from dualpath_scheduler.simulator.search import Targets, highest_rate
from dualpath_scheduler.workload import Trace

NAME = "dualpath-simulate"
NOT_REACHED = 1


def run() -> NoReturn:
    """The command `dualpath-simulate`."""
    sys.exit(main(sys.argv[1:]))


def main(arguments: Sequence[str]) -> int:
    """Run the command and return its exit status; SystemExit for `--help` and for arguments that do not parse."""
    flags = _parser().parse_args(arguments)
    searches = flags.slo_ttft_s is not None or flags.slo_tpot_ms is not None
    return guarded(NAME, lambda: (_search if searches else _simulate)(flags, trace_of(flags)))


def _simulate(flags: argparse.Namespace, trace: Trace) -> int:
    """Every mode with every value of the sweep; the table is of the modes where nothing is swept."""
    settings = list(_sweep(flags.sweep))
    if flags.report and len(settings) > 1:
        raise UsageError("--report is of one setting in several modes: expected no --sweep beside it")
    workload = workload_of(flags, trace, flags.arrivals_per_s)
    records: list[RunRecord] = []
    for mode, setting in itertools.product(flags.mode, settings):
        finished = simulate(_spec(flags, mode, setting), workload, mode)
        print(json.dumps({"mode": mode, **setting, **dataclasses.asdict(outcome_of(finished))}), flush=True)
        if len(settings) == 1:
            records.append(run_record(finished, mode))
    if records:
        print(format_table(summarise(records)), file=sys.stderr)
    if flags.report:
        spec = _spec(flags, flags.mode[0], {})
        about = {**trace.summary(), "agents": flags.agents, "requests_in_csv": len(records[0].requests)}
        write_report(Path(flags.report), spec.model_dump(mode="json"), about, records)
    return 0


def _search(flags: argparse.Namespace, trace: Trace) -> int:
    targets = Targets(flags.slo_ttft_s, None if flags.slo_tpot_ms is None else flags.slo_tpot_ms / 1e3)
    found_all = True
    for mode, setting in itertools.product(flags.mode, _sweep(flags.sweep)):
        spec = _spec(flags, mode, setting)

        def outcome(rate: float, spec: SimulatedSpec = spec, mode: str = mode) -> Outcome:
            return outcome_of(simulate(spec, workload_of(flags, trace, rate), f"{mode}, {rate:.3g}/s"))

        rate, best = highest_rate(outcome, targets)
        found_all &= best is not None
        at_best = {} if best is None else dataclasses.asdict(best)
        print(json.dumps({"mode": mode, **setting, "arrivals_per_s": rate, **at_best}), flush=True)
    return 0 if found_all else NOT_REACHED


def _spec(flags: argparse.Namespace, mode: str, setting: dict[str, object]) -> SimulatedSpec:
    overrides = dict(parse_override(text, "--set") for text in flags.set)
    return load_simulated(flags.config, {**overrides, **setting, "mode": mode})


def _sweep(sweeps: Sequence[str]) -> Iterator[dict[str, object]]:
    """All combinations of `key=a,b,c`."""
    axes = []
    for text in sweeps:
        key, _, values = text.partition("=")
        axes.append([parse_override(f"{key}={value}", "--sweep") for value in values.split(",")])
    return (dict(setting) for setting in itertools.product(*axes))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog=NAME, description=__doc__, allow_abbrev=False)
    add = parser.add_argument
    add_workload_flags(parser)
    add("--mode", nargs="+", choices=list(SIMULATED_MODES), default=["dualpath"], metavar="MODE",
        help=f"one or more of {', '.join(SIMULATED_MODES)}")  # fmt: skip
    add("--sweep", action="append", default=[], metavar="KEY=A,B,C", help="run every value; several: all combinations")
    add("--slo_ttft_s", type=positive, help="search the highest arrival rate whose mean TTFT is within this")
    add("--slo_tpot_ms", type=positive, help="the same for the mean TPOT")
    add("--report", help="folder for report.json, requests.csv (of very many requests: of some sessions) and plots")
    return parser
