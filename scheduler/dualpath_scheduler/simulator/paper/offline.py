"""Experiments in which all agents start at once: completion times, the ablation, ratios, lengths, size."""

import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import ClassVar, final

from dualpath_scheduler.simulator.calibrate import PAPER_ABLATION
from dualpath_scheduler.simulator.paper.experiment import Experiment, Lines, Results, Row
from dualpath_scheduler.simulator.paper.runs import Run
from dualpath_scheduler.simulator.paper_points import PRESETS, published_rows

SYSTEMS = ("oracle", "dualpath", "basic")
LENGTHS = ("32K", "48K", "64K")


@final
@dataclass(frozen=True)
class Setting:
    """What a row of the paper's table says of a run."""

    model: str
    max_length: str
    agents: int
    nodes: tuple[int, int] | None = None
    """Prefill and decode nodes, where not the preset's."""

    def run(self, mode: str, overrides: Iterable[tuple[str, object]] = (), **changes: object) -> Run:
        """This setting in a mode; `changes` are fields of `Run`."""
        shape = () if self.nodes is None else tuple(zip(("prefill_nodes", "decode_nodes"), self.nodes, strict=True))
        return Run(PRESETS[self.model], mode, self.max_length, self.agents, (*shape, *overrides), **changes)  # type: ignore[arg-type]

    def row(self, run: Run, system: str) -> Row:
        """The first columns of the paper's table."""
        return {
            "model": self.model,
            "prefill_nodes": run.spec.prefill_nodes,
            "decode_nodes": run.spec.decode_nodes,
            "max_length": self.max_length,
            "agents": self.agents,
            "system": system,
        }


def offline_settings() -> list[Setting]:
    """The 33 settings of the paper's offline runs."""
    rows = published_rows()
    return list(dict.fromkeys(Setting(row["model"], row["max_length"], int(row["agents"])) for row in rows))


@final
@dataclass(frozen=True)
class CompletionTimes(Experiment):
    """Completion times of some settings in all three systems."""

    settings: Sequence[Setting] = field(default_factory=offline_settings)
    name: ClassVar[str] = "offline_jct"
    plots: ClassVar[tuple[Lines, ...]] = (Lines(("model", "max_length"), "system", "agents", "jct_s", "Offline"),)

    def runs(self, results: Results) -> Sequence[Run]:
        return [setting.run(system) for setting in self.settings for system in SYSTEMS]

    def rows(self, results: Results) -> list[Row]:
        return _jct_rows(self.settings, SYSTEMS, results)

    def published(self) -> list[Mapping[str, str]]:
        return published_rows()


@final
class Ratios(Experiment):
    """Prefill and decode nodes of the 27B model."""

    name: ClassVar[str] = "pd_ratio"
    plots: ClassVar[tuple[Lines, ...]] = (
        Lines(("max_length", "prefill_nodes", "decode_nodes"), "system", "agents", "jct_s", "Ratios of P and D, 27B"),
    )
    _settings = tuple(
        Setting("ds27b", length, agents, nodes)
        for length, agents, nodes in itertools.product(LENGTHS, (512, 1024, 2048), ((1, 1), (1, 2), (2, 1)))
    )

    def runs(self, results: Results) -> Sequence[Run]:
        return [setting.run(system) for setting in self._settings for system in SYSTEMS]

    def rows(self, results: Results) -> list[Row]:
        return _jct_rows(self._settings, SYSTEMS, results)


@final
class Lengths(Experiment):
    """Appends or generations that are longer than the trace's: 660B, 64K, 1,024 agents.

    The paper does not say whether sessions then end at 64K, with fewer turns, or grow beyond: `contexts` has both.
    """

    name: ClassVar[str] = "append_generation"
    plots: ClassVar[tuple[Lines, ...]] = (
        Lines(("contexts", "longer"), "system", "factor", "jct_s", "Longer appends or generations, DS 660B, 64K"),
    )
    _setting = Setting("ds660b", "64K", 1024)
    _longest = 65_536

    def runs(self, results: Results) -> Sequence[Run]:
        return [run for _, _, run in self._all()]

    def rows(self, results: Results) -> list[Row]:
        rows = []
        for about, system, run in self._all():
            if (result := results(run)) is not None:
                row = {**self._setting.row(run, system), **about}
                rows.append({**row, "jct_s": result["completion_s"], "ttft_mean_s": result["ttft_mean_s"]})
        return rows

    def _all(self) -> list[tuple[Row, str, Run]]:
        found: list[tuple[Row, str, Run]] = []
        for contexts, longest in (("cut", self._longest), ("grown", None)):
            for longer, factor in itertools.product(("append", "generate"), (1.0, 1.5, 2.0, 3.0)):
                about: Row = {
                    "append_scale": factor if longer == "append" else 1.0,
                    "generation_scale": factor if longer == "generate" else 1.0,
                    "contexts": contexts,
                    "longer": longer,
                    "factor": factor,
                }
                for system in SYSTEMS:
                    scale = {f"{longer}_scale": factor}
                    ends = longest if factor != 1.0 else None  # as they are, all sessions end by there
                    found.append((about, system, self._setting.run(system, (), longest_tokens=ends, **scale)))
        return found


@final
class Sizes(Experiment):
    """24 times the nodes with 24 times the agents: 2P4D and 48P96D on the 48K trace."""

    name: ClassVar[str] = "scale"
    _settings = tuple(Setting("ds660b", "48K", 2048 * times, (2 * times, 4 * times)) for times in (1, 24))
    _systems = ("dualpath", "basic")

    def runs(self, results: Results) -> Sequence[Run]:
        return [setting.run(system) for setting in self._settings for system in self._systems]

    def rows(self, results: Results) -> list[Row]:
        return _jct_rows(self._settings, self._systems, results)


@final
class Ablation(Experiment):
    """What each of the paper's three parts takes off the completion time of `basic`; DS 660B, 64K."""

    name: ClassVar[str] = "ablation"
    measured: ClassVar[tuple[str, ...]] = ("jct_s", "reduction")
    plots: ClassVar[tuple[Lines, ...]] = (Lines(("agents",), "model", "system", "reduction", "Ablation, DS 660B, 64K"),)
    _settings = tuple(Setting("ds660b", "64K", agents) for agents in (1024, 2048))

    def runs(self, results: Results) -> Sequence[Run]:
        return [setting.run(mode) for setting in self._settings for mode in PAPER_ABLATION]

    def rows(self, results: Results) -> list[Row]:
        rows = []
        for setting in self._settings:
            basic = results(setting.run("basic"))
            for row in _jct_rows([setting], list(PAPER_ABLATION), results):
                if basic is not None:
                    rows.append({**row, "reduction": 1 - row["jct_s"] / basic["completion_s"]})  # type: ignore[operator]
        return rows

    def published(self) -> list[Mapping[str, str]]:
        return [{"system": mode, "reduction": str(value)} for mode, value in PAPER_ABLATION.items()]


@final
class Balance(Experiment):
    """Largest over mean of what storage cards read and of engines' attention times; DS 660B, 64K, 1,024 agents."""

    name: ClassVar[str] = "balance"
    measured: ClassVar[tuple[str, ...]] = ("snic_max_over_mean", "attention_max_over_mean")
    _setting = Setting("ds660b", "64K", 1024)
    _published = MappingProxyType({"layerwise+dual": (1.53, ""), "dualpath": (1.18, 1.06)})

    def runs(self, results: Results) -> Sequence[Run]:
        return [self._setting.run(mode) for mode in self._published]

    def rows(self, results: Results) -> list[Row]:
        found = [(mode, self._setting.run(mode)) for mode in self._published]
        return [
            {**self._setting.row(run, mode), **{name: result[name] for name in self.measured}}
            for mode, run in found
            if (result := results(run)) is not None
        ]

    def published(self) -> list[Mapping[str, str]]:
        values = self._published.items()
        return [{"system": mode, **dict(zip(self.measured, map(str, pair), strict=True))} for mode, pair in values]


def _jct_rows(settings: Sequence[Setting], systems: Sequence[str], results: Results) -> list[Row]:
    return [
        {**setting.row(run, system), "jct_s": result["completion_s"], "ttft_mean_s": result["ttft_mean_s"]}
        for setting, system in itertools.product(settings, systems)
        if (result := results(run := setting.run(system))) is not None
    ]
