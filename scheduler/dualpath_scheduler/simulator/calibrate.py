"""Fits the simulator's constants to the paper's offline runs, and checks them.

Run as `python -m dualpath_scheduler.simulator.calibrate`.
`--fit ROUNDS` searches from the presets' values over `FIT_POINTS` alone, and prints what it finds; a round takes ten
minutes of a core. Without it all points run, those that the fit never saw included; `--out FILE` has the residuals as
CSV, while they come. `--ablation` runs the paper's ablation and prints it with the figures of balance.
`--agents_at_most` leaves out the largest runs: all of them take half an hour of a core.
"""

import argparse
import csv
import math
import statistics
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TextIO, final

import numpy as np

from dualpath_configs import load_simulated
from dualpath_scheduler.simulator.fit import Fit, Values
from dualpath_scheduler.simulator.outcome import outcome_of
from dualpath_scheduler.simulator.paper_points import PRESETS, Point, paper_points, simulate_point, speedups


@final
@dataclass(frozen=True)
class Constant:
    """A constant of `calibration` that is fitted, one value for all models and points, and its plausible range."""

    name: str
    least: float
    most: float


CONSTANTS = (
    Constant("prefill_efficiency", 0.15, 0.6),
    Constant("snic_efficiency", 0.75, 1.0),
    Constant("read_bytes_per_s", 3e9, 25e9),
    Constant("layer_s", 5e-5, 5e-4),
    Constant("exchange_s", 1e-4, 1e-3),
    Constant("request_layer_s", 5e-5, 1e-3),
    Constant("block_copy_s", 0.0, 7e-6),
    Constant("turn_s", 0.02, 1.0),
)
FIT_POINTS = (
    *((model, length, 512) for model in ("ds27b", "ds660b") for length in ("32K", "64K")),
    ("qwen2.5-32b", "32K", 128),
    ("qwen2.5-32b", "32K", 256),
    ("qwen2.5-32b", "64K", 64),
)
"""Model, length and agents: of the 33 of `offline_jct.csv`, the seven that the fit looks at, in all three modes."""

PAPER_ABLATION = {"basic": 0.0, "layerwise": 0.1721, "layerwise+dual": 0.3819, "dualpath": 0.4562}
"""What the paper's ablation takes off the completion time of `basic` (DS 660B, 64K)."""
ABLATION_AGENTS = 1024

_GAIN_WEIGHT = 2.0


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m dualpath_scheduler.simulator.calibrate", allow_abbrev=False)
    parser.add_argument(
        "--fit", type=int, default=0, metavar="ROUNDS", help="take so many steps from the presets' values"
    )
    parser.add_argument("--agents_at_most", type=int, default=1 << 30)
    parser.add_argument("--out", type=Path, help="CSV of the residuals")
    parser.add_argument("--ablation", action="store_true", help="the 660B model at 64K, one thing after the other")
    flags = parser.parse_args(arguments)
    if flags.fit:
        fit(flags.fit)
        return 0
    if flags.ablation:
        ablation(min(flags.agents_at_most, ABLATION_AGENTS))
        return 0
    points = [point for point in paper_points() if point.agents <= flags.agents_at_most]
    if flags.out is None:
        check(points, sys.stdout)
    else:
        with flags.out.open("w", newline="") as file:
            check(points, file)
    return 0


def fit(rounds: int) -> Values:
    """Fits `CONSTANTS` to `FIT_POINTS`, from the presets' values; prints the constants after each round."""
    spec = load_simulated(PRESETS["ds660b"])
    start = {constant.name: float(getattr(spec.calibration, constant.name)) for constant in CONSTANTS}
    points = [point for point in paper_points() if (point.model, point.max_length, point.agents) in FIT_POINTS]
    search = Fit(lambda values: residuals(points, values), start, {c.name: (c.least, c.most) for c in CONSTANTS})
    print(f"loss {search.loss:.5f}", flush=True)
    for values in search.rounds(rounds):
        found = ", ".join(f"{name} = {value:.4g}" for name, value in values.items())
        print(f"loss {search.loss:.5f}: {found}", flush=True)
    return search.values


def residuals(points: Iterable[Point], values: Values) -> np.ndarray:
    """Logarithms of simulated over printed time, and, twice the weight, of the same of the speed-ups."""
    overrides = {f"calibration.{name}": value for name, value in values.items()}
    seconds = {point: simulate_point(point, overrides).completion_s for point in points}
    times = [math.log(found / point.jct_s) for point, found in seconds.items() if point.jct_s]
    gains = [_GAIN_WEIGHT * math.log(ours / theirs) for _, ours, theirs in speedups(seconds)]
    return np.array(times + gains)


def ablation(agents: int) -> None:
    """Prints what each step takes off `basic`'s completion time, and how even storage cards and attention are."""
    basic_s: float | None = None
    for mode, paper in PAPER_ABLATION.items():
        found = outcome_of(simulate_point(Point("ds660b", "64K", agents, mode)))
        basic_s = found.completion_s if basic_s is None else basic_s
        print(
            f"{mode}: {found.completion_s:.0f} s, {found.completion_s / basic_s - 1:+.1%} (paper {-paper:+.1%}), "
            f"largest over mean: SNIC {found.snic_max_over_mean or 0:.2f}, "
            f"attention {found.attention_max_over_mean or 0:.2f}",
            flush=True,
        )


def check(points: Iterable[Point], out: TextIO) -> None:
    """Runs all points and writes a row each, as it comes; a summary goes to standard error."""
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(("model", "max_length", "agents", "system", "paper_s", "simulated_s", "error"))
    seconds: dict[Point, float] = {}
    for point in points:
        assert point.jct_s is not None
        found = seconds[point] = simulate_point(point).completion_s
        error = f"{found / point.jct_s - 1:+.3f}"
        where = (point.model, point.max_length, point.agents, point.system)
        writer.writerow((*where, point.jct_s, round(found, 1), error))
        out.flush()
    errors = [abs(found / point.jct_s - 1) for point, found in seconds.items() if point.jct_s]
    gains = [abs(ours / theirs - 1) for _, ours, theirs in speedups(seconds)]
    print(
        f"{len(errors)} points: median error {statistics.median(errors):.3f}, largest {max(errors):.3f}; "
        f"{len(gains)} speed-ups: median error {statistics.median(gains):.3f}, largest {max(gains):.3f}",
        file=sys.stderr,
    )


if __name__ == "__main__":
    sys.exit(main())
