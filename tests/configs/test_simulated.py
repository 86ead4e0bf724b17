"""Presets of simulated clusters."""

import pytest

from dualpath_configs import SIMULATED_MODES, SpecError, load_simulated, simulated_names


def test_names() -> None:
    assert simulated_names() == ["27b_1p1d", "660b_2p4d", "660b_48p96d", "qwen32b_1p2d"]


@pytest.mark.parametrize(
    ("name", "prefill", "decode", "kv_bytes"),
    [
        ("27b_1p1d", 1, 1, 30 * (2 * 576 + 68)),
        ("660b_2p4d", 2, 4, 61 * (2 * 576 + 132)),
        ("660b_48p96d", 48, 96, 61 * (2 * 576 + 132)),
        ("qwen32b_1p2d", 1, 2, 64 * 2 * 8 * 128 * 2),
    ],
)
def test_shapes(name: str, prefill: int, decode: int, kv_bytes: int) -> None:
    spec = load_simulated(name)
    assert (spec.prefill_nodes, spec.decode_nodes, spec.engines_per_node) == (prefill, decode, 8)
    assert spec.model.kv_bytes_per_token == kv_bytes
    assert spec.decode_tokens >= 65_536
    assert spec.mode == SIMULATED_MODES["dualpath"]


def test_the_largest_is_the_smaller_24_times() -> None:
    small = load_simulated("660b_2p4d", {"prefill_nodes": 48, "decode_nodes": 96})
    assert load_simulated("660b_48p96d") == small


def test_the_ablation_adds_one_thing_at_a_time() -> None:
    switches = [mode.model_dump() for name, mode in SIMULATED_MODES.items() if name != "oracle"]
    assert [sum(mode.values()) for mode in switches] == [0, 1, 2, 3]


@pytest.mark.parametrize(
    ("overrides", "said"),
    [
        ({"mode": "fast"}, "mode = 'fast': expected one of basic, layerwise, layerwise+dual, dualpath, oracle"),
        ({"hardware.hbm_bytes": 9_000_000_000}, "hardware.hbm_bytes = 9000000000: expected room for"),
        ({"hardware.memory_bytes_per_s": 5e9}, "expected more than hardware.snic_bytes_per_s"),
        ({"model.indexer_bytes_per_token": 40_000}, "expected less than kv_bytes_per_token"),
        ({"hardware.snic_bytes_per_second": 1}, "no such key; the closest valid key is hardware.snic_bytes_per_s"),
    ],
)
def test_what_is_wrong_is_said(overrides: dict[str, object], said: str) -> None:
    with pytest.raises(SpecError, match=said.replace("+", r"\+")):
        load_simulated("27b_1p1d", overrides)
