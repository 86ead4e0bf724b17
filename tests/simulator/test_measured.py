"""Clusters whose computing was timed: hand-worked times, and two groups on the same cores."""

import pytest

from dualpath_configs import load_cluster, simulated_cluster
from dualpath_scheduler.simulator.measured_cost import MeasuredCost
from dualpath_scheduler.simulator.simulation import Simulation
from tests.simulator.small import MEASURED, small_spec, workload


def finished(spec, work) -> Simulation:
    run = Simulation(spec, work)
    run.run()
    return run


def test_one_request():
    # 100 tokens in a batch of the width 256, with 5,050 pairs; inserted at 10,000 tokens/s; then three steps of one
    # request with 100 + 4 / 2 tokens, to which the step's clock adds what it has decoded.
    run = finished(small_spec(measured=MEASURED, batch_tokens=256), workload([(100, 4)]))
    first = 0.1 + 5050e-6
    assert run.log.first_token_s[0] == pytest.approx(first)
    assert run.log.end_s[0] == pytest.approx(first + 0.010 + 3 * (0.010 + 0.001 + 100 * 1e-5))


def test_one_request_of_the_real_cluster():
    # 64 tokens on an idle cluster: their 262,144 bytes pass each rested card at once. Memory has a rate, so high that
    # it stands for none.
    spec = simulated_cluster(load_cluster("local_1p1d"), MEASURED, turn_s=0.5)
    run = finished(spec, workload([(64, 3)]))
    first = 0.04 + 64 * 65 / 2 * 1e-6
    assert run.log.first_token_s[0] == pytest.approx(first)
    assert run.log.end_s[0] == pytest.approx(first + 2 * (0.010 + 0.001 + 64 * 1e-5), abs=1e-6)


def test_a_prompt_wider_than_any_batch_is_cut():
    run = finished(small_spec(measured=MEASURED, batch_tokens=256), workload([(300, 1)]))
    whole = 0.1 + 256 * 257 / 2 * 1e-6
    load = 0.0256 / 2  # of the first of two layers of what the first batch computed
    assert run.log.first_token_s[0] == pytest.approx(whole + load + 0.04 + (44 * 256 + 44 * 45 / 2) * 1e-6)


@pytest.mark.parametrize(("alone", "uneven", "even"), [(0.5, 0.3, 0.4), (1.0, 0.4, 0.4)])
def test_engines_that_share_cores_take_turns(alone, uneven, even):
    # 0.4 s of attention on one engine of two and half of that on the other: with turns (0.4 + 0.2) / 2.
    cost = MeasuredCost(MEASURED.model_copy(update={"batch_alone": alone}), engines=2)
    assert cost.batch_s([0.4, 0.2], [64, 1]) - 0.04 == pytest.approx(uneven)
    assert cost.batch_s([0.4, 0.4], [64, 64]) - 0.04 == pytest.approx(even)


@pytest.mark.parametrize(("cores", "slower"), [(None, 1.0), (4, 1.0), (3, 4 / 3), (2, 2.0)])
def test_batches_and_steps_slow_each_other_down(cores, slower):
    # While the first request decodes (0.3 s), the second is prefilled for 0.1 s: each wants two cores.
    measured = MEASURED.model_copy(update={"batch_cores": 2.0, "step_cores": 2.0, "shared_cores": cores, "pair_s": 0.0})
    measured = measured.model_copy(update={"step_request_s": 0.0, "step_token_s": 0.0})
    work = workload([(64, 31)], [(100, 1)], arrivals_s=(0.0, 0.1))
    run = finished(small_spec(measured=measured, batch_tokens=256), work)
    assert run.log.first_token_s[1] == pytest.approx(0.1 + 0.1 * slower)
    assert run.log.end_s[0] == pytest.approx(0.04 + 0.0064 + 0.3 + 0.1 * (slower - 1))
