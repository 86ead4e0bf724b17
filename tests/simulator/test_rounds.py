"""The scheduler looks at its queues in rounds, and not at all while nothing waits."""

import time

import pytest

from dualpath_configs import load_simulated
from dualpath_scheduler.policy import EngineState, NodeState
from dualpath_scheduler.simulator.simulation import Simulation
from dualpath_scheduler.simulator.workload import make_workload
from dualpath_scheduler.workload import load_trace
from tests.simulator.small import CALIBRATION, small_spec, workload


def test_a_round_takes_what_has_come_since_the_last():
    calibration = CALIBRATION.model_copy(update={"round_s": 0.005})
    arrivals = (1.0, 1.001, 1.002, 1.1)
    work = workload(*[[(64, 2)]] * 4, arrivals_s=arrivals)
    run = Simulation(small_spec(calibration=calibration), work)
    run.run()
    assert run.log.times["assigned_s"].tolist() == pytest.approx([1.0, 1.005, 1.005, 1.1])


def test_a_node_that_has_read_keeps_what_was_worked_out_of_its_engines():
    node = NodeState("p", 10, (EngineState("p", 0, 1, 7), EngineState("p", 1, 1, 5)), beta_tokens=6.0)
    assert node.ready == ((5, "p", 1),)
    later = node.reading(20)
    assert (later.read_q_tokens, later.tok, node.read_q_tokens) == (20, 12, 10)
    assert later.ready is node.ready
    assert later == NodeState("p", 20, node.engines, beta_tokens=6.0)
    assert node.reading(10) is node


@pytest.mark.long
def test_time_is_linear_in_requests():
    trace = load_trace("paper-48k", vocab_size=1000, max_turns=6)
    microseconds = []
    for multiple in (1, 4):
        spec = load_simulated("660b_2p4d", {"prefill_nodes": 2 * multiple, "decode_nodes": 4 * multiple})
        run = Simulation(spec, make_workload(trace, agents=2048 * multiple))
        began = time.process_time()
        run.run()
        microseconds.append((time.process_time() - began) / run.workload.requests * 1e6)
    assert microseconds[1] < 2 * microseconds[0]
