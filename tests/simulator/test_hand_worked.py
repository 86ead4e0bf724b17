"""One and two requests, whose times are worked out in the comments."""

import numpy as np
import pytest

from dualpath_configs import SchedulingSpec
from dualpath_scheduler.simulator.simulation import Simulation
from dualpath_scheduler.workload import TraceError
from tests.simulator.small import CALIBRATION, HARDWARE, MODEL, small_spec, workload

NO_OVERLOAD = SchedulingSpec(beta_tokens=1_000_000)
PAUSE_S = 2.0
TWO_TURNS = workload([(128, 11), (64, 1)], pause_s=PAUSE_S)


def finished(spec, work) -> Simulation:
    run = Simulation(spec, work)
    run.run()
    return run


def times(run: Simulation, name: str) -> list[float]:
    return run.log.times[name].tolist()


def test_one_session_layerwise():
    # Turn 1: 128 tokens at 2 ms; inserted at 10,000 tokens/s; ten steps, each the weights in 10 ms and the KV of
    # 128 + 11 / 2 tokens at 10 us.
    first = 0.256
    end = first + 0.0128 + 10 * (0.010 + 133.5 * 1e-5)
    # Turn 2: of 139 tokens two blocks are stored and read at 1,000 tokens/s; 75 are computed while the 128 are loaded
    # (12.8 ms, of which the first of two layers is waited for); 203 are inserted; nothing is left to decode.
    began = end + PAUSE_S
    second = began + 0.128 + 0.150 + 0.0064
    run = finished(small_spec(), TWO_TURNS)
    assert times(run, "first_token_s") == pytest.approx([first, second])
    assert times(run, "read_end_s") == pytest.approx([0.0, began + 0.128])
    assert times(run, "end_s") == pytest.approx([end, second + 0.0203])


def test_one_session_basic():
    # As above, but 128 tokens are loaded before the 75 are computed, and 203 are sent after that.
    end = 0.256 + 0.0128 + 0.0128 + 10 * (0.010 + 133.5 * 1e-5)
    second = end + PAUSE_S + 0.128 + 0.0128 + 0.150
    run = finished(small_spec("basic"), TWO_TURNS)
    assert times(run, "first_token_s") == pytest.approx([0.256, second])
    assert times(run, "end_s") == pytest.approx([end, second + 0.0203 + 0.0203])


def test_one_session_basic_with_copies():
    # Two Layer Blocks in each of two layers, 50 ms a call: longer than their bytes take.
    calibration = CALIBRATION.model_copy(update={"block_copy_s": 0.05})
    run = finished(small_spec("basic", calibration=calibration), TWO_TURNS)
    assert times(run, "first_token_s")[1] == pytest.approx(times(run, "read_end_s")[1] + 4 * 0.05 + 0.150)


def test_one_session_oracle():
    # No read, no load, no transfer: what is left is 128 and 75 tokens of prefill, and ten steps.
    end = 0.256 + 10 * (0.010 + 133.5 * 1e-5)
    run = finished(small_spec("oracle"), TWO_TURNS)
    assert times(run, "end_s") == pytest.approx([end, end + PAUSE_S + 0.150])
    assert set(run.traffic.bytes.values()) == {0}


def test_the_hops_of_one_session():
    run = finished(small_spec(), TWO_TURNS)
    tokens = {hop: count // 1000 for hop, count in run.traffic.bytes.items()}
    assert tokens == {
        "storage_to_prefill": 128,
        "storage_to_decode": 0,
        "tier_to_prefill": 0,
        "tier_to_decode": 0,
        "prefill_load": 128,
        "decode_load": 0,
        "prefill_to_decode": 128 + 203,  # misses of both turns, and the hit that the decode node has not read
        "insert": 128 + 203,
        "export": 12,
        "persist": 128 + 64,  # blocks that each turn completed
    }


FAST = HARDWARE.model_copy(update={"flops_per_s": 1e12, "hbm_bytes_per_s": 1e12})
TWO_SESSIONS = workload([(640, 2), (64, 1)], [(640, 2), (64, 1)], pause_s=PAUSE_S)


def test_two_reads_take_both_cards():
    # Computing takes no time, so both read their 640 tokens at once: the second finds the prefill side's queue longer.
    run = finished(small_spec(hardware=FAST), TWO_SESSIONS)
    assert run.log.counts["prefill_side_tokens"].tolist() == [0, 640, 0, 0]
    began, ended = times(run, "assigned_s"), times(run, "read_end_s")
    assert [ended[1] - began[1], ended[3] - began[3]] == pytest.approx([0.64, 0.64])


def test_two_reads_share_one_card_without_the_dual_path():
    run = finished(small_spec("layerwise", hardware=FAST), TWO_SESSIONS)
    assert run.log.counts["prefill_side_tokens"].tolist() == [0, 640, 0, 640]
    first, second = times(run, "read_end_s")[1::2]
    assert second - first == pytest.approx(0.64)


def test_a_read_alone_has_a_rate_of_its_own():
    calibration = CALIBRATION.model_copy(update={"read_bytes_per_s": 1e5})
    run = finished(small_spec(calibration=calibration), TWO_TURNS)
    assert times(run, "read_end_s")[1] - times(run, "read_start_s")[1] == pytest.approx(1.28)


def test_engines_of_a_group_wait_for_each_other():
    # Attention of 192 tokens at 1 ms, and the experts of 192 tokens on two engines; then the same of 64 tokens, on the
    # other engine, which has waited.
    run = finished(small_spec(engines_per_node=2), workload([(192, 1)], [(64, 1)]))
    batches = run.prefill[0].prefill_units[0]
    assert list(batches.slowest_attention_s) == pytest.approx([0.192, 0.064])
    assert run.log.counts["prefill_engine"].tolist() == [0, 1]
    assert times(run, "first_token_s") == pytest.approx([0.288, 0.288 + 0.096])


def test_engines_without_shared_experts_do_not():
    model = MODEL.model_copy(update={"experts_are_shared": False})
    run = finished(small_spec(engines_per_node=2, model=model), workload([(192, 1)], [(64, 1)]))
    assert times(run, "first_token_s") == pytest.approx([0.384, 0.128])


def test_decode_steps_are_as_long_as_the_slowest_engine_needs():
    # The second joins 128 ms after the first, on the other engine: the first makes 11 of its 30 steps before.
    run = finished(small_spec(engines_per_node=2), workload([(64, 31)], [(64, 2)], arrivals_s=(0.0, 0.0)))
    step = 0.010 + (64 + 15.5) * 1e-5
    joined = 0.064 + 0.032 + 0.0064
    assert times(run, "end_s")[0] == pytest.approx(joined + 30 * step)


def test_a_request_waits_for_room_in_device_memory():
    # 9 MB of HBM beside the weights hold 8,960 tokens in whole blocks: two prompts of 5,000 do not fit at once.
    run = finished(small_spec(scheduling=NO_OVERLOAD), workload([(5000, 2)], [(5000, 2)]))
    first, second = times(run, "assigned_s")
    assert (first, second) == (0.0, times(run, "end_s")[0])


def test_a_turn_that_fits_nowhere_is_refused():
    with pytest.raises(TraceError, match="a turn has 9001 tokens of prompt and generation: expected at most 8960"):
        Simulation(small_spec(), workload([(9000, 1)]))


def test_a_request_waits_for_its_buffer():
    hardware = HARDWARE.model_copy(update={"buffer_bytes": 6_000_000})
    run = finished(small_spec(hardware=hardware, scheduling=NO_OVERLOAD), workload([(4000, 2)], [(4000, 2)]))
    assert times(run, "assigned_s") == [0.0, 0.0]
    first, second = times(run, "read_start_s")
    inserted = times(run, "first_token_s")[0] + 0.4
    assert (first, second) == (0.0, pytest.approx(inserted))


def test_the_next_turn_comes_after_the_tool():
    work = workload([(64, 2), (64, 2)])
    work.delay_s[1] = 5.0
    calibration = CALIBRATION.model_copy(update={"turn_s": 0.25})
    run = finished(small_spec(calibration=calibration), work)
    assert times(run, "arrival_s")[1] == pytest.approx(times(run, "end_s")[0] + 5.25)
    assert np.isfinite(run.completion_s)


def test_a_turn_that_comes_at_once_computes_what_is_not_stored_yet():
    # Of 512 tokens, written at 1,000 a second from their arrival at the decode node on, five whole blocks are stored
    # when the first turn ends: insertion takes 51.2 ms, and 20 steps 10 + 5.2 ms each, 356 ms in all.
    run = finished(small_spec(), workload([(512, 21), (64, 1)]))
    assert run.log.counts["hit_tokens"].tolist() == [0, 320]
    assert run.traffic.bytes["persist"] // 1000 == 512 + (9 * 64 - 320)


def test_the_ideal_network_stores_at_once():
    run = finished(small_spec("oracle"), workload([(512, 21), (64, 1)]))
    assert run.log.counts["hit_tokens"].tolist() == [0, 512]


def test_a_request_waits_for_a_slot():
    # The second is prefilled after 0.256 s, and decodes when the first has made its thirty steps, after 0.45 s.
    run = finished(small_spec(decode_slots=1), workload([(64, 31)], [(64, 11)]))
    first, second = times(run, "end_s")
    assert second - first == pytest.approx(10 * (0.010 + (64 + 5.5) * 1e-5))


def test_a_rested_card_lets_a_burst_through():
    hardware = HARDWARE.model_copy(update={"burst_bytes": 28_000})
    run = finished(small_spec(hardware=hardware), TWO_TURNS)
    assert times(run, "read_end_s")[1] - times(run, "read_start_s")[1] == pytest.approx(0.100)
