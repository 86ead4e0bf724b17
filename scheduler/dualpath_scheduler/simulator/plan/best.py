"""The split of so many nodes into prefill and decode nodes that the simulator finds best."""

from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from typing import final

from dualpath_configs import SIMULATED_MODES, SimulatedSpec
from dualpath_scheduler.simulator.outcome import Outcome, outcome_of
from dualpath_scheduler.simulator.simulation import Simulation
from dualpath_scheduler.simulator.workload import Workload

_FIRST_SPLITS = 7

Simulate = Callable[[SimulatedSpec, Workload, str], Simulation]


@final
@dataclass(frozen=True)
class Split:
    """What the paper's system and the baseline make of one split of the nodes."""

    prefill_nodes: int
    decode_nodes: int
    dualpath: Outcome
    basic: Outcome

    @property
    def name(self) -> str:
        return f"{self.prefill_nodes}P{self.decode_nodes}D"


def simulated_splits(spec: SimulatedSpec, workload: Workload, nodes: int, simulate: Simulate) -> list[Split]:
    """The splits that `least` looks at to find the best for `dualpath`, each in both modes, by their P/D."""
    splits: dict[int, Split] = {}

    def seconds(prefill_nodes: int) -> float:
        split = splits[prefill_nodes] = _simulated(spec, workload, (prefill_nodes, nodes - prefill_nodes), simulate)
        return seconds_of(split.dualpath, workload)

    least(seconds, nodes - 1)
    return [splits[prefill_nodes] for prefill_nodes in sorted(splits)]


def seconds_of(outcome: Outcome, workload: Workload) -> float:
    """What a good split makes short: the completion time where all agents start at once, else the mean TTFT."""
    return outcome.ttft_mean_s if workload.arrival_s.any() else outcome.completion_s


def least(value: Callable[[int], float], most: int) -> int:
    """The number in `[1, most]` with the least value: a few even steps, then half-way to the neighbours of the best.

    Finds the minimum of values that fall and then rise; of others, one that is below its neighbours. Each number is
    asked for once.
    """
    steps = min(_FIRST_SPLITS, most) - 1
    asked = {1 + round(step * (most - 1) / max(1, steps)) for step in range(steps + 1)}
    values: dict[int, float] = {}
    while asked:
        values |= {number: value(number) for number in sorted(asked)}
        best = min(values, key=lambda number: (values[number], number))
        asked = {(a + b) // 2 for a, b in pairwise(sorted(values)) if best in (a, b) and b - a > 1}
    return best


def _simulated(spec: SimulatedSpec, workload: Workload, nodes: tuple[int, int], simulate: Simulate) -> Split:
    prefill, decode = nodes
    outcomes = {}
    for mode in ("dualpath", "basic"):
        shape = {"prefill_nodes": prefill, "decode_nodes": decode, "mode": SIMULATED_MODES[mode]}
        label = f"{prefill}P{decode}D, {mode}"
        outcomes[mode] = outcome_of(simulate(spec.model_copy(update=shape), workload, label))
    return Split(prefill, decode, outcomes["dualpath"], outcomes["basic"])
