"""What a batch or a step takes on engines that were timed."""

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from typing import final

from dualpath_configs import MeasuredSpec
from dualpath_scheduler.simulator.cost import Cost


@final
class MeasuredCost(Cost):
    """The lines of a `MeasuredSpec`; `engines` step together."""

    def __init__(self, measured: MeasuredSpec, engines: int) -> None:
        self._measured = measured
        self._batch_others = _others(measured.batch_alone, engines)
        self._step_others = _others(measured.step_alone, engines)
        self.prefill_cores, self.decode_cores = measured.batch_cores, measured.step_cores

    def attention_s(self, cached: int, new: int) -> float:
        return self._measured.pair_s * (new * cached + new * (new + 1) / 2)

    def batch_s(self, attention_s: Sequence[float], tokens: Sequence[int]) -> float:
        """A batch of the width that holds the engine with most tokens."""
        width = bisect_left(self._measured.batch_widths, max(tokens))
        attention = _together(attention_s, self._measured.batch_alone, self._batch_others)
        return self._measured.batch_s[width] + attention

    def step_s(self, engines: Iterable[tuple[int, float, float]], clock: float) -> float:
        measured = self._measured
        seconds = [
            count * measured.step_request_s + (tokens + count * clock) * measured.step_token_s
            for count, tokens, _ in engines
        ]
        return measured.step_s + _together(seconds, measured.step_alone, self._step_others)


def _others(alone: float, engines: int) -> float:
    """What each engine beside the one with most adds: with equal shares, they and that one take all of the time."""
    return (1 - alone) / (engines - 1) if engines > 1 else 0.0


def _together(seconds: Sequence[float], alone: float, others: float) -> float:
    most = max(seconds)
    return alone * most + others * (sum(seconds) - most)
