"""What an experiment is: the runs that it needs, and the table that is made of those that are there."""

import csv
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, final

from dualpath_scheduler.simulator.paper.runs import Result, Run

Results = Callable[[Run], Result | None]
"""The result of a run; None: it has not run yet, or failed."""

Row = dict[str, object]


@final
@dataclass(frozen=True)
class Lines:
    """How a table is drawn: a panel for each value of `panels`, in it a line for each of `series`, `y` over `x`."""

    panels: tuple[str, ...]
    series: str
    x: str
    y: str
    title: str
    limit: float | None = None
    """A horizontal line."""


class Experiment(ABC):
    """One table, perhaps of several plots. `name` is that of its CSV file, here and in a folder of the paper's values.

    Columns in `measured` are results; the others say what was run, and find the paper's row.
    """

    name: ClassVar[str]
    measured: ClassVar[tuple[str, ...]] = ("jct_s",)
    plots: ClassVar[tuple[Lines, ...]] = ()

    def runs(self, results: Results) -> Sequence[Run]:
        """What has to run, as far as it is known from what has. Asked again until all of it has run."""
        return ()

    @abstractmethod
    def rows(self, results: Results) -> list[Row]:
        """The table, without the rows whose runs are not there."""

    def published(self) -> list[Mapping[str, str]]:
        """The paper's values as far as the package has them, as rows of CSV."""
        return []


def with_paper(experiment: Experiment, rows: list[Row], folder: Path | None) -> list[Row]:
    """Each row with what the paper has for it: `paper_…` and `…_error`, the simulated value over the paper's less one.

    The paper's rows come from `folder`/`experiment.name`.csv, where that is, else from the package. Of a row's columns
    those that both have, and that are no results, must be equal.
    """
    path = None if folder is None else folder / f"{experiment.name}.csv"
    if path is not None and path.exists():
        with path.open(newline="") as file:
            theirs: Sequence[Mapping[str, str]] = list(csv.DictReader(file))
    else:
        theirs = experiment.published()
    if not theirs or not rows:
        return rows
    keys = [name for name in theirs[0] if name in rows[0] and name not in experiment.measured]
    measured = [name for name in experiment.measured if name in theirs[0]]
    found = {tuple(_comparable(row[name]) for name in keys): row for row in theirs}
    return [_beside(row, found.get(tuple(_comparable(row[name]) for name in keys)), measured) for row in rows]


def _comparable(value: object) -> object:
    """Numbers are equal however they are written."""
    try:
        return float(str(value))
    except ValueError:
        return str(value)


def _beside(row: Row, theirs: Mapping[str, str] | None, measured: Iterable[str]) -> Row:
    extended = dict(row)
    for name in measured:
        paper = None if theirs is None or not theirs[name] else float(theirs[name])
        ours = row.get(name)
        extended[f"paper_{name}"] = paper
        extended[f"{name}_error"] = ours / paper - 1 if paper and isinstance(ours, int | float) else None
    return extended
