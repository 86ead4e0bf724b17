"""The shipped presets load, and are what the demo counts on."""

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from dualpath_configs import MODES, ClusterSpec, load_cluster, preset_names

ROOT = Path(__file__).parents[2]


def test_names() -> None:
    assert preset_names() == ["local_1p1d", "local_1p2d", "local_2p1d", "testbed_1p1d", "testbed_1p2d"]


@pytest.mark.parametrize(
    ("name", "prefill", "decode"), [("local_1p1d", 1, 1), ("local_1p2d", 1, 2), ("local_2p1d", 2, 1)]
)
def test_shapes(name: str, prefill: int, decode: int) -> None:
    spec = load_cluster(name)
    assert (spec.prefill_nodes, spec.decode_nodes, spec.engines_per_node) == (prefill, decode, 2)
    model = spec.model
    kv_bytes = 4 * model.num_hidden_layers * (model.kv_lora_rank + model.qk_rope_head_dim)
    assert (model.kv_dtype, kv_bytes) == ("float32", 4096)
    assert spec.network.snic_bytes_per_s == (6e6 if prefill == 2 else 10e6)
    assert spec.mode == MODES["dualpath"]


@pytest.mark.parametrize("kind", ["local", "testbed"])
def test_presets_differ_in_nodes_only(kind: str) -> None:
    one, two = load_cluster(f"{kind}_1p1d"), load_cluster(f"{kind}_1p2d")
    assert one.model_copy(update={"decode_nodes": 2}) == two


def test_testbeds_have_the_same_nodes_with_slower_cards() -> None:
    for testbed, local in (("testbed_1p1d", "local_1p1d"), ("testbed_1p2d", "local_1p2d")):
        slow, fast = load_cluster(testbed), load_cluster(local)
        assert slow.model_copy(update={"network": fast.network}) == fast
        assert slow.network.snic_bytes_per_s < fast.network.snic_bytes_per_s


def test_a_spec_survives_json() -> None:
    spec = load_cluster("local_2p1d", {"mode": "basic"})
    assert ClusterSpec.model_validate_json(spec.model_dump_json()) == spec


def test_presets_are_in_the_wheel(tmp_path: Path) -> None:
    subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path)],
        cwd=ROOT,
        check=True,
        capture_output=True,
        timeout=120,
    )
    (wheel,) = tmp_path.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
    assert {f"dualpath_configs/presets/{name}.toml" for name in preset_names()} <= names
    assert "dualpath_scheduler/workload/traces/demo.jsonl" in names
