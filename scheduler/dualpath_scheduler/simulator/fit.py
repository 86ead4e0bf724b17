"""Least squares over a few positive constants with bounds, for functions that take minutes (Gauss-Newton, damped)."""

import math
from collections.abc import Callable, Iterator, Mapping
from typing import final

import numpy as np

Values = Mapping[str, float]
Residuals = Callable[[Values], np.ndarray]
"""float64 `[residuals]` of these values; its mean square is what a fit lowers."""

_PROBE = math.log(1.15)
_DAMPING = 0.05
"""Of the largest squared slope: constants that change nothing stay where they are."""
_LONGEST = math.log(1.4)
_HALVINGS = 3


@final
class Fit:
    """Works on logarithms of the constants; `values` and `loss` are the best so far."""

    def __init__(self, residuals: Residuals, values: Values, bounds: Mapping[str, tuple[float, float]]) -> None:
        self._residuals = residuals
        self._bounds = bounds
        self.values = dict(values)
        self._found = residuals(values)

    @property
    def loss(self) -> float:
        return float(np.mean(self._found**2))

    def rounds(self, count: int) -> Iterator[Values]:
        """At most so many steps, each down; ends early where none is found. Yields the values after each."""
        for _ in range(count):
            if not self._step():
                return
            yield self.values

    def _step(self) -> bool:
        """Tries the step that would be best were everything linear, then shorter ones."""
        slopes = np.stack([self._slope(name) for name in self._bounds], axis=1)
        normal = slopes.T @ slopes
        damped = normal + _DAMPING * max(1e-12, float(normal.diagonal().max())) * np.eye(len(normal))
        step = np.clip(np.linalg.solve(damped, -slopes.T @ self._found), -_LONGEST, _LONGEST)
        for halving in range(_HALVINGS):
            moved = self._moved(dict(zip(self._bounds, step / 2**halving, strict=True)))
            found = self._residuals(moved)
            if float(np.mean(found**2)) < self.loss:
                self.values, self._found = moved, found
                return True
        return False

    def _slope(self, name: str) -> np.ndarray:
        """The residuals' change with the constant's logarithm; probed downwards where upwards is out of bounds."""
        probe = _PROBE if self.values[name] * math.exp(_PROBE) <= self._bounds[name][1] else -_PROBE
        return (self._residuals({**self.values, name: self.values[name] * math.exp(probe)}) - self._found) / probe

    def _moved(self, steps: Mapping[str, float]) -> dict[str, float]:
        moved = dict(self.values)
        for name, step in steps.items():
            least, most = self._bounds[name]
            moved[name] = min(most, max(least, moved[name] * math.exp(step)))
        return moved
