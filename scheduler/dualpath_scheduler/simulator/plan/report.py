"""A plan as JSON and as text."""

import dataclasses
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import final

from dualpath_configs import SimulatedSpec
from dualpath_scheduler.simulator.plan.best import Split, seconds_of
from dualpath_scheduler.simulator.plan.bottlenecks import (
    Bounds,
    Resource,
    admissible,
    fitted_rates,
    peak_rates,
    resources,
)
from dualpath_scheduler.simulator.plan.mix import Mix
from dualpath_scheduler.simulator.workload import Workload

_RANGES = {
    "paper": "hits alone, peak rates (paper)",
    "all_kv": "all KV, peak rates",
    "all_kv_fitted_rates": "all KV, fitted rates",
}


@final
@dataclass(frozen=True)
class Plan:
    """All that is said of one spec and one workload; `splits` is empty where nothing was simulated."""

    config: str
    spec: SimulatedSpec
    workload: Workload
    mix: Mix
    splits: Sequence[Split] = ()

    @property
    def ratio(self) -> float:
        """P/D."""
        return self.spec.prefill_nodes / self.spec.decode_nodes

    @property
    def rows(self) -> list[Resource]:
        """The table at the hardware's peak rates."""
        return resources(self.spec, self.mix, peak_rates(self.spec))

    @property
    def ranges(self) -> dict[str, Bounds]:
        """Admissible P/D: the paper's; with the KV that it leaves out; and that at the rates of the calibration."""
        fitted = resources(self.spec, self.mix, fitted_rates(self.spec))
        return {
            "paper": admissible(self.rows, others=False),
            "all_kv": admissible(self.rows, others=True),
            "all_kv_fitted_rates": admissible(fitted, others=True),
        }

    @property
    def best(self) -> Split | None:
        return min(self.splits, key=lambda split: seconds_of(split.dualpath, self.workload), default=None)


def as_json(plan: Plan) -> dict[str, object]:
    """Loads in bytes a second (computing: seconds a second); no most P/D is null."""
    best = plan.best
    return {
        "config": plan.config,
        "prefill_nodes": plan.spec.prefill_nodes,
        "decode_nodes": plan.spec.decode_nodes,
        "trace": plan.workload.name,
        "agents": plan.workload.sessions,
        "tokens_per_request": dataclasses.asdict(plan.mix),
        "resources": [_row_json(row, plan.ratio) for row in plan.rows],
        "admissible": {name: _bounds_json(bounds) for name, bounds in plan.ranges.items()},
        "splits": [{**dataclasses.asdict(split), "speedup_over_basic": _speedup(plan, split)} for split in plan.splits],
        "best": None if best is None else [best.prefill_nodes, best.decode_nodes],
    }


def as_text(plan: Plan) -> str:
    """The table, the ranges, and the splits that were simulated."""
    return "\n".join([*_head(plan), "", *_table(plan), "", *_range_lines(plan), *_split_lines(plan)])


def _row_json(row: Resource, ratio: float) -> dict[str, object]:
    return {
        "name": row.name,
        "side": row.side,
        "limit": row.limit,
        "hits": row.at(row.hits, ratio),
        "others": row.at(row.others, ratio),
        "admissible_hits": None if row.computes else _bounds_json(row.bounds(row.hits)),
        "admissible_all": _bounds_json(row.bounds(row.hits + row.others)),
    }


def _bounds_json(bounds: Bounds) -> list[float | None] | None:
    return [bounds.least, None if math.isinf(bounds.most) else bounds.most] if bounds.any else None


def _head(plan: Plan) -> list[str]:
    mix, spec = plan.mix, plan.spec
    return [
        f"{plan.config}: {spec.prefill_nodes}P{spec.decode_nodes}D, P/D = {plan.ratio:.3g}",
        f"{plan.workload.name}, {plan.workload.sessions} agents, a request: {mix.hit:,.0f} tokens hit "
        f"({mix.hit / (mix.hit + mix.miss):.1%}), {mix.miss:,.0f} computed, {mix.generated:,.0f} generated",
    ]


def _table(plan: Plan) -> list[str]:
    head = ("while all SNICs read", "limit", "hits", "others", "used", "P/D, hits", "P/D, all")
    cells = [head, *(_cells(row, plan.ratio) for row in plan.rows)]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    cells = [(name.ljust(widths[0]), *rest) for name, *rest in cells]
    return ["  ".join(map(str.rjust, row, widths)).rstrip() for row in cells]


def _cells(row: Resource, ratio: float) -> tuple[str, ...]:
    hits, others = row.at(row.hits, ratio), row.at(row.others, ratio)
    unit, scale = ("s/s", 1.0) if row.computes else ("GB/s", 1e-9)
    return (
        f"{row.name} ({unit})",
        f"{row.limit * scale:.1f}",
        "-" if row.computes else f"{hits * scale:.1f}",
        f"{others * scale:.1f}",
        f"{(hits + others) / row.limit:.0%}",
        "-" if row.computes else _bounds(row.bounds(row.hits)),
        _bounds(row.bounds(row.hits + row.others)),
    )


def _bounds(bounds: Bounds) -> str:
    if not bounds.any:
        return "none"
    if math.isinf(bounds.most):
        return f">= {bounds.least:.3f}" if bounds.least else "any"
    return f"{bounds.least:.3f} - {bounds.most:.3f}" if bounds.least else f"<= {bounds.most:.3f}"


def _range_lines(plan: Plan) -> list[str]:
    lines = ["P/D at which nothing but storage cards is full:"]
    for name, bounds in plan.ranges.items():
        inside = "" if bounds.least <= plan.ratio <= bounds.most else f"; {plan.ratio:.3g} is outside"
        lines.append(f"  {_RANGES[name]}: {_bounds(bounds)}{inside}")
    full = [row.name for row in plan.rows if row.computes and row.at(row.others, plan.ratio) > row.limit]
    if full:
        lines.append(f"Storage cards cannot be kept busy: {' and '.join(full)} would take longer than reading.")
    lines.append("Collectives of the model are not counted: they have what is left of each CNIC.")
    return lines


def _split_lines(plan: Plan) -> list[str]:
    best = plan.best
    if best is None:
        return []
    what = "mean TTFT" if plan.workload.arrival_s.any() else "completion"
    lines = ["", f"Simulated, {what} (s): dualpath, basic, gain"]
    for split in plan.splits:
        ours, basic = (seconds_of(outcome, plan.workload) for outcome in (split.dualpath, split.basic))
        mark = "  <- best" if split is best else ""
        lines.append(f"  {split.name:>8}  {ours:10,.2f}  {basic:10,.2f}  {_speedup(plan, split):5.2f}x{mark}")
    return lines


def _speedup(plan: Plan, split: Split) -> float:
    return seconds_of(split.basic, plan.workload) / seconds_of(split.dualpath, plan.workload)
