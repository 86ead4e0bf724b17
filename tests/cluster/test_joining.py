"""How long reads will take, by hand."""

import pytest

from dualpath_jax.cluster.arrivals import predicted_left_s


@pytest.mark.parametrize(
    ("arrived_s", "now_s", "left_s"),
    [
        ([10.0], 10.5, 2.0),  # none has come: four times what the first one has taken so far
        ([10.0, 11.0], 11.0, 3.0),
        ([10.0, 11.0], 11.25, 2.75),
        ([10.0, 15.0, 16.0], 16.0, 2.0),  # the first waited for other requests, and does not count
        ([10.0, 15.0, 16.0, 17.0], 17.75, 0.25),
        ([10.0, 15.0, 16.0, 17.0], 19.0, 2.0),  # late by as much again
        ([10.0, 11.0, 12.0, 13.0, 14.0], 99.0, 0.0),
    ],
)
def test_what_is_left_follows_the_newest_interval(arrived_s, now_s, left_s):
    assert predicted_left_s(4, arrived_s, now_s) == pytest.approx(left_s)
