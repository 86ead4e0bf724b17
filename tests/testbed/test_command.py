"""`dualpath-testbed` as a person runs it: namespaces, links with rates, an S3 server; on the fake engine; as root."""

import json
import os
import signal
import subprocess
import sys
import time

import pytest

from dualpath_jax.qos.commands import NetworkError
from dualpath_jax.testbed import namespaces
from dualpath_jax.testbed.namespaces import HOSTS, NETNS, RECORDS, Namespaces, remove_orphans
from tests.launch.commands import Started, all_gone, check_refused, descendants, ended_in_the_end, run
from tests.replay.samples import write_trace
from tests.testbed.needs import needs_root

pytestmark = needs_root

QUICK = (
    "--config=testbed_1p1d",
    "--set=engine.kind=fake",
    "--set=network.snic_bytes_per_s=20e6",
    "--set=max_context_tokens=1024",
    "--set=host_buffer_blocks=64",
    "--set=block_tokens=16",
    "--set=engine.prefill_token_buckets=[128]",
    "--set=engine.prefix_token_buckets=[1024]",
    "--check_requests=2",
)


def left_by(pid: int) -> list[str]:
    """What a testbed of the process `pid` has left on this machine."""
    return [str(path) for folder in (NETNS, HOSTS, RECORDS) for path in folder.glob(f"dpt{pid}*")]


def cells(output: str, label: str) -> list[float]:
    """The numbers of a row."""
    (row,) = [line for line in output.splitlines() if line.startswith(label)]
    return [float(text.replace(",", "")) for text in row[len(label) :].split()]


def test_a_replay_in_namespaces_agrees_and_the_kernel_counts_its_lanes(tmp_path):
    trace = write_trace(tmp_path / "trace.jsonl", sessions=3, turns=4, append=60, generate=9)
    report = f"--report={tmp_path / 'report'}"
    testbed = Started(tmp_path, "testbed", "dualpath-testbed", *QUICK, f"--trace={trace}", report)
    with ended_in_the_end(testbed):
        ended = testbed.end(60)
    assert ended.status == 0, ended.errors
    assert "dualpath agrees with the no-cache reference: 2 requests" in ended.output
    assert "dualpath: counted by the kernel  prefill-0" in ended.output
    written = cells(ended.output, "SNIC out (MB)")
    load = cells(ended.output, "CNIC out, load and store (MB)")
    other = cells(ended.output, "CNIC out, model (MB)")
    computed_mb = 3 * 4 * 60 * 4096 / 1e6
    assert written[1] > 0.8 * computed_mb > written[0]  # the decode node writes
    assert load[0] > 0.8 * computed_mb  # what the prefill node computes goes to the decode node
    assert sum(other) < 0.1 * sum(load)
    cards = json.loads((tmp_path / "report" / "cards.json").read_text())["dualpath"]
    assert cards["prefill-0"]["CNIC out, load and store"] == pytest.approx(1e6 * load[0], abs=1e5)
    assert left_by(testbed.process.pid) == []
    assert list(testbed.temporary.iterdir()) == []


@pytest.mark.long
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("wait_s", [0.0, 0.05, 0.1, 0.2, 0.4, 1.0, 2.0])
def test_a_signal_while_the_networks_are_made_leaves_nothing(tmp_path, number, wait_s):
    trace = write_trace(tmp_path / "trace.jsonl")
    testbed = Started(tmp_path, "testbed", "dualpath-testbed", *QUICK, f"--trace={trace}")
    with ended_in_the_end(testbed):
        while not left_by(testbed.process.pid):
            assert testbed.process.poll() is None
        time.sleep(wait_s)
        started = list(descendants(testbed.process.pid))
        testbed.process.send_signal(number)
        ended = testbed.end(30)
    assert (ended.status, "interrupted" in ended.errors) == (130, True), ended
    assert "Traceback" not in ended.errors
    assert all_gone(started, deadline_s=1.0)
    assert left_by(testbed.process.pid) == []
    assert list(testbed.temporary.iterdir()) == []


@pytest.mark.long
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("moment", [r"dualpath: +0%", r"starting the cluster", r" [1-9]\d*/36 \["])
def test_a_signal_at_any_time_leaves_nothing(tmp_path, number, moment):
    trace = write_trace(tmp_path / "trace.jsonl", sessions=6, turns=6, append=20, generate=60)
    slow = "--set=engine.fake_seconds_per_token=0.002"
    testbed = Started(tmp_path, "testbed", "dualpath-testbed", *QUICK, slow, f"--trace={trace}")
    with ended_in_the_end(testbed):
        testbed.until_says(moment)
        started = list(descendants(testbed.process.pid))
        testbed.process.send_signal(number)
        ended = testbed.end(30)
    assert (ended.status, "interrupted" in ended.errors) == (130, True), ended
    assert "Traceback" not in ended.errors
    assert all_gone(started, deadline_s=0.0)
    assert left_by(testbed.process.pid) == []
    assert list(testbed.temporary.iterdir()) == []


@pytest.mark.long
def test_nothing_runs_on_after_a_kill_and_the_next_start_removes_the_rest(tmp_path):
    trace = write_trace(tmp_path / "trace.jsonl", sessions=6, turns=6, append=20, generate=60)
    slow = "--set=engine.fake_seconds_per_token=0.002"
    testbed = Started(tmp_path, "testbed", "dualpath-testbed", *QUICK, slow, f"--trace={trace}")
    with ended_in_the_end(testbed):
        testbed.until_says(r" [1-9]\d*/36 \[")
        started = descendants(testbed.process.pid)
        testbed.process.kill()
        testbed.process.wait()
    assert {"scheduler", "prefill", "decode"} <= {
        line.partition("--role=")[2].split(" ")[0] for line in started.values()
    }
    assert any("server" in line for line in started.values())
    assert all_gone(started, deadline_s=15.0)
    remove_orphans()
    assert left_by(testbed.process.pid) == []
    assert list(testbed.temporary.iterdir()) == []


HOLDER = """
import subprocess, sys, time
from dualpath_configs import load_cluster
from dualpath_jax.testbed.network import NetworkTestbed
with NetworkTestbed(load_cluster("testbed_1p1d"), storage=False) as testbed:
    command = [*testbed.namespaces.command("prefill-0"), "sh", "-c", "hostname; sleep 300"]
    subprocess.run(command, check=False)
"""


def test_what_a_killed_one_left_is_removed_by_the_next_and_nothing_else_is(tmp_path):
    other = f"dpt{os.getpid()}other"
    subprocess.run(["ip", "netns", "add", other], check=True)
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLDER],
        stdout=subprocess.PIPE,
        start_new_session=True,
        env={**os.environ, "TMPDIR": str(tmp_path)},
    )
    try:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"prefill-0\n"
        sleepers = list(descendants(holder.pid))
        remove_orphans()
        assert len([path for path in left_by(holder.pid) if path.startswith(str(NETNS))]) == 5  # its maker lives
        assert len(list(tmp_path.iterdir())) == 1
        holder.kill()
        holder.wait()
        assert left_by(holder.pid) != []
        remove_orphans()
        assert left_by(holder.pid) == list(tmp_path.iterdir()) == []
        assert all_gone(sleepers, deadline_s=2.0)
        assert (NETNS / other).exists()
    finally:
        holder.kill()
        holder.communicate()
        subprocess.run(["ip", "netns", "delete", other], check=True)


def test_a_record_of_a_process_that_had_the_same_id_is_not_that_processs(tmp_path, monkeypatch):
    monkeypatch.setattr(namespaces, "RECORDS", tmp_path)
    mine, earlier = tmp_path / f"dpt{os.getpid()}", tmp_path / "dpt1"
    for record, started in ((mine, namespaces._started(os.getpid())), (earlier, "7")):
        record.write_text(json.dumps({"pid": os.getpid(), "started": started, "folder": str(tmp_path / "files")}))
    remove_orphans()
    assert (mine.exists(), earlier.exists()) == (True, False)


@pytest.mark.parametrize(
    ("flags", "text"),
    [
        (["--mode=oracle"], "--mode=oracle: the links of a testbed are real: expected one of basic, dualpath"),
        (["--set=network.cnic_bytes_per_s=0"], "network.cnic_bytes_per_s = 0: expected more than 0"),
        (["--set=storage.url=file:///tmp/kv"], "storage.url = 'file:///tmp/kv': expected none"),
    ],
)
def test_wrong_input_is_one_line(tmp_path, flags, text):
    trace = write_trace(tmp_path / "trace.jsonl")
    check_refused(run("dualpath-testbed", *QUICK, f"--trace={trace}", *flags), text)


def test_without_root_it_says_so(monkeypatch):
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with pytest.raises(NetworkError, match="network namespaces need root: run it as root"), Namespaces({"a": ""}):
        pass
