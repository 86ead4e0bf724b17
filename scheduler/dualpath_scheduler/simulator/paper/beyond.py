"""What policies and memory beyond the paper's give, for each of its offline settings."""

import itertools
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import ClassVar, final

from dualpath_scheduler.simulator.paper.experiment import Experiment, Lines, Results, Row
from dualpath_scheduler.simulator.paper.offline import Setting, offline_settings
from dualpath_scheduler.simulator.paper.runs import Result, Run

_SPLIT = ("scheduling.read_plan", "split")
_LAYERS = ("scheduling.read_order", "layers")
_TIER = "hardware.dram_tier_bytes"

VARIANTS = MappingProxyType(
    {
        "dualpath": ("dualpath", ()),
        "split": ("dualpath", (_SPLIT,)),
        "layers": ("dualpath", (_LAYERS,)),
        "split+layers": ("dualpath", (_SPLIT, _LAYERS)),
        "dram 80 GB": ("dualpath", ((_TIER, 80_000_000_000),)),
        "dram 320 GB": ("dualpath", ((_TIER, 320_000_000_000),)),
        "dram 1.5 TB": ("dualpath", ((_TIER, 1_500_000_000_000),)),
        "oracle": ("oracle", ()),
    }
)
"""Mode and overrides of the spec, by the name of the row; the first is the paper's system."""
_PAPERS = "dualpath"
_LOAD = 0.7
"""Online: agents arrive at this share of the rate at which the paper's system gets through all of them offline."""


@final
class Beyond(Experiment):
    """Completion times of all agents at once, and the mean TTFT where the same agents arrive at `_LOAD`.

    Of both the paper's system's over the variant's (`…_gain`), and the variant's over the oracle's (`…_over_oracle`).
    """

    name: ClassVar[str] = "beyond"
    measured: ClassVar[tuple[str, ...]] = ("jct_s", "ttft_s")
    plots: ClassVar[tuple[Lines, ...]] = (
        Lines(("model", "max_length"), "system", "agents", "jct_gain", "Completion times, dualpath's over each"),
        Lines(("model", "max_length"), "system", "agents", "ttft_gain", "Mean TTFT online, dualpath's over each"),
    )

    def runs(self, results: Results) -> Sequence[Run]:
        offline, online = [], []
        for setting, variant in itertools.product(offline_settings(), VARIANTS):
            offline.append(_offline(setting, variant))
            if (run := _online(setting, variant, results)) is not None:
                online.append(run)
        return offline + online

    def rows(self, results: Results) -> list[Row]:
        return [row for setting in offline_settings() for row in _rows(setting, results)]


def _offline(setting: Setting, variant: str, arrivals_per_s: float | None = None) -> Run:
    mode, overrides = VARIANTS[variant]
    return setting.run(mode, overrides, arrivals_per_s=arrivals_per_s)


def _online(setting: Setting, variant: str, results: Results) -> Run | None:
    """None: the offline run that its rate comes from is not there."""
    offline = results(_offline(setting, _PAPERS))
    if offline is None:
        return None
    completion_s = offline["completion_s"]
    assert completion_s is not None
    return _offline(setting, variant, round(_LOAD * setting.agents / completion_s, 6))


def _rows(setting: Setting, results: Results) -> list[Row]:
    """A row for each variant of which there is anything."""
    jct = {variant: _value(results(_offline(setting, variant)), "completion_s") for variant in VARIANTS}
    online = {variant: _online(setting, variant, results) for variant in VARIANTS}
    ttft = {variant: _value(run and results(run), "ttft_mean_s") for variant, run in online.items()}
    rows = []
    for variant in VARIANTS:
        if jct[variant] is not None or ttft[variant] is not None:
            run = online[variant]
            row = setting.row(_offline(setting, variant), variant)
            row |= _compared("jct", variant, jct)
            row["arrivals_per_s"] = None if run is None else run.arrivals_per_s
            rows.append({**row, **_compared("ttft", variant, ttft)})
    return rows


def _value(result: Result | None, name: str) -> float | None:
    return None if result is None else result[name]


def _compared(name: str, variant: str, seconds: Mapping[str, float | None]) -> Row:
    found, papers, oracle = (seconds[key] for key in (variant, _PAPERS, "oracle"))
    return {
        f"{name}_s": found,
        f"{name}_gain": papers / found if papers and found else None,
        f"{name}_over_oracle": found / oracle if found and oracle else None,
    }
