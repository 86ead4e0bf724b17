"""From what was played to what a report is made of."""

from dataclasses import replace

import pytest

from dualpath_configs import MODES, load_cluster
from dualpath_jax.cluster.peer_pb2 import SnicSample, StatsReply
from dualpath_jax.replay.play import PlayedTurn
from dualpath_jax.replay.records import run_record
from dualpath_scheduler.report import RunRecord, summarise
from tests.replay.samples import START, choice, generation

SPEC = load_cluster("local_1p1d", {"network.snic_bytes_per_s": 1e6})
STATS = {
    "prefill-0": StatsReply(
        snic_read_bytes=3000,
        snic_written_bytes=0,
        snic_read_busy_s=0.5,
        cnic_bytes=[10, 20],
        snic_samples=[SnicSample(time=START + 0.25, seconds=0.1, read_bytes=3000, written_bytes=0)],
    ),
    "decode-0": StatsReply(snic_read_bytes=1000, memory_read_bytes=500, snic_written_bytes=700, snic_read_busy_s=0.1),
}


def _record(*turns: PlayedTurn, mode: str = "dualpath", stats: dict[str, StatsReply] = STATS) -> RunRecord:
    spec = SPEC.model_copy(update={"mode": MODES[mode]})
    return run_record(mode, spec, turns, stats, started=START, finished=START + 9)


def test_a_request_has_its_stages_since_the_start_and_its_counts():
    played = PlayedTurn("s", 3, 100, START + 1.0, generation([choice()] * 4, recomputed_blocks=2, attempts=2))
    (request,) = _record(played).requests
    assert (request.request_id, request.session_id, request.turn, request.failed) == ("s/3", "s", 3, False)
    stages = (
        request.arrival_s,
        request.assigned_s,
        request.read_start_s,
        request.read_end_s,
        request.prefill_start_s,
        request.first_token_s,
        request.end_s,
    )
    assert stages == pytest.approx((1.0, 1.1, 1.2, 1.3, 1.4, 1.5, 1.6))
    assert (request.prompt_tokens, request.generated_tokens, request.hit_tokens, request.miss_tokens) == (
        100,
        4,
        64,
        36,
    )
    assert (request.prefill_side_blocks, request.decode_side_blocks, request.recomputed_blocks) == (3, 5, 2)
    seats = (request.prefill_node, request.prefill_engine, request.decode_node, request.decode_engine)
    assert seats == ("prefill-0", 1, "decode-0", 0)
    assert request.attempts == 2


def test_a_stage_that_was_never_reached_is_none():
    result = generation([choice()])
    result = replace(result, timings=replace(result.timings, read_start=0.0, read_end=0.0))
    (request,) = _record(PlayedTurn("s", 0, 100, START + 1, result)).requests
    assert (request.read_start_s, request.read_end_s) == (None, None)
    assert request.end_s is not None


def test_a_failed_request_has_its_error_and_no_result():
    (request,) = _record(PlayedTurn("s", 1, 77, START + 2, None, "node prefill-0 died")).requests
    assert (request.failed, request.error, request.prompt_tokens) == (True, "node prefill-0 died", 77)
    assert (request.arrival_s, request.end_s, request.generated_tokens) == (2.0, None, 0)


def test_requests_are_in_order_of_arrival():
    late, early = PlayedTurn("a", 0, 1, START + 5, None, "x"), PlayedTurn("b", 0, 1, START + 3, None, "x")
    assert [request.session_id for request in _record(late, early).requests] == ["b", "a"]


def test_nodes_have_their_roles_bytes_and_samples():
    decode, prefill = _record().nodes
    assert (prefill.node_id, prefill.role, prefill.snic_read_bytes, prefill.snic_busy_s) == (
        "prefill-0",
        "prefill",
        3000,
        0.5,
    )
    assert prefill.cnic_bytes == (10, 20)
    assert [(sample.time_s, sample.seconds, sample.read_bytes) for sample in prefill.samples] == [(0.25, 0.1, 3000)]
    assert (decode.role, decode.snic_written_bytes) == ("decode", 700)


@pytest.mark.parametrize(
    ("mode", "may_read", "limit"), [("basic", False, 1e6), ("dualpath", True, 1e6), ("oracle", True, None)]
)
def test_a_mode_decides_who_may_read_and_what_limits_it(mode, may_read, limit):
    decode, prefill = _record(mode=mode).nodes
    assert (decode.may_read, prefill.may_read) == (may_read, True)
    assert decode.snic_limit_bytes_per_s == prefill.snic_limit_bytes_per_s == limit


def test_a_summary_counts_what_was_played():
    turns = [
        PlayedTurn("s", 0, 100, START + 1, generation([choice()] * 4)),
        PlayedTurn("s", 1, 9, START + 2, None, "x"),
    ]
    summary = summarise([_record(*turns)])["dualpath"]
    assert (summary["requests"], summary["failed"], summary["hit_rate"]) == (2, 1, 0.64)
    assert (summary["bytes_read_prefill_side"], summary["bytes_read_decode_side"]) == (3000, 1000)
    assert summary["bytes_read_memory"] == 500
    assert summary["completion_s"] == pytest.approx(1.6)
    assert summary["tpot_p50_s"] == pytest.approx(0.1 / 3)
