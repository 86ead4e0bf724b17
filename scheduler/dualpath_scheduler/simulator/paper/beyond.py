"""What policies and memory beyond the paper's give, for each of its offline settings."""

from collections.abc import Sequence
from types import MappingProxyType
from typing import ClassVar, final

from dualpath_scheduler.simulator.paper.experiment import Experiment, Lines, Results, Row
from dualpath_scheduler.simulator.paper.offline import Setting, offline_settings
from dualpath_scheduler.simulator.paper.runs import Run

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
class BeyondOffline(Experiment):
    """Completion times of all agents at once."""

    name: ClassVar[str] = "beyond_offline"
    plots: ClassVar[tuple[Lines, ...]] = (
        Lines(("model", "max_length"), "system", "agents", "gain_over_dualpath", "Beyond the paper, offline"),
    )

    def runs(self, results: Results) -> Sequence[Run]:
        return [_offline(setting, variant) for setting in offline_settings() for variant in VARIANTS]

    def rows(self, results: Results) -> list[Row]:
        rows = []
        for setting in offline_settings():
            seconds = {
                variant: (run, result["completion_s"])
                for variant in VARIANTS
                if (result := results(run := _offline(setting, variant))) is not None
            }
            rows += _compared(setting, seconds, "jct_s")
        return rows


@final
class BeyondOnline(Experiment):
    """Mean TTFT where the same agents arrive at `_LOAD` of what the paper's system gets through."""

    name: ClassVar[str] = "beyond_online"
    measured: ClassVar[tuple[str, ...]] = ("ttft_s",)
    plots: ClassVar[tuple[Lines, ...]] = (
        Lines(("model", "max_length"), "system", "agents", "gain_over_dualpath", "Beyond the paper, TTFT online"),
    )

    def runs(self, results: Results) -> Sequence[Run]:
        return [
            run
            for setting in offline_settings()
            for variant in VARIANTS
            if (run := _online(setting, variant, results)) is not None
        ] + [_offline(setting, _PAPERS) for setting in offline_settings()]

    def rows(self, results: Results) -> list[Row]:
        rows = []
        for setting in offline_settings():
            seconds = {
                variant: (run, result["ttft_mean_s"])
                for variant in VARIANTS
                if (run := _online(setting, variant, results)) is not None and (result := results(run)) is not None
            }
            rows += _compared(setting, seconds, "ttft_s")
        return rows


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


def _compared(setting: Setting, seconds: dict[str, tuple[Run, float | None]], column: str) -> list[Row]:
    """A row a variant: its seconds, the paper's system's over them, and them over the oracle's."""
    papers, oracle = (seconds.get(name, (None, None))[1] for name in (_PAPERS, "oracle"))
    rows = []
    for variant, (run, found) in seconds.items():
        assert found is not None
        rows.append(
            {
                **setting.row(run, variant),
                **({} if run.arrivals_per_s is None else {"arrivals_per_s": run.arrivals_per_s}),
                column: found,
                "gain_over_dualpath": papers / found if papers else None,
                "over_oracle": found / oracle if oracle else None,
            }
        )
    return rows
