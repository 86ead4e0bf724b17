"""What dual-path loading and the lanes promise, measured on real links with rates; minutes each, as root.

Rates are so low that the cores are not the bottleneck; what else runs on the machine makes the faster run slower.
"""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from dualpath_jax.testbed.isolation_table import IsolationTable, Measured, isolation_table
from tests.launch.commands import run
from tests.testbed.needs import needs_root


@pytest.mark.long
@pytest.mark.timeout(1500)
@needs_root
@pytest.mark.parametrize(
    ("config", "sessions", "least"), [("testbed_1p1d", 6, 1.8), ("testbed_1p2d", 8, 2.4)], ids=["1P1D", "1P2D"]
)
def test_two_paths_are_faster_than_one(tmp_path, config, sessions, least):
    """The limits are 2 and 3: the number of storage cards that are read over."""
    flags = [f"--config={config}", "--trace=demo", f"--max_sessions={sessions}", "--compare", f"--min_speedup={least}"]
    kept = [f"--report={tmp_path / 'report'}", f"--compilation_cache={tmp_path / 'compiled'}", "--check_requests=4"]
    ended = run("dualpath-testbed", *flags, *kept, timeout_s=1400)
    assert ended.status == 0, ended.output + ended.errors[-1000:]
    summary = json.loads((tmp_path / "report" / "report.json").read_text())["modes"]
    assert {mode: one["failed"] for mode, one in summary.items()} == {"basic": 0, "dualpath": 0}


@pytest.mark.long
@pytest.mark.timeout(900)
@needs_root
@pytest.mark.parametrize("role", ["prefill", "decode"])
def test_kv_does_not_disturb_collectives(tmp_path, role):
    """Median and 99th percentile of an exchange beside saturating KV, over those without; KV takes what is left."""
    file = tmp_path / "isolation.json"
    flags = [f"--role={role}", "--seconds=10", "--rounds=2", f"--json_out={file}"]
    command = [sys.executable, "-m", "dualpath_jax.testbed.isolation", *flags]
    done = subprocess.run(command, capture_output=True, text=True, timeout=800, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    figures = json.loads(file.read_text())
    with_lanes, without = figures["lanes"], figures["lanes off"]
    assert with_lanes["median_over_alone"] <= 1.15, done.stdout
    assert with_lanes["p99_over_alone"] <= 1.5, done.stdout
    assert with_lanes["kv_share_of_rest"] >= 0.85, done.stdout
    assert without["median_over_alone"] >= 2.0, done.stdout


@pytest.mark.long
@pytest.mark.timeout(900)
@needs_root
def test_kv_does_not_disturb_decoding(tmp_path):
    """Time per token of a decode group of two processes in two namespaces, while KV saturates its cards, over that
    while KV saturates others': the cores have the same to do."""
    file = tmp_path / "tpot.json"
    flags = [
        "--config=testbed_1p1d",
        "--rounds=3",
        f"--json_out={file}",
        f"--compilation_cache={tmp_path / 'compiled'}",
    ]
    command = [sys.executable, "-m", "dualpath_jax.testbed.tpot", *flags]
    done = subprocess.run(command, capture_output=True, text=True, timeout=800, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    figures = json.loads(file.read_text())
    assert figures["lanes"]["median_over_elsewhere"] <= 1.15, done.stdout
    assert figures["lanes"]["p99_over_elsewhere"] <= 1.5, done.stdout
    assert figures["lanes off"]["median_over_elsewhere"] >= 2.0, done.stdout


@pytest.mark.long
@pytest.mark.timeout(300)
@needs_root
def test_a_partition_frees_everything_and_heals(tmp_path):
    """The cable of a decode node's compute card is out for longer than a transfer's deadline, and back."""
    root = Path(__file__).parents[2]
    done = subprocess.run(
        [sys.executable, "-m", "tests.testbed.partition"],
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
        cwd=root,
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["right"]
    assert found["sent_before_bytes"] > 0
    assert found["undone"] == 3  # all of them were in the middle of a transfer
    assert max(found["attempts"]["met"]) > 1
    assert found["attempts"]["before"] == [1]
    assert found["attempts"]["after"] == [1, 1, 1]  # the pair works, and all slots are there
    assert min(found["hit_tokens"]) > 500


def test_the_isolation_table_takes_all_rounds_together():
    table = isolation_table(
        {
            "alone": [Measured([0.001, 0.003], 1.0, 0, 100), Measured([0.002, 0.002], 1.0, 0, 100)],
            "lanes": [Measured([0.002, 0.002], 2.0, 1500, 200)],
            "lanes off": [Measured([0.008], 1.0, 900, 1000)],
        },
        1000.0,
    )
    assert isinstance(table, IsolationTable)
    assert table.ratios("lanes")[0] == pytest.approx(1.0)
    assert table.ratios("lanes off")[0] == pytest.approx(4.0)
    assert table.rows["lanes"].kv_share_of_rest == pytest.approx(1500 / 1800)
    assert table.rows["alone"].exchanges == 4
    assert table.lines()[0].split()[:2] == ["median", "ms"]
