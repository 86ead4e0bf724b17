"""Fits whose best values are known."""

import numpy as np
import pytest

from dualpath_scheduler.simulator.fit import Fit

BOUNDS = {"a": (0.1, 10.0), "b": (0.1, 10.0)}


def test_two_constants_are_found():
    def residuals(values):
        return np.array([values["a"] * values["b"] - 6.0, values["a"] / values["b"] - 1.5])

    search = Fit(residuals, {"a": 2.0, "b": 2.5}, BOUNDS)
    losses = [search.loss for _ in search.rounds(20)]
    assert losses == sorted(losses, reverse=True)
    assert (search.values["a"], search.values["b"]) == pytest.approx((3.0, 2.0), rel=0.02)


def test_a_bound_holds():
    search = Fit(lambda values: np.array([values["a"] - 50.0]), {"a": 9.5, "b": 1.0}, BOUNDS)
    assert list(search.rounds(9))
    assert (search.values["a"], search.values["b"]) == (10.0, 1.0)


def test_it_ends_where_nothing_helps():
    search = Fit(lambda values: np.array([1.0, 2.0]), {"a": 1.0, "b": 1.0}, BOUNDS)
    assert list(search.rounds(5)) == []
    assert search.loss == 2.5
