"""The policies beyond the paper in the simulator: one and two turns, worked out in the comments."""

import pytest

from dualpath_configs import SchedulingSpec
from dualpath_scheduler.simulator.simulation import Simulation
from tests.simulator.small import HARDWARE, small_spec, workload

TWO_TURNS = workload([(128, 11), (64, 1)])
"""The second turn has 128 tokens stored and 75 to compute, in 150 ms; a card reads 1,000 tokens a second."""


def finished(work=TWO_TURNS, *, mode: str = "dualpath", snic: float = 1e6, **scheduling: object) -> Simulation:
    hardware = HARDWARE.model_copy(update={"snic_bytes_per_s": snic})
    spec = small_spec(mode, hardware=hardware, scheduling=SchedulingSpec(**{"layers_per_group": 1, **scheduling}))
    run = Simulation(spec, work)
    run.run()
    return run


def second_ttft_s(run: Simulation) -> float:
    return float(run.log.times["first_token_s"][1] - run.log.times["arrival_s"][1])


def test_in_blocks_on_one_side():
    # 128 ms of reads, 150 ms of computing while the KV is loaded, of which the first of two layers is waited for.
    assert second_ttft_s(finished()) == pytest.approx(0.128 + 0.150 + 0.0064)


def test_a_split_reads_in_half_the_time():
    run = finished(read_plan="split")
    assert run.log.counts["prefill_side_tokens"].tolist() == [0, 64]
    assert run.traffic.bytes["storage_to_decode"] == 64_000
    # Both halves come to the prefill engine through its one card, so loading takes as long as before.
    assert second_ttft_s(run) == pytest.approx(0.064 + 0.150 + 0.0064)


def test_in_layers_reading_overlaps_with_computing():
    # The first of two parts is there after 64 ms; then 150 ms of computing, in which the second comes.
    run = finished(read_order="layers")
    assert second_ttft_s(run) == pytest.approx(0.064 + 0.150 + 0.0064)
    times = {name: values[1] - run.log.times["arrival_s"][1] for name, values in run.log.times.items()}
    assert (times["prefill_start_s"], times["read_end_s"]) == pytest.approx((0.064, 0.128))


def test_what_takes_long_to_read_joins_late():
    # 512 ms of reads: the request joins when the second half of its computing is left, and ends as much after them.
    run = finished(read_order="layers", snic=0.25e6)
    start = run.log.times["prefill_start_s"][1] - run.log.times["arrival_s"][1]
    assert start == pytest.approx(0.512 - 0.075)
    assert second_ttft_s(run) == pytest.approx(0.512 + 0.075 + 0.0064)


def test_both_together():
    run = finished(read_order="layers", read_plan="split")
    assert second_ttft_s(run) == pytest.approx(0.032 + 0.150 + 0.0064)


def test_without_layerwise_prefill_the_order_changes_nothing():
    blocks, layers = (finished(mode="basic", read_order=order) for order in ("blocks", "layers"))
    assert second_ttft_s(blocks) == second_ttft_s(layers)


@pytest.mark.parametrize(("snic", "loaded"), [(0.51e6, 128), (0.49e6, 0)])
def test_a_hit_is_loaded_where_that_is_faster(snic, loaded):
    # Computing takes 2 ms a token, as long as reading at 0.5 MB/s.
    run = finished(load_or_recompute=True, snic=snic)
    assert run.log.counts["hit_tokens"].tolist() == [0, loaded]
    reading_s = loaded * 1000 / snic
    computing_s = (203 - loaded) * 0.002
    assert second_ttft_s(run) == pytest.approx(reading_s + computing_s + 0.0064 * (loaded > 0))
