"""The paper's offline runs (its figure 7, read off to about 2 %), and what the simulator makes of them."""

import csv
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from importlib import resources
from typing import final

from dualpath_configs import load_simulated
from dualpath_scheduler.simulator.simulation import Simulation
from dualpath_scheduler.simulator.workload import Workload, make_workload
from dualpath_scheduler.workload import load_trace

PRESETS = {"ds27b": "27b_1p1d", "ds660b": "660b_2p4d", "qwen2.5-32b": "qwen32b_1p2d"}
_DATA = resources.files("dualpath_scheduler.simulator") / "data" / "paper_offline_jct.csv"
_ANY_VOCAB = 1000


@final
@dataclass(frozen=True)
class Point:
    """One run of the paper; without `jct_s` one that it does not print."""

    model: str
    max_length: str
    agents: int
    system: str
    jct_s: float | None = None


def published_rows() -> list[Mapping[str, str]]:
    """All of the paper's offline runs, as rows of its CSV file."""
    return list(csv.DictReader(_DATA.read_text().splitlines()))


def paper_points() -> list[Point]:
    """Those of the systems that are simulated: all but `sglang_mooncake`; the small ones first."""
    points = [
        Point(row["model"], row["max_length"], int(row["agents"]), row["system"], float(row["jct_s"]))
        for row in published_rows()
        if row["system"] != "sglang_mooncake"
    ]
    return sorted(points, key=lambda point: (point.agents, point.max_length, point.model))


def simulate_point(point: Point, overrides: Mapping[str, object] | None = None) -> Simulation:
    """The finished simulation of a point, with its model's preset and these overrides."""
    spec = load_simulated(PRESETS[point.model], {**(overrides or {}), "mode": point.system})
    run = Simulation(spec, paper_workload(point.max_length, point.agents))
    run.run()
    return run


@lru_cache(maxsize=4)
def paper_workload(max_length: str, agents: int, seed: int = 0) -> Workload:
    """Offline: all agents start at once, no tool takes time."""
    trace = load_trace(f"paper-{max_length.lower()}", vocab_size=_ANY_VOCAB, seed=seed)
    return make_workload(trace, agents=agents, seed=seed)


def speedups(seconds: Mapping[Point, float]) -> Iterator[tuple[Point, float, float]]:
    """Of each `dualpath` whose `basic` is there as well: the simulated and the paper's speed-up."""
    by_key = {(p.model, p.max_length, p.agents, p.system): p for p in seconds}
    for point in seconds:
        basic = by_key.get((point.model, point.max_length, point.agents, "basic"))
        if point.system == "dualpath" and basic is not None and point.jct_s and basic.jct_s:
            yield point, seconds[basic] / seconds[point], basic.jct_s / point.jct_s
