"""The paper's points, and a few of them simulated: the whole check is `calibrate`'s."""

import io
import math

import numpy as np
import pytest

from dualpath_scheduler.simulator import calibrate
from dualpath_scheduler.simulator.paper_points import paper_points, simulate_point, speedups


def test_all_runs_of_systems_that_are_simulated():
    points = paper_points()
    assert len(points) == 99
    assert {point.system for point in points} == {"basic", "dualpath", "oracle"}


def test_the_fit_sees_a_part_of_them():
    keys = {(point.model, point.max_length, point.agents) for point in paper_points()}
    assert set(calibrate.FIT_POINTS) < keys
    assert len(keys) == 33


def test_the_smallest_are_within_their_bounds():
    points = [point for point in paper_points() if point.agents == 32]
    seconds = {point: simulate_point(point).completion_s for point in points}
    assert [abs(found / point.jct_s - 1) <= 0.3 for point, found in seconds.items()] == [True] * 3
    ((_, ours, theirs),) = speedups(seconds)
    assert ours == pytest.approx(theirs, rel=0.15)


@pytest.mark.long
@pytest.mark.parametrize(
    ("model", "length", "agents"), [("ds27b", "48K", 512), ("ds660b", "48K", 512), ("qwen2.5-32b", "48K", 128)]
)
def test_settings_that_the_fit_never_saw_are_within_their_bounds(model, length, agents):
    assert (model, length, agents) not in calibrate.FIT_POINTS
    points = [
        point for point in paper_points() if (point.model, point.max_length, point.agents) == (model, length, agents)
    ]
    seconds = {point: simulate_point(point).completion_s for point in points}
    assert max(abs(found / point.jct_s - 1) for point, found in seconds.items()) <= 0.3
    ((_, ours, theirs),) = speedups(seconds)
    assert ours == pytest.approx(theirs, rel=0.15)


def test_the_check_writes_a_row_a_point(monkeypatch, capsys):
    points = [point for point in paper_points() if point.agents == 32]
    monkeypatch.setattr(calibrate, "simulate_point", lambda point: type("Run", (), {"completion_s": 2 * point.jct_s}))
    out = io.StringIO()
    calibrate.check(points, out)
    assert [row.rsplit(",", 1)[1] for row in out.getvalue().splitlines()] == ["error", *["+1.000"] * 3]
    assert "3 points: median error 1.000, largest 1.000; 1 speed-ups: median error 0.000" in capsys.readouterr().err


def test_a_fit_moves_the_constants_that_matter(monkeypatch, capsys):
    monkeypatch.setattr(calibrate, "residuals", lambda points, values: np.array([math.log(values["turn_s"] / 0.6)]))
    fitted = calibrate.fit(4)
    assert fitted["turn_s"] == pytest.approx(0.6, rel=0.01)
    assert fitted["layer_s"] == 2.5e-4
    assert capsys.readouterr().out.startswith("loss ")


def test_residuals_weigh_speed_ups_twice(monkeypatch):
    points = [point for point in paper_points() if point.agents == 32]
    halved = {"dualpath": 0.5, "basic": 1.0, "oracle": 1.0}
    monkeypatch.setattr(
        calibrate,
        "simulate_point",
        lambda point, overrides: type("Run", (), {"completion_s": point.jct_s * halved[point.system]}),
    )
    found = calibrate.residuals(points, {"turn_s": 1.0})
    assert sorted(found) == pytest.approx(sorted([0.0, math.log(0.5), 0.0, 2 * math.log(2)]))
