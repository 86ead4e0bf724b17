"""Blocks in a node's memory: which are kept, and that a run reads them from there."""

import numpy as np
import pytest

from dualpath_scheduler.simulator.simulation import Simulation
from dualpath_scheduler.simulator.tier import Tier
from tests.simulator.small import HARDWARE, small_spec, workload

BLOCK_BYTES = 64_000
THREE_TURNS = workload([(640, 2), (64, 2), (64, 1)], pause_s=2.0)


def finished(mode: str, tier_blocks: int, work=THREE_TURNS, **changes: object) -> Simulation:
    hardware = HARDWARE.model_copy(update={"dram_tier_bytes": tier_blocks * BLOCK_BYTES})
    run = Simulation(small_spec(mode, hardware=hardware, **changes), work)
    run.run()
    return run


def test_a_front_and_a_back():
    tier = Tier(100, keeps_end=True)
    tier.use(7, 4, 10)
    assert (tier.front(7, 10), tier.back(7, 10)) == (0, 6)
    assert (tier.back(7, 8), tier.back(7, 11)) == (4, 0)
    tier.use(7, 0, 4)
    assert (tier.front(7, 8), tier.front(7, 12), tier.back(7, 10)) == (8, 10, 10)
    assert (tier.front(8, 5), tier.back(8, 5)) == (0, 0)


def test_blocks_that_no_read_can_use_go():
    tier = Tier(100, keeps_end=True)
    tier.use(7, 0, 10)
    tier.use(7, 12, 15)
    assert (tier.blocks, tier.front(7, 15), tier.back(7, 15)) == (3, 0, 3)


@pytest.mark.parametrize(("keeps_end", "front", "back"), [(False, 4, 0), (True, 0, 4)])
def test_the_session_used_least_lately_gives_way_first(keeps_end, front, back):
    tier = Tier(20, keeps_end=keeps_end)
    tier.use(1, 0, 10)
    tier.use(2, 0, 10)
    tier.use(1, 0, 10)
    tier.use(3, 0, 6)
    assert tier.blocks == 20
    assert (tier.front(2, 10), tier.back(2, 10)) == (front, back)
    assert (tier.front(1, 10), tier.front(3, 6)) == (10, 6)


def test_a_session_larger_than_the_tier_keeps_what_fits():
    tier = Tier(5, keeps_end=False)
    tier.use(1, 0, 9)
    assert (tier.blocks, tier.front(1, 9)) == (5, 5)


def test_what_a_node_read_it_does_not_read_again():
    # The second turn reads ten blocks, the third those and one more: without the dual path from the prefill node.
    tokens = {hop: count // 1000 for hop, count in finished("layerwise", 100).traffic.bytes.items()}
    assert tokens["storage_to_prefill"] == 640 + 64
    assert tokens["tier_to_prefill"] == 640
    assert tokens["tier_to_decode"] == tokens["storage_to_decode"] == 0


def test_what_the_decode_node_wrote_nobody_reads():
    run = finished("dualpath", 100)
    tokens = {hop: count // 1000 for hop, count in run.traffic.bytes.items()}
    assert tokens["storage_to_prefill"] == tokens["storage_to_decode"] == 0
    assert tokens["tier_to_decode"] == 640 + 704
    times = run.log.times
    assert (times["read_end_s"] - times["read_start_s"]).max() < 1e-5
    assert run.log.counts["decode_tier_tokens"].tolist() == [0, 640, 704]


def test_a_tier_that_holds_nothing_changes_nothing():
    without, with_one = finished("dualpath", 0), finished("dualpath", 1)
    assert without.traffic.bytes["tier_to_prefill"] == without.traffic.bytes["tier_to_decode"] == 0
    assert np.array_equal(without.log.counts["decode_tier_tokens"], [0, 0, 0])
    assert sum(with_one.traffic.bytes[f"storage_to_{side}"] for side in ("prefill", "decode")) > 0


@pytest.mark.parametrize("mode", ["basic", "layerwise+dual", "dualpath", "oracle"])
def test_small_tiers_conserve(mode):
    sessions = [[(100 + 50 * s, 20), (200, 70), (300, 10), (64, 64)] for s in range(8)]
    run = finished(mode, 30, workload(*sessions), prefill_nodes=2, decode_nodes=2, engines_per_node=2)
    read = run.traffic.bytes["tier_to_prefill"] + run.traffic.bytes["tier_to_decode"]
    assert (read > 0) == (mode != "oracle")
