"""Runs are compared with each other over all turns and with the reference on a sample; a corrupted one is noticed."""

from dataclasses import replace

import pytest

from dualpath_configs import ClusterSpec
from dualpath_jax.engine.base import TokenChoice
from dualpath_jax.replay.agreement import Agreement
from dualpath_jax.replay.play import TurnKey
from dualpath_jax.replay.run import check
from dualpath_scheduler.workload import Trace
from tests.cluster.harness import small_spec
from tests.replay.samples import faithful_choices, mode_run, small_trace

Choices = dict[TurnKey, list[TokenChoice]]
KEY, POSITION = ("s1", 2), 3
MODES = ("basic", "dualpath", "oracle")


@pytest.fixture
def spec(tmp_path) -> ClusterSpec:
    return small_spec(tmp_path)


@pytest.fixture
def trace(tmp_path, spec) -> Trace:
    return small_trace(tmp_path, spec)


def _tampered(choices: Choices, change: dict[str, object]) -> Choices:
    position = replace(choices[KEY][POSITION], **change)
    return {**choices, KEY: [*choices[KEY][:POSITION], position, *choices[KEY][POSITION + 1 :]]}


def _by_pair(comparisons: list[Agreement]) -> dict[tuple[str, str], tuple[str, ...]]:
    return {(found.run, found.reference): found.problems for found in comparisons}


def test_faithful_runs_agree_with_each_other_and_with_the_reference(spec, trace):
    choices = faithful_choices(spec, trace)
    comparisons, epsilon = check(spec, trace, [mode_run(mode, choices) for mode in MODES], sample=5)
    assert epsilon == 0.0
    assert {pair: problems for pair, problems in _by_pair(comparisons).items() if problems} == {}
    assert set(_by_pair(comparisons)) == {
        ("dualpath", "basic"),
        ("oracle", "basic"),
        *((mode, "the no-cache reference") for mode in MODES),
    }
    tokens = sum(len(chosen) for chosen in choices.values())
    assert [(c.requests, c.positions) for c in comparisons[:2]] == [(12, tokens)] * 2
    assert [c.requests for c in comparisons[2:]] == [5] * 3


@pytest.mark.parametrize(
    "change", [{"token": 1}, {"logprob": -9.0}, {"top_tokens": (1, 2)}], ids=lambda c: next(iter(c))
)
def test_one_corrupted_position_of_one_run_is_noticed_without_any_sample(spec, trace, change):
    choices = faithful_choices(spec, trace)
    runs = [mode_run("basic", choices), mode_run("dualpath", _tampered(choices, change)), mode_run("oracle", choices)]
    found = _by_pair(check(spec, trace, runs, sample=0)[0])
    (problem,) = found["dualpath", "basic"]
    assert problem.startswith("session s1 turn 2, token 3: ")
    assert found["oracle", "basic"] == ()


def test_what_is_wrong_in_every_run_is_noticed_by_the_reference(spec, trace):
    choices = _tampered(faithful_choices(spec, trace), {"logprob": -9.0})
    found = _by_pair(check(spec, trace, [mode_run(mode, choices) for mode in MODES], sample=12)[0])
    assert found["dualpath", "basic"] == found["oracle", "basic"] == ()
    assert [len(found[mode, "the no-cache reference"]) for mode in MODES] == [1, 1, 1]


def test_a_single_mode_is_compared_with_the_reference(spec, trace):
    choices = faithful_choices(spec, trace)
    (good,), _ = check(spec, trace, [mode_run("oracle", choices)], sample=12)
    (bad,), _ = check(spec, trace, [mode_run("oracle", _tampered(choices, {"token": 1}))], sample=12)
    assert (good.problems, len(bad.problems)) == ((), 1)


def test_turns_that_failed_are_compared_nowhere(spec, trace):
    choices = faithful_choices(spec, trace)
    runs = [mode_run("basic", choices, failed=[("s0", 3)]), mode_run("dualpath", choices, failed=[KEY, ("s1", 3)])]
    comparisons, _ = check(spec, trace, runs, sample=12)
    assert [c.problems for c in comparisons] == [()] * 3
    assert [c.requests for c in comparisons] == [9] * 3
    assert [len(run.failures) for run in runs] == [1, 2]


def test_a_run_without_any_result_agrees_with_nothing_and_crashes_nothing(spec, trace):
    choices = faithful_choices(spec, trace)
    comparisons, _ = check(spec, trace, [mode_run("basic", choices), mode_run("dualpath", {})], sample=12)
    assert [(c.requests, c.problems) for c in comparisons] == [(0, ())] * 3
