"""The highest rate of arrivals at which latencies stay within their targets."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, final

from dualpath_scheduler.simulator.outcome import Outcome

_PRECISION: Final = 1.03
_LEAST, _MOST = 1e-4, 1e4


@final
@dataclass(frozen=True)
class Targets:
    """Means that must hold (paper, online serving); None: none for that one."""

    ttft_s: float | None
    tpot_s: float | None

    def hold(self, outcome: Outcome) -> bool:
        ttft = self.ttft_s is None or outcome.ttft_mean_s <= self.ttft_s
        return ttft and (self.tpot_s is None or outcome.tpot_mean_s <= self.tpot_s)


def highest_rate(run: Callable[[float], Outcome], targets: Targets, start: float = 0.1) -> tuple[float, Outcome | None]:
    """The highest rate, to 3 %, at which the targets hold, and what came out at it.

    Rates are doubled or halved from `start` until the answer lies between two of them, and the interval is halved from
    there on, on a logarithmic scale. (0, None) where not even very few arrivals keep the targets.
    """
    low = high = start
    best: Outcome | None = None
    while high < _MOST and targets.hold(outcome := run(high)):
        low, high, best = high, high * 2, outcome
    while best is None:
        if low < _LEAST:
            return 0.0, None
        high, low = low, low / 2
        best = outcome if targets.hold(outcome := run(low)) else None
    while high / low > _PRECISION:
        middle = (low * high) ** 0.5
        if targets.hold(outcome := run(middle)):
            low, best = middle, outcome
        else:
            high = middle
    return low, best
