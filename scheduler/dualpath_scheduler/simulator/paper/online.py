"""Online serving: sessions arrive as a Poisson process, and latencies have targets."""

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import ClassVar, final

from dualpath_scheduler.simulator.paper.experiment import Experiment, Lines, Results, Row
from dualpath_scheduler.simulator.paper.offline import SYSTEMS, Setting
from dualpath_scheduler.simulator.paper.runs import Result, Run

TTFT_S, TPOT_S = 4.0, 0.050
ARRIVALS_FOR_S = 3600.0
"""Sessions arrive for so long: some times the length of one, and at the end all of them are served."""

_RATES = tuple(round(0.05 * step, 2) for step in range(1, 21))
_HALVINGS = 4


@final
@dataclass(frozen=True)
class Serving:
    """One model in one system."""

    model: str
    system: str

    def run(self, arrivals_per_s: float) -> Run:
        agents = round(arrivals_per_s * ARRIVALS_FOR_S)
        return Setting(self.model, "64K", agents).run(self.system, arrivals_per_s=arrivals_per_s)

    def rates(self, results: Results) -> Iterator[tuple[float, Run]]:
        """Rates to run at: even steps to the first that misses TTFT, then halvings to where each target ends.

        Ends at the first run whose result is not there, since what follows depends on it.
        """
        steps: list[tuple[float, Result]] = []
        for rate in _RATES:
            yield rate, self.run(rate)
            if (result := results(self.run(rate))) is None:
                return
            steps.append((rate, result))
            if not TARGETS["TTFT"](result):
                break
        for holds in TARGETS.values():
            missed = next((rate for rate, result in steps if not holds(result)), None)
            if missed is None:
                continue
            held = max((rate for rate, _ in steps if rate < missed), default=0.0)
            for _ in range(_HALVINGS if held else 0):
                rate = round((held + missed) / 2, 5)
                yield rate, self.run(rate)
                if (result := results(self.run(rate))) is None:
                    return
                held, missed = (rate, missed) if holds(result) else (held, rate)


def _within(result: Result, name: str, limit_s: float) -> bool:
    value = result[name]
    assert value is not None
    return value <= limit_s


TARGETS: Mapping[str, Callable[[Result], bool]] = MappingProxyType(
    {
        "TTFT": lambda result: _within(result, "ttft_mean_s", TTFT_S),
        "TTFT and TPOT": lambda result: (
            _within(result, "ttft_mean_s", TTFT_S) and _within(result, "tpot_mean_s", TPOT_S)
        ),
    }
)
"""The paper's targets, of means: what queues do to them, and with what decoding alone takes."""

_SERVINGS = tuple(Serving(model, system) for model, system in itertools.product(("ds27b", "ds660b"), SYSTEMS))


@final
class Latencies(Experiment):
    """TTFT and TPOT of 660B and 27B, 64K, over rates of arrivals."""

    name: ClassVar[str] = "online"
    measured: ClassVar[tuple[str, ...]] = ("ttft_s", "tpot_s")
    plots: ClassVar[tuple[Lines, ...]] = (
        Lines(("model",), "system", "arrivals_per_s", "ttft_s", "Online serving, 64K", TTFT_S),
        Lines(("model",), "system", "arrivals_per_s", "tpot_s", "Online serving, 64K", TPOT_S),
    )

    def runs(self, results: Results) -> Sequence[Run]:
        return [run for serving in _SERVINGS for _, run in serving.rates(results)]

    def rows(self, results: Results) -> list[Row]:
        rows = []
        for serving in _SERVINGS:
            for rate, run in sorted(serving.rates(results), key=lambda pair: pair[0]):
                if (result := results(run)) is not None:
                    rows.append({**_about(serving, run), "arrivals_per_s": rate, **_latencies(result)})
        return rows


@final
class HighestRates(Experiment):
    """The highest rate at which TTFT, and TTFT and TPOT, are within their targets: of the runs of `Latencies`."""

    name: ClassVar[str] = "online_highest"
    measured: ClassVar[tuple[str, ...]] = ("arrivals_per_s",)

    def runs(self, results: Results) -> Sequence[Run]:
        return Latencies().runs(results)

    def rows(self, results: Results) -> list[Row]:
        return [row for targets in TARGETS for row in self._rows(targets, results)]

    def _rows(self, targets: str, results: Results) -> list[Row]:
        rows = []
        highest: dict[tuple[str, str], float] = {}
        for serving in _SERVINGS:
            tried = {rate: (run, result) for rate, run in serving.rates(results) if (result := results(run))}
            held = [rate for rate, (_, result) in tried.items() if TARGETS[targets](result)]
            if held and max(held) < max(tried):
                rate = highest[serving.model, serving.system] = max(held)
                run, result = tried[rate]
                rows.append({**_about(serving, run), "targets": targets, "arrivals_per_s": rate, **_latencies(result)})
        for row in rows:
            basic = highest.get((str(row["model"]), "basic"))
            row["over_basic"] = highest[str(row["model"]), str(row["system"])] / basic if basic else None
        return rows


def _about(serving: Serving, run: Run) -> Row:
    row = Setting(serving.model, "64K", run.agents).row(run, serving.system)
    return {name: value for name, value in row.items() if name != "agents"}


def _latencies(result: Result) -> Mapping[str, float | None]:
    names = {"ttft_s": "ttft_mean_s", "ttft_p99_s": "ttft_p99_s", "tpot_s": "tpot_mean_s", "tpot_p99_s": "tpot_p99_s"}
    return {name: result[field] for name, field in names.items()}
