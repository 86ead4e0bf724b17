"""Every figure and table of the paper for which numbers are known, simulated, and what goes beyond it.

Run as `python -m dualpath_scheduler.simulator.paper --out DIR`.
Each experiment becomes `DIR/NAME.csv`, with the paper's values beside where there are any, and plots. Finished runs
stand in `DIR/runs.jsonl`; a second start goes on from there, so it may be stopped at any time. Delete that file after a
change of the simulator's code. Exit status: 0; 1 where runs failed; 2 where an argument is wrong.
"""

import argparse
import csv
import io
import sys
from collections.abc import Sequence
from pathlib import Path

from dualpath_configs import SpecError
from dualpath_scheduler.files import write_atomically
from dualpath_scheduler.simulator.flags import positive_int
from dualpath_scheduler.simulator.paper.beyond import Beyond
from dualpath_scheduler.simulator.paper.experiment import Experiment, Row, with_paper
from dualpath_scheduler.simulator.paper.ledger import Ledger
from dualpath_scheduler.simulator.paper.offline import (
    Ablation,
    Balance,
    CompletionTimes,
    Lengths,
    Ratios,
    Sizes,
)
from dualpath_scheduler.simulator.paper.online import HighestRates, Latencies
from dualpath_scheduler.simulator.paper.plots import plot
from dualpath_scheduler.simulator.paper.tables import Bottlenecks, KvPerCompute, Traces

NAME = "dualpath_scheduler.simulator.paper"
FAILED, USAGE_ERROR, INTERRUPTED = 1, 2, 130
EXPERIMENTS: tuple[Experiment, ...] = (
    Traces(), KvPerCompute(), Bottlenecks(), CompletionTimes(), Ablation(), Balance(), Ratios(), Lengths(), Latencies(),
    HighestRates(), Beyond(), Sizes(),
)  # fmt: skip


def main(arguments: Sequence[str] | None = None, experiments: Sequence[Experiment] = EXPERIMENTS) -> int:
    flags = _parser([experiment.name for experiment in experiments]).parse_args(arguments)
    chosen = [experiment for experiment in experiments if not flags.only or experiment.name in flags.only]
    flags.out.mkdir(parents=True, exist_ok=True)
    ledger = Ledger(flags.out / "runs.jsonl")
    try:
        for experiment in chosen:
            if not flags.tables_only:
                _run(experiment, ledger, flags.workers, flags.agents_at_most)
            _write(experiment, ledger, flags.out, flags.paper)
    except SpecError as error:
        print(f"{NAME}: {error}", file=sys.stderr)
        return USAGE_ERROR
    except KeyboardInterrupt:
        print(f"{NAME}: interrupted; what has run is in {flags.out}", file=sys.stderr)
        return INTERRUPTED
    for name, reason in ledger.failed.items():
        print(f"{NAME}: {name}: {reason}", file=sys.stderr)
    return FAILED if ledger.failed else 0


def _run(experiment: Experiment, ledger: Ledger, workers: int, agents_at_most: int) -> None:
    """Runs what the experiment asks for until it asks for nothing new."""
    while True:
        wanted = [run for run in experiment.runs(ledger.get) if run.agents <= agents_at_most]
        if all(map(ledger.is_settled, wanted)):
            return
        print(f"{experiment.name}:", file=sys.stderr)
        ledger.fill(wanted, workers)


def _write(experiment: Experiment, ledger: Ledger, out: Path, paper: Path | None) -> None:
    rows = with_paper(experiment, experiment.rows(ledger.get), paper)
    if not rows:
        return
    write_atomically(out / f"{experiment.name}.csv", _csv(rows).encode())
    for lines in experiment.plots:
        suffix = f"_{lines.y}" if len(experiment.plots) > 1 else ""
        write_atomically(out / f"{experiment.name}{suffix}.png", plot(lines, rows))


def _csv(rows: Sequence[Row]) -> str:
    text = io.StringIO()
    writer = csv.DictWriter(text, list(rows[0]), lineterminator="\n")
    writer.writeheader()
    for row in rows:
        writer.writerow({name: _cell(value) for name, value in row.items()})
    return text.getvalue()


def _cell(value: object) -> object:
    return f"{value:.6g}" if isinstance(value, float) else "" if value is None else value


def _parser(names: Sequence[str]) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog=f"python -m {NAME}", description=__doc__, allow_abbrev=False)
    add = parser.add_argument
    add("--out", type=Path, required=True, help="folder for tables, plots, and finished runs")
    add("--paper", type=Path, help="folder with the paper's values, a CSV file an experiment, for what is not shipped")
    add("--only", action="append", choices=names, metavar="NAME", help=f"one of {', '.join(names)}; may be repeated")
    add("--workers", type=positive_int, default=1, help="processes; the largest run takes 6 GB")
    add("--agents_at_most", type=positive_int, default=1 << 30, help="leave out larger runs")
    add("--tables_only", action="store_true", help="run nothing: tables and plots of what has run")
    return parser


if __name__ == "__main__":
    sys.exit(main())
