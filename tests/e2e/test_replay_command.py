"""`dualpath-replay` as a person runs it, on the fake engine: reports, wrong input, killed nodes, Ctrl-C."""

import csv
import json
import os
import signal
from pathlib import Path

import pytest

from tests.e2e.small_disk import run_on_small_disk
from tests.launch.commands import Ended, Started, all_gone, check_refused, descendants, ended_in_the_end, run
from tests.replay.samples import write_trace

QUICK = (
    "--set=engine.kind=fake",
    "--set=network.snic_bytes_per_s=400e6",
    "--set=max_context_tokens=1024",
    "--set=host_buffer_blocks=64",
    "--set=block_tokens=16",
    "--set=engine.prefill_token_buckets=[128]",
    "--set=engine.prefix_token_buckets=[1024]",
    "--set=scheduling.lease_s=1.0",
)
KEYS = {
    "completion_s",
    "prompt_tokens_per_s",
    "generated_tokens_per_s",
    "ttft_p50_s",
    "ttft_p99_s",
    "tpot_p50_s",
    "hit_rate",
    "bytes_read_prefill_side",
    "bytes_read_decode_side",
    "snic_busy_share",
    "snic_bytes_max_over_mean",
    "requests",
    "failed",
    "recomputed_blocks",
}
MODES = ("basic", "dualpath", "oracle")
STAGES = ("arrival", "assigned", "prefill_start", "first_token", "end")
SESSIONS, TURNS = 4, 5


@pytest.fixture(scope="module")
def compared(tmp_path_factory) -> tuple[Ended, Path]:
    """What `--compare` said, and its report."""
    folder = tmp_path_factory.mktemp("replay")
    trace = write_trace(folder / "trace.jsonl", sessions=SESSIONS, turns=TURNS, append=40, generate=9)
    report, store = folder / "deep" / "report", f"--set=storage.url=file://{folder / 'kv'}"
    ended = run("dualpath-replay", *QUICK, f"--trace={trace}", "--compare", f"--report={report}", store)
    return ended, report


def test_a_comparison_succeeds_and_says_that_all_agree(compared):
    ended, report = compared
    assert ended.status == 0, ended.errors
    for mode in ("dualpath", "oracle"):
        assert f"{mode} agrees with basic: {SESSIONS * TURNS} requests, " in ended.output
    for mode in MODES:
        assert f"{mode} agrees with the no-cache reference: 8 requests, " in ended.output
    assert f"Report: {report}" in ended.output


def test_the_table_is_on_standard_output_and_progress_on_standard_error(compared):
    ended, _ = compared
    for row in ("Job completion time (s)", "Speed-up over basic (x)", "TTFT p99 (s)", "SNIC busy, decode-0 (%)"):
        assert row in ended.output
        assert row not in ended.errors
    for text in (
        f"{SESSIONS} sessions, {SESSIONS * TURNS} turns",
        "basic: 100%",
        f"{SESSIONS * TURNS}/{SESSIONS * TURNS}",
    ):
        assert text in ended.errors
        assert text not in ended.output
    assert "Traceback" not in ended.errors


def test_the_report_has_everything_in_it(compared):
    _, report = compared
    data = json.loads((report / "report.json").read_text())
    assert set(data) == {"config", "trace", "modes"}
    assert data["config"]["network"]["snic_bytes_per_s"] == 400e6
    assert (data["trace"]["sessions"], data["trace"]["turns"]) == (SESSIONS, SESSIONS * TURNS)
    assert list(data["modes"]) == list(MODES)
    for summary in data["modes"].values():
        assert set(summary) >= KEYS
        assert (summary["requests"], summary["failed"], summary["recomputed_blocks"]) == (SESSIONS * TURNS, 0, 0)
        assert set(summary["snic_busy_share"]) == {"prefill-0", "decode-0"}
        assert 0.0 < summary["hit_rate"] < 0.95  # a turn may come before the blocks of the one before are stored
    assert data["modes"]["basic"]["bytes_read_decode_side"] == 0 < data["modes"]["basic"]["bytes_read_prefill_side"]
    assert data["modes"]["basic"]["speedup_over_basic"] == 1.0
    for plot in ("completion.png", "snic_throughput.png"):
        assert (report / plot).read_bytes().startswith(b"\x89PNG")


def test_a_row_a_request_and_what_was_read_is_what_was_hit(compared):
    _, report = compared
    with (report / "requests.csv").open() as file:
        rows = list(csv.DictReader(file))
    data = json.loads((report / "report.json").read_text())
    assert len(rows) == len(MODES) * SESSIONS * TURNS
    block_bytes = 16 * (96 + 32) * 4 * 8
    for mode in MODES:
        mine = [row for row in rows if row["mode"] == mode]
        assert {(row["session_id"], row["turn"]) for row in mine} == {
            (f"s{s}", str(t)) for s in range(SESSIONS) for t in range(TURNS)
        }
        for row in mine:
            prompt, hit = int(row["prompt_tokens"]), int(row["hit_tokens"])
            assert int(row["miss_tokens"]) == prompt - hit
            assert hit == 16 * (int(row["prefill_side_blocks"]) + int(row["decode_side_blocks"]))
            stages = [
                float(row[name]) for name in ("arrival_s", "assigned_s", "prefill_start_s", "first_token_s", "end_s")
            ]
            assert stages == sorted(stages)
            assert row["error"] == ""
        read = data["modes"][mode]["bytes_read_prefill_side"] + data["modes"][mode]["bytes_read_decode_side"]
        assert read == sum(int(row["hit_tokens"]) for row in mine) // 16 * block_bytes
        assert data["modes"][mode]["completion_s"] == pytest.approx(max(float(row["end_s"]) for row in mine), abs=1e-5)


def test_runs_that_are_compared_have_stores_of_their_own_which_are_kept(compared):
    _, report = compared
    folder = report.parents[1]
    assert sorted(mode.name for mode in (folder / "kv").iterdir()) == sorted(MODES)
    store = f"--set=storage.url=file://{folder / 'kv' / 'basic'}"
    again = run("dualpath-replay", *QUICK, f"--trace={folder / 'trace.jsonl'}", "--max_sessions=2", store)
    assert again.status == 0, again.errors
    rate = next(line for line in again.output.splitlines() if line.startswith("Hit rate"))
    assert float(rate.split()[-1]) > 80  # what the earlier cluster stored is found again, first turns included


def test_damaged_blocks_are_recomputed_and_counted_and_change_nothing(tmp_path):
    trace = write_trace(tmp_path / "trace.jsonl", sessions=SESSIONS, turns=TURNS, append=40, generate=9)
    store = f"--set=storage.url=faulty+file://{tmp_path / 'kv'}?flip=0.2&truncate=0.2&seed=5"
    ended = run("dualpath-replay", *QUICK, f"--trace={trace}", store, f"--report={tmp_path / 'report'}")
    assert ended.status == 0, ended.errors
    summary = json.loads((tmp_path / "report" / "report.json").read_text())["modes"]["dualpath"]
    assert summary["recomputed_blocks"] > 0
    assert summary["failed"] == 0
    assert "dualpath agrees with the no-cache reference" in ended.output


def test_a_small_disk_costs_hits_and_nothing_else(tmp_path):
    trace = write_trace(tmp_path / "trace.jsonl", sessions=6, turns=6, append=300, generate=9)
    disk, report = tmp_path / "disk", tmp_path / "report"
    disk.mkdir()
    flags = [*QUICK, "--set=max_context_tokens=4096", "--set=host_buffer_blocks=512", "--set=engine.decode_pages=512"]
    flags += ["--set=engine.prefix_token_buckets=[4096]", f"--trace={trace}", f"--report={report}"]
    store = f"--set=storage.url=file://{disk / 'kv'}"
    ended = run_on_small_disk(disk, "20m", "dualpath-replay", *flags, store, timeout_s=100)
    assert ended.status == 0, ended.errors
    assert "dualpath agrees with the no-cache reference" in ended.output
    (row,) = [line for line in ended.output.splitlines() if line.startswith("Blocks not stored")]
    summary = json.loads((report / "report.json").read_text())["modes"]["dualpath"]
    assert int(row.split()[-1]) == summary["dropped_blocks"] > 0
    assert (summary["failed"], summary["recomputed_blocks"]) == (0, 0)
    assert summary["hit_rate"] > 0


def _bad_trace(folder: Path) -> Path:
    file = folder / "bad.jsonl"
    file.write_text('{"input_length": 10, "output_length": 2, "hash_ids": [1]}\n{"input_length": 10}\n')
    return file


@pytest.mark.parametrize(
    ("flags", "texts"),
    [
        (["--trace={bad}"], ["{bad}:2: output_length is missing: expected an integer of at least 1"]),
        (["--trace={folder}/none"], ["none: no such file: expected a trace file, or one of paper-32k"]),
        (["--trace={folder}"], ["{folder}", "cannot be read"]),
        (["--trace={good}", "--report={good}"], ["--report={good}: expected a folder, or room for one: File exists"]),
        (["--trace={good}", "--report={good}/x"], ["--report={good}/x: expected a folder", "Not a directory"]),
        (["--mode=fast"], ["--mode=fast", "basic|dualpath|oracle"]),
        (["--scale=0"], ["--scale=0"]),
        (["--max_turns=many"], ["--max_turns=many"]),
        (["--config=local"], ["no such preset: 'local'"]),
        (["--set=network.snic_bytes=1"], ["network.snic_bytes = 1: expected no such key", "network.snic_bytes_per_s"]),
        (["--set=mode=basic"], ["--set=mode=basic: the replay chooses the mode itself"]),
        (["--set=storage.url=memory://x"], ["storage.url = 'memory://x': processes share no memory"]),
        (["--set=storage.url=tensorstore+memory://x"], ["processes share no memory"]),
        (["--set=checkpoint={folder}"], ["checkpoint = ", "config.json cannot be read"]),
        (["--set=engine.kind=flax", "--platform=abacus"], ["--platform=abacus: platform 'abacus' cannot be used"]),
        (["--trace={good}", "--set=max_context_tokens=16"], ["no session's first turn fits max_context_tokens (16)"]),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) and value[0].startswith("--") else "",
)
def test_wrong_input_is_one_line_and_starts_nothing(tmp_path, flags, texts):
    names = {"folder": tmp_path, "bad": _bad_trace(tmp_path), "good": write_trace(tmp_path / "good.jsonl")}
    ended = run("dualpath-replay", *QUICK, *(flag.format(**names) for flag in flags))
    check_refused(ended, "dualpath-replay: ", *(text.format(**names) for text in texts))


def _long_replay(folder: Path, *flags: str) -> Started:
    """A replay that takes several seconds after its start."""
    trace = write_trace(folder / "trace.jsonl", sessions=6, turns=6, append=20, generate=60)
    slow = "--set=engine.fake_seconds_per_token=0.002"
    report = f"--report={folder / 'report'}"
    return Started(folder, "replay", "dualpath-replay", *QUICK, slow, f"--trace={trace}", report, *flags)


def _kill(replay: Started, node: str) -> None:
    replay.until_says(r" [1-9]\d*/36 \[")
    (pid,) = [pid for pid, line in descendants(replay.process.pid).items() if f"--node_id={node} " in line]
    os.kill(pid, signal.SIGKILL)


@pytest.mark.parametrize(("config", "node"), [("local_2p1d", "prefill-1"), ("local_1p2d", "decode-0")])
def test_a_killed_node_of_two_costs_no_request(tmp_path, config, node):
    replay = _long_replay(tmp_path, f"--config={config}")
    with ended_in_the_end(replay):
        _kill(replay, node)
        ended = replay.end(60)
    assert ended.status == 0, ended.errors
    summary = json.loads((tmp_path / "report" / "report.json").read_text())["modes"]["dualpath"]
    assert (summary["requests"], summary["failed"]) == (36, 0)
    assert node not in summary["snic_busy_share"]
    assert "dualpath agrees with the no-cache reference" in ended.output


@pytest.mark.parametrize("node", ["prefill-0", "decode-0"])
def test_the_only_node_of_a_role_killed_is_named_and_nothing_hangs(tmp_path, node):
    replay = _long_replay(tmp_path, "--config=local_1p1d")
    with ended_in_the_end(replay):
        _kill(replay, node)
        started = list(descendants(replay.process.pid))
        ended = replay.end(30)
    assert ended.status == 1
    assert f"{node} died" in ended.errors
    assert "Traceback" not in ended.errors
    summary = json.loads((tmp_path / "report" / "report.json").read_text())["modes"]["dualpath"]
    assert summary["failed"] > 0
    assert all_gone(started, deadline_s=0.0)


@pytest.mark.parametrize("moment", [r"starting the cluster", r" [1-9]\d*/36 \["], ids=["starting", "replaying"])
def test_an_interrupted_replay_ends_and_leaves_nothing(tmp_path, moment):
    replay = _long_replay(tmp_path, "--config=local_1p1d")
    with ended_in_the_end(replay):
        replay.until_says(moment)
        started = list(descendants(replay.process.pid))
        replay.signal(signal.SIGINT)
        ended = replay.end(12)
    assert ended.status == 130
    assert "dualpath-replay: interrupted" in ended.errors
    assert "Traceback" not in ended.errors
    assert all_gone(started, deadline_s=0.0)
    assert list(replay.temporary.iterdir()) == []


def test_a_cluster_that_does_not_come_up_is_one_line_and_leaves_nothing(tmp_path):
    trace = write_trace(tmp_path / "trace.jsonl")
    ended = run("dualpath-replay", *QUICK, f"--trace={trace}", "--set=storage.url=file:///proc/no")
    assert ended.status == 1
    assert ended.errors.splitlines()[-1].startswith("dualpath-replay: scheduler ended with status 2: ")
    assert "store folder /proc/no" in ended.errors
    assert "Traceback" not in ended.errors


def test_help_names_every_flag():
    ended = run("dualpath-replay", "--help")
    assert (ended.status, ended.errors) == (0, "")
    for name in (
        "config",
        "set",
        "trace",
        "mode",
        "report",
        "scale",
        "max_sessions",
        "max_turns",
        "seed",
        "delay_scale",
    ):
        assert f"  --{name}:" in ended.output
    assert "--[no]compare" in ended.output
