"""How long reads will take and who joins a pass, by hand."""

from types import SimpleNamespace

import pytest

from dualpath_jax.cluster.arrivals import predicted_left_s
from dualpath_jax.cluster.joining import JoiningRule
from dualpath_jax.engine.attention_time import AttentionTimeModel
from dualpath_scheduler.policy import PrefillLimits


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


def job(left_s, *, tokens=64, cached=0, left_behind=False, sent=True):
    send = SimpleNamespace(done=lambda: sent)
    blocks = SimpleNamespace(left_s=left_s)
    return SimpleNamespace(
        engine=0, position=cached, left_tokens=tokens, blocks=blocks, left_behind=left_behind, sends=[send]
    )


def share(tokens, engine=0):
    return SimpleNamespace(job=SimpleNamespace(engine=engine), start=0, tokens=tokens)


@pytest.fixture
def rule():
    """A pass takes a second, and attention next to nothing."""
    limits = PrefillLimits(quota_s=0.3, new_tokens=256, prefix_tokens=8192, block_tokens=64)
    return JoiningRule(
        AttentionTimeModel(seconds_per_pair=1e-12, fixed_s=1.0, tokens_per_s=64.0, new_tokens_per_s=64.0), limits
    )


def test_a_request_joins_when_its_reads_end_about_with_the_pass(rule):
    assert [rule.joins(job(left_s), alone=False) for left_s in (0.0, 1.4, 1.6)] == [True, True, False]
    assert rule.wait_s([job(2.5), job(1.75)]) == pytest.approx(0.25)
    assert rule.wait_s([]) is None


def test_alone_it_joins_at_once(rule):
    assert rule.joins(job(60.0), alone=True)


def test_the_rule_learns_how_long_passes_take(rule):
    for _ in range(8):
        rule.note([share(64), share(64, engine=1)], 0.1)
    assert not rule.joins(job(0.2), alone=False)
    assert rule.joins(job(0.14), alone=False)


def test_one_that_was_left_behind_waits_for_all_of_it(rule):
    assert not rule.joins(job(0.01, left_behind=True), alone=True)
    assert not rule.joins(job(0.0, left_behind=True, sent=False), alone=True)
    assert rule.joins(job(0.0, left_behind=True), alone=False)
    assert rule.wait_s([job(0.01, left_behind=True)]) is None


def test_a_pass_waits_for_a_bounded_time(rule):
    assert rule.patience_s(job(1.0)) == pytest.approx(3.0)
    assert rule.patience_s(job(5.0)) == pytest.approx(10.0)
    for _ in range(12):
        rule.note([share(64)], 1e-4)
    assert rule.patience_s(job(0.0)) == 0.3
