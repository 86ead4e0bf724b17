"""The probe of a group's collectives, on this machine without any network of its own."""

import json
import os
import subprocess
import sys

import pytest

from tests.servers import free_port

pytestmark = pytest.mark.long


def start(port: int, process: int, *flags: str) -> "subprocess.Popen[str]":
    place = [f"--coordinator_address=127.0.0.1:{port}", "--num_processes=2", f"--process_id={process}"]
    environment = {name: value for name, value in os.environ.items() if name != "XLA_FLAGS"}
    return subprocess.Popen(
        [sys.executable, "-m", "dualpath_jax.testbed.collective_probe", *place, *flags],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment,
    )


@pytest.mark.parametrize("collective", ["all_to_all", "experts"])
def test_the_times_of_an_exchange(tmp_path, collective):
    port, out = free_port(), tmp_path / "times.json"
    flags = [f"--collective={collective}", "--bytes=16384", "--seconds=1", f"--json_out={out}"]
    processes = [start(port, process, *flags) for process in (0, 1)]
    said = [process.communicate(timeout=120) for process in processes]
    assert [process.returncode for process in processes] == [0, 0], said
    figures = json.loads(out.read_text())
    assert figures["bytes"] == 16384
    assert figures["exchanges"] == len(figures["times_s"]) >= 20
    assert 0 < figures["median_ms"] <= figures["p99_ms"]
    printed = [output.splitlines()[-1].startswith("median_ms=") for output, _ in said]  # after a line of Gloo's
    assert printed == [True, False]


def test_a_frozen_or_a_dead_process_ends_the_other():
    port = free_port()
    processes = [start(port, process, "--seconds=600", "--deadline_s=5") for process in (0, 1)]
    try:
        processes[0].stderr.readline()
        with pytest.raises(subprocess.TimeoutExpired):
            processes[0].wait(15)
        processes[1].kill()
        assert processes[0].wait(20) == 4
        assert "an exchange" in processes[0].stderr.read()
    finally:
        for process in processes:
            process.kill()
            process.communicate()
