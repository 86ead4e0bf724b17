"""The simulator agrees with the real local cluster on completion times."""

import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.long

BENCHMARK = Path(__file__).resolve().parents[2] / "benchmarks" / "simulated_local.py"


def test_completion_times_of_the_replay_and_of_the_simulator_agree():
    ended = subprocess.run(
        [sys.executable, BENCHMARK, "--within=0.15"], capture_output=True, text=True, timeout=900, check=False
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr[-2000:]
    assert [line.split(":")[0] for line in ended.stdout.splitlines()[-2:]] == ["basic", "dualpath"]
