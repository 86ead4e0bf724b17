"""The demo, shortened, on storage that misbehaves: real processes, the real model; all agrees and ends in time."""

import json
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.small_disk import run_on_small_disk
from tests.launch.commands import Ended, run

pytestmark = pytest.mark.long

SESSIONS, TURNS = 6, 6
REQUESTS = SESSIONS * TURNS
DEADLINE_S = 3.0
FAULTS = ("delay", "hang", "error", "truncate", "flip", "swap", "lose")
DEMO = (
    "--config=local_1p1d",
    "--trace=demo",
    f"--max_sessions={SESSIONS}",
    f"--max_turns={TURNS}",
    f"--check_requests={REQUESTS}",
)
HASTY = (f"--set=storage.read_deadline_s={DEADLINE_S}", f"--set=storage.write_deadline_s={DEADLINE_S}")


@dataclass(frozen=True)
class CleanRun:
    """What a run without faults left behind."""

    folder: Path
    completion_s: float

    @property
    def programs(self) -> str:
        return f"--compilation_cache={self.folder / 'programs'}"


def _agreed(ended: Ended, report: Path, *, requests: int = REQUESTS, checked: int = REQUESTS) -> dict[str, Any]:
    """The summary of a run whose generations all succeeded, and agree with the no-cache reference where checked."""
    assert ended.status == 0, ended.errors
    assert f"dualpath agrees with the no-cache reference: {checked} requests, " in ended.output
    summary = json.loads((report / "report.json").read_text())["modes"]["dualpath"]
    assert (summary["requests"], summary["failed"]) == (requests, 0)
    return summary


@pytest.fixture(scope="module")
def clean(tmp_path_factory) -> CleanRun:
    """The demo on a store that works, which then holds all of its blocks."""
    folder = tmp_path_factory.mktemp("clean")
    flags = [f"--set=storage.url=file://{folder / 'kv'}", f"--compilation_cache={folder / 'programs'}"]
    ended = run("dualpath-replay", *DEMO, *flags, f"--report={folder / 'report'}", timeout_s=300)
    summary = _agreed(ended, folder / "report")
    assert summary["recomputed_blocks"] == 0
    return CleanRun(folder, summary["completion_s"])


@pytest.mark.parametrize("rates", [dict.fromkeys(FAULTS, 0.05), *({fault: 1.0} for fault in FAULTS)], ids=str)
@pytest.mark.parametrize("start", ["empty", "full"])
def test_the_demo_on_a_faulty_store_agrees_and_ends_in_time(tmp_path, clean, start, rates):
    """From an empty store, and from one that has all blocks, so that every turn has something to read."""
    if start == "full":
        shutil.copytree(clean.folder / "kv", tmp_path / "kv")
    query = "&".join(f"{name}={rate}" for name, rate in {**rates, "seed": 1}.items())
    store = f"--set=storage.url=faulty+file://{tmp_path / 'kv'}?{query}"
    report = tmp_path / "report"
    ended = run("dualpath-replay", *DEMO, *HASTY, store, clean.programs, f"--report={report}", timeout_s=300)
    summary = _agreed(ended, report)
    # A turn waits for one read that runs out of time, and for what that leaves to compute.
    assert summary["completion_s"] < 5 * clean.completion_s + TURNS * 2 * DEADLINE_S
    if start == "full" and rates not in ({"delay": 1.0}, {"lose": 1.0}):
        assert summary["recomputed_blocks"] > 0, "no fault struck"


def test_the_whole_demo_on_a_small_disk_agrees_and_says_what_was_not_stored(tmp_path, clean):
    disk, report = tmp_path / "disk", tmp_path / "report"
    disk.mkdir()
    flags = ["--config=local_1p1d", "--trace=demo", "--check_requests=24", clean.programs, f"--report={report}"]
    store = f"--set=storage.url=file://{disk / 'kv'}"
    ended = run_on_small_disk(disk, "20m", "dualpath-replay", *flags, store, timeout_s=600)
    summary = _agreed(ended, report, requests=192, checked=24)
    assert summary["dropped_blocks"] > 0
    assert summary["hit_rate"] > 0


def test_the_demo_with_blocks_in_memory_agrees_and_reads_less_from_storage(tmp_path, clean):
    report = tmp_path / "report"
    flags = [f"--set=storage.url=file://{tmp_path / 'kv'}", "--set=storage.dram_bytes=200000000", clean.programs]
    summary = _agreed(run("dualpath-replay", *DEMO, *flags, f"--report={report}", timeout_s=300), report)
    without = json.loads((clean.folder / "report" / "report.json").read_text())["modes"]["dualpath"]
    assert summary["bytes_read_memory"] > 0 == without["bytes_read_memory"]
    assert _from_storage(summary) < 0.5 * _from_storage(without)


def _from_storage(summary: dict[str, Any]) -> int:
    return summary["bytes_read_prefill_side"] + summary["bytes_read_decode_side"]
