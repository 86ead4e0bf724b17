"""From the spec of a real cluster to a simulated one."""

import pytest

from dualpath_configs import (
    MODES,
    MeasuredSpec,
    SpecError,
    load_cluster,
    load_simulated,
    preset_names,
    simulated_cluster,
)

MEASURED = MeasuredSpec(
    batch_widths=(64, 256),
    batch_s=(0.04, 0.1),
    pair_s=3e-7,
    step_s=0.010,
    step_request_s=1e-4,
    step_token_s=1e-6,
    tokens_per_s=28_000.0,
)


@pytest.mark.parametrize("name", preset_names())
@pytest.mark.parametrize("mode", MODES)
def test_every_preset_converts(name: str, mode: str) -> None:
    real = load_cluster(name, {"mode": mode})
    spec = simulated_cluster(real, MEASURED)
    assert (spec.prefill_nodes, spec.decode_nodes) == (real.prefill_nodes, real.decode_nodes)
    assert (spec.engines_per_node, spec.block_tokens) == (real.engines_per_node, real.block_tokens)
    assert spec.mode == MODES[mode]
    assert spec.hardware.snic_bytes_per_s == real.network.snic_bytes_per_s
    assert spec.hardware.cnic_bytes_per_s == real.network.cnic_bytes_per_s
    assert spec.hardware.burst_bytes == (real.network.burst_bytes if real.network.emulated else 0)
    assert spec.decode_tokens == real.engine.decode_pages * real.block_tokens
    assert spec.buffer_tokens == real.host_buffer_blocks * real.block_tokens
    assert spec.decode_slots == real.engine.decode_slots
    assert spec.batch_tokens == max(real.engine.prefill_token_buckets)
    assert spec.prefix_tokens == max(real.engine.prefix_token_buckets)
    assert spec.hardware.dram_tier_bytes == real.storage.dram_bytes
    assert spec.measured == MEASURED


def test_the_model_of_the_local_cluster() -> None:
    model = simulated_cluster(load_cluster("local_1p1d"), MEASURED).model
    assert model.kv_bytes_per_token == 8 * (96 + 32) * 4
    assert model.attention_flops_per_pair == 8 * 4 * 2 * (96 + 32 + 96)
    # In each of 8 layers: queries, compressed KV, keys and values out of it, output.
    attention = 8 * (256 * 4 * 64 + 256 * 128 + 96 * 4 * (32 + 32) + 4 * 32 * 256)
    assert model.projection_flops_per_token == 2 * attention
    # One dense layer; in seven a router, two experts of eight and a shared one.
    expert = 3 * 256 * 64
    assert model.ffn_flops_per_token == 2 * (3 * 256 * 512 + 7 * (256 * 8 + 3 * expert))
    # Half of the experts on each engine, and the vocabulary twice.
    held = attention + 3 * 256 * 512 + 7 * (256 * 8 + 5 * expert) + 2 * 2048 * 256
    assert model.decode_weights_bytes == 4 * held


def test_no_limit_stays_none() -> None:
    real = load_cluster("local_1p1d")
    free = real.network.model_copy(update={"snic_bytes_per_s": None, "cnic_bytes_per_s": None})
    spec = simulated_cluster(real.model_copy(update={"network": free}), MEASURED)
    assert min(spec.hardware.snic_bytes_per_s, spec.hardware.cnic_bytes_per_s) >= 1e12


def test_beta_is_what_was_timed() -> None:
    assert simulated_cluster(load_cluster("local_1p1d"), MEASURED).scheduling.beta_tokens == 5 * 28_000
    said = load_cluster("local_1p1d", {"scheduling.beta_tokens": 1000})
    assert simulated_cluster(said, MEASURED).scheduling.beta_tokens == 1000


def test_a_turn_s_own_time_arrives() -> None:
    assert simulated_cluster(load_cluster("local_1p1d"), MEASURED, turn_s=0.03).calibration.turn_s == 0.03


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"batch_widths": (256, 64)}, r"batch_widths = \(256, 64\): expected increasing values"),
        ({"batch_s": (0.1,)}, r"batch_s = \(0.1,\): expected 2 values, one of each width"),
    ],
)
def test_what_is_wrong_with_times_is_said(changed: dict[str, object], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        MeasuredSpec.model_validate({**MEASURED.model_dump(), **changed})


def test_a_batch_wider_than_any_that_was_timed_is_refused() -> None:
    with pytest.raises(SpecError, match="batch_tokens = 16384: expected at most 256"):
        load_simulated(
            "27b_1p1d", {f"measured.{key}": value for key, value in MEASURED.model_dump(exclude_none=True).items()}
        )
