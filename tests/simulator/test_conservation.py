"""Whatever the mode and the read plan, nothing is lost; the same seed gives the same run in every process."""

import hashlib
import subprocess
import sys
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dualpath_configs import SIMULATED_MODES, load_cluster, load_simulated, simulated_cluster
from dualpath_scheduler.policy import READ_PLANS
from dualpath_scheduler.report import summarise
from dualpath_scheduler.simulator.accounting import ConservationError, check_conservation
from dualpath_scheduler.simulator.outcome import outcome_of, run_record
from dualpath_scheduler.simulator.simulation import Simulation
from dualpath_scheduler.simulator.workload import Workload, make_workload
from dualpath_scheduler.workload import load_trace
from tests.simulator.small import HARDWARE, MEASURED, small_spec, workload

TIMED = {
    "measured": MEASURED.model_copy(update={"batch_cores": 1.5, "step_cores": 1.5, "shared_cores": 2}),
    "hardware": HARDWARE.model_copy(update={"burst_bytes": 100_000}),
    "batch_tokens": 256,
    "decode_slots": 1,
}
"""A timed cluster whose groups share cores, with token buckets and few slots."""


def short_workload(agents: int = 40) -> Workload:
    trace = load_trace("paper-32k", vocab_size=1000, max_sessions=20, max_turns=8)
    return make_workload(trace, agents=agents, arrivals_per_s=8.0)


def finished(preset: str, work: Workload, **overrides: object) -> Simulation:
    run = Simulation(load_simulated(preset, overrides), work)
    run.run()
    return run


@pytest.mark.parametrize("preset", ["27b_1p1d", "660b_2p4d", "qwen32b_1p2d"])
@pytest.mark.parametrize("mode", SIMULATED_MODES)
def test_every_mode_conserves(preset, mode):
    work = short_workload()
    run = finished(preset, work, mode=mode)
    assert run.completion_s > 0
    assert outcome_of(run).requests == work.requests


@pytest.mark.parametrize("scheduling", [{"read_order": "layers"}, {"load_or_recompute": True, "read_plan": "split"}])
@pytest.mark.parametrize("mode", ["dualpath", "oracle"])
def test_policies_beyond_the_paper_conserve(mode, scheduling):
    keys = {f"scheduling.{key}": value for key, value in scheduling.items()}
    run = finished("660b_2p4d", short_workload(), mode=mode, **keys)
    assert outcome_of(run).requests == run.workload.requests


@pytest.mark.parametrize("read_plan", READ_PLANS)
def test_every_read_plan_conserves(read_plan):
    run = finished("660b_2p4d", short_workload(), **{"scheduling.read_plan": read_plan})
    read = run.traffic.bytes
    assert (read["storage_to_decode"] > 0) == (read_plan != "prefill-only")


@settings(max_examples=30, deadline=None)
@given(
    sessions=st.lists(st.lists(st.tuples(st.integers(1, 900), st.integers(1, 40)), min_size=1, max_size=4), min_size=1),
    mode=st.sampled_from(sorted(SIMULATED_MODES)),
    nodes=st.tuples(st.integers(1, 2), st.integers(1, 2), st.integers(1, 3)),
    changes=st.sampled_from([{}, TIMED]),
)
def test_any_sessions_on_any_cluster_conserve(sessions, mode, nodes, changes):
    prefill, decode, engines = nodes
    spec = small_spec(mode, prefill_nodes=prefill, decode_nodes=decode, engines_per_node=engines, **changes)
    Simulation(spec, workload(*sessions)).run()


def test_what_is_lost_is_noticed():
    run = finished("27b_1p1d", short_workload(5))
    run.traffic.bytes["insert"] -= 1
    with pytest.raises(ConservationError, match=r"bytes of insert is \d+, expected \d+; bytes out of CNICs is"):
        check_conservation(run)


PRINT_A_RUN = """
import sys
from tests.simulator import test_conservation
print(test_conservation.digest(getattr(test_conservation, sys.argv[1])()))
"""


def digest(run: Simulation) -> str:
    columns = [*run.log.times.values(), *run.log.counts.values()]
    return hashlib.sha256(b"".join(column.tobytes() for column in columns)).hexdigest()


def paper_run() -> Simulation:
    return finished("660b_2p4d", short_workload(), mode="dualpath")


def local_run() -> Simulation:
    """Groups that share cores, and turns that come before their prefix is stored."""
    spec = simulated_cluster(load_cluster("local_1p2d"), MEASURED.model_copy(update={"shared_cores": 1}))
    run = Simulation(spec, make_workload(load_trace("demo", vocab_size=1000)))
    run.run()
    return run


@pytest.mark.parametrize("made_by", ["paper_run", "local_run"])
def test_two_runs_are_identical_whatever_the_hash_seed(made_by):
    runs = [
        subprocess.run(
            [sys.executable, "-c", PRINT_A_RUN, made_by],
            env={"PYTHONHASHSEED": seed, "PYTHONPATH": ":".join(sys.path)},
            capture_output=True,
            text=True,
            check=True,
            timeout=60,
        ).stdout.strip()
        for seed in ("1", "2")
    ]
    assert runs == [digest(globals()[made_by]())] * 2


def test_a_record_says_what_the_log_says():
    run = finished("27b_1p1d", short_workload(5))
    record = run_record(run, "dualpath")
    assert max(request.end_s for request in record.requests) == run.completion_s
    assert [node.node_id for node in record.nodes] == ["prefill-000", "decode-000"]
    for node in record.nodes:
        assert sum(sample.read_bytes for sample in node.samples) == pytest.approx(
            node.snic_read_bytes, rel=1e-6, abs=200
        )
    assert sum(r.prompt_tokens - r.hit_tokens for r in record.requests) == sum(r.miss_tokens for r in record.requests)
    blocks = sum(r.prefill_side_blocks + r.decode_side_blocks for r in record.requests)
    assert blocks * 64 == sum(r.hit_tokens for r in record.requests)


def test_of_very_many_requests_some_sessions_have_rows_and_all_count():
    run = finished("27b_1p1d", short_workload())
    whole, part = run_record(run, "dualpath"), run_record(run, "dualpath", most_rows=run.workload.requests // 4)
    assert len(whole.requests) == run.workload.requests
    sessions = list(dict.fromkeys(request.session_id for request in part.requests))
    assert sessions == [str(session) for session in range(0, run.workload.sessions, 4)]
    of_sessions = [request for request in whole.requests if request.session_id in sessions]
    assert list(part.requests) == of_sessions
    assert summarise([part]) == summarise([whole])
    from_rows = summarise([replace(whole, every_request=None)])["dualpath"]
    assert from_rows == summarise([whole])["dualpath"]
