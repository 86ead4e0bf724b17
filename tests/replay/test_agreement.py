"""What counts as agreement, and that each kind of disagreement is found."""

import itertools
import math

import pytest

from dualpath_jax.engine.base import TokenChoice
from dualpath_jax.replay.agreement import Agreement, compare, spread_sample
from tests.replay.samples import choice

KEY = ("s1", 2)
EPSILON = 1e-4


def _compared(mine: list[TokenChoice], other: list[TokenChoice], epsilon: float = EPSILON) -> Agreement:
    return compare("dualpath", {KEY: mine}, "basic", {KEY: other}, epsilon=epsilon)


def test_equal_runs_agree_at_any_epsilon():
    sequence = [choice(), choice(6, -2.5), choice(7, -3.0)]
    found = _compared(sequence, list(sequence), epsilon=0.0)
    assert (found.problems, found.requests, found.positions, found.largest_difference) == ((), 1, 3, 0.0)
    assert found.line(0.0).startswith("dualpath agrees with basic: 1 requests, 3 tokens")


def test_log_probabilities_within_epsilon_agree_and_are_measured():
    found = _compared([choice(), choice(logprob=-1.00009)], [choice(), choice()])
    assert found.problems == ()
    assert found.largest_difference == pytest.approx(9e-5)


@pytest.mark.parametrize("logprob", [-1.0002, -0.9998, math.nan, -math.inf, 0.0])
def test_a_log_probability_beyond_epsilon_is_found(logprob):
    found = _compared([choice(), choice(logprob=logprob)], [choice(), choice()])
    assert len(found.problems) == 1
    assert found.problems[0].startswith("session s1 turn 2, token 1: log-probability ")
    assert "DISAGREES at 1 positions with basic" in found.line(EPSILON)


def test_another_token_is_found_however_likely():
    (problem,) = _compared([choice(6)], [choice(5)]).problems
    assert problem == "session s1 turn 2, token 0: token 6, expected 5"


@pytest.mark.parametrize("got", [[], [choice()], [choice()] * 3])
def test_another_length_is_found(got):
    (problem,) = _compared(got, [choice(), choice()]).problems
    assert problem == f"session s1 turn 2: dualpath has {len(got)} tokens, basic 2"


def test_a_missing_turn_is_found():
    found = compare("dualpath", {}, "basic", {KEY: [choice()]}, epsilon=EPSILON)
    assert found.problems == ("session s1 turn 2: dualpath has 0 tokens, basic 1",)


def test_turns_that_the_reference_lacks_are_not_compared():
    found = compare("dualpath", {KEY: [choice(9)], ("s2", 0): []}, "sample", {}, epsilon=EPSILON)
    assert (found.problems, found.requests, found.positions) == ((), 0, 0)


@pytest.mark.parametrize(
    ("mine", "margin", "agrees"),
    [
        ((6, 5), 1.9e-4, True),  # the two most likely tokens are nearly tied: either may come first
        ((6, 5), 2.1e-4, False),
        ((6, 5), 0.5, False),
        ((7, 5), 1e-5, False),  # a third token is further away than the second
        ((5, 7), 0.5, True),  # the second place is nobody's choice
    ],
)
def test_another_greedy_choice_agrees_only_at_a_near_tie(mine, margin, agrees):
    found = _compared([choice(3, top=mine, margin=margin)], [choice(3, top=(5, 6), margin=margin)])
    assert (found.problems == ()) is agrees
    if not agrees:
        assert f"greedy choice {mine[0]}, expected 5 by {margin:.1e}" in found.problems[0]


def test_without_an_epsilon_even_a_tie_is_no_excuse():
    assert _compared([choice(3, top=(6, 5), margin=0.0)], [choice(3, margin=0.0)], epsilon=0.0).problems != ()


def test_every_problem_of_every_turn_is_found_once():
    choices = {("a", 0): [choice(1), choice()], ("b", 0): [choice(), choice(1)], ("c", 0): [choice(), choice()]}
    expected = {key: [choice(), choice()] for key in choices}
    found = compare("dualpath", choices, "basic", expected, epsilon=EPSILON)
    assert [problem.partition(":")[0] for problem in found.problems] == [
        "session a turn 0, token 0",
        "session b turn 0, token 1",
    ]


TURNS = [(f"s{session}", turn) for session in range(6) for turn in range(20)]


@pytest.mark.parametrize("count", [1, 2, 5, 12, 119])
def test_a_sample_is_spread_over_early_and_late_turns_and_over_sessions(count):
    sample = spread_sample(TURNS, count)
    assert len(sample) == len(set(sample)) == count
    assert set(sample) <= set(TURNS)
    numbers = [turn for _, turn in sample]
    gaps = [later - earlier for earlier, later in itertools.pairwise([-1, *numbers, 20])]
    assert min(gaps) >= 0
    assert max(gaps) <= math.ceil(20 / count) + 1
    if count >= 12:
        assert len({session for session, _ in sample}) == 6


def test_a_sample_does_not_fall_in_step_with_the_number_of_sessions():
    turns = [(f"s{session:02}", turn) for session in range(12) for turn in range(20)]
    assert len({session for session, _ in spread_sample(turns, 12)}) >= 8


def test_a_sample_is_no_larger_than_what_there_is():
    assert sorted(spread_sample(TURNS, 1000)) == sorted(TURNS)
    assert spread_sample(TURNS, 0) == []
    assert spread_sample([], 5) == []
