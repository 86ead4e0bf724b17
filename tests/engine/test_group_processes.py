"""Groups of processes on the Flax engine: they agree with a single process, and end when one of them does."""

import signal
from collections.abc import Callable

import numpy as np
import pytest

from dualpath_jax.launch.lifetime import LOST_GROUP
from tests.engine.flax_testbed import TOLERANCE, idle_group
from tests.engine.group_testbed import FlaxProcesses, Generated, flax_processes, generate


def check_agreement(got: Generated, expected: Generated) -> None:
    """The same choices on KV and log-probabilities that may differ in the order of sums."""
    for one, other in zip(got.kv, expected.kv, strict=True):
        np.testing.assert_allclose(np.frombuffer(one, np.float32), np.frombuffer(other, np.float32), atol=1e-5)
    pairs = [(choice, wanted) for choice, wanted in zip(got.choices, expected.choices, strict=True)]
    for step, wanted_step in zip(got.steps, expected.steps, strict=True):
        assert step.keys() == wanted_step.keys()
        pairs += [(step[engine], wanted_step[engine]) for engine in step]
    for choice, wanted in pairs:
        assert choice.token == wanted.token
        assert choice.top_tokens == wanted.top_tokens
        np.testing.assert_allclose(choice.logprob, wanted.logprob, atol=TOLERANCE["float32"])


def ended(group: FlaxProcesses, index: int) -> int:
    return group.processes[index].wait(20)


def test_two_processes_give_what_one_gives_and_the_leader_outlasts_no_frozen_follower(tmp_path):
    with flax_processes(tmp_path, engines=2, processes=2) as group:
        expected = generate(idle_group(2))
        got = group.generated(deadline_s=200)
        assert got == expected  # sums of two terms have one order
        group.processes[1].send_signal(signal.SIGSTOP)
        assert ended(group, 0) == LOST_GROUP  # out of a collective that nothing else would end
        lines = [line for line in group.said(0).splitlines() if line.startswith("lost ")]
        assert lines == ["lost process 1: nothing was heard for 6 s; this process ends with its group"]


def kill_follower(group: FlaxProcesses) -> None:
    group.processes[1].kill()
    assert ended(group, 0) == LOST_GROUP
    assert "lost process 1: " in group.said(0)


def kill_leader(group: FlaxProcesses) -> None:
    group.processes[0].kill()
    assert ended(group, 1) in (LOST_GROUP, -signal.SIGABRT)  # JAX may notice first, and aborts


def freeze_leader(group: FlaxProcesses) -> None:
    group.processes[0].send_signal(signal.SIGSTOP)
    assert ended(group, 1) == LOST_GROUP
    assert "lost the leader (process 0): nothing was heard for 6 s" in group.said(1)


@pytest.mark.long
@pytest.mark.parametrize("death", [kill_follower, kill_leader, freeze_leader])
def test_four_engines_of_two_processes(tmp_path, death: Callable[[FlaxProcesses], None]):
    with flax_processes(tmp_path, engines=4, processes=2) as group:
        got = group.generated(deadline_s=300)
        check_agreement(got, generate(idle_group(4)))
        death(group)
