"""The paper's experiments: which runs they need, what stands in their tables, and that a second start goes on."""

import csv
import io
import json
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from matplotlib.image import imread

from dualpath_scheduler.simulator.paper import __main__ as command
from dualpath_scheduler.simulator.paper import ledger as ledgers
from dualpath_scheduler.simulator.paper.beyond import VARIANTS, Beyond
from dualpath_scheduler.simulator.paper.experiment import with_paper
from dualpath_scheduler.simulator.paper.ledger import Ledger
from dualpath_scheduler.simulator.paper.offline import (
    Ablation,
    CompletionTimes,
    Lengths,
    Ratios,
    Setting,
    Sizes,
    offline_settings,
)
from dualpath_scheduler.simulator.paper.online import TTFT_S, HighestRates, Latencies, Serving
from dualpath_scheduler.simulator.paper.plots import plot
from dualpath_scheduler.simulator.paper.runs import Run
from dualpath_scheduler.simulator.paper.scaled import scaled
from dualpath_scheduler.simulator.paper.tables import Bottlenecks, KvPerCompute, Traces
from dualpath_scheduler.workload import TraceError
from tests.simulator.small import workload

SMALL = Setting("qwen2.5-32b", "32K", 2)


def always(run: Run) -> dict[str, float]:
    """A result of every run: slower by mode, and beyond its targets from half an agent a second on."""
    seconds = 10.0 * (1 + ("oracle", "dualpath", "basic").index(run.mode)) if run.mode in ("oracle", "basic") else 20.0
    ttft = 8 * (run.arrivals_per_s or 0.1)
    return {
        "completion_s": seconds,
        "ttft_mean_s": ttft,
        "ttft_p99_s": ttft,
        "tpot_mean_s": 0.05 / 0.482 * (run.arrivals_per_s or 0.1),
        "tpot_p99_s": 0.04,
        "snic_max_over_mean": 1.1,
        "attention_max_over_mean": 1.1,
    }


def test_lengths_are_scaled_and_sessions_cut():
    work = workload([(100, 10), (50, 10), (50, 10)], [(10, 1)])
    longer = scaled(work, append=1.5)
    assert longer.append_tokens.tolist() == [150, 75, 75, 15]
    assert longer.generate_tokens.tolist() == [10, 10, 10, 1]
    cut = scaled(work, append=1.5, longest_tokens=245)  # the second turn ends at 245, the third at 330
    assert cut.append_tokens.tolist() == [150, 75, 15]
    assert cut.first.tolist() == [0, 2, 3]
    assert scaled(work, generate=0.01).generate_tokens.tolist() == [1, 1, 1, 1]
    with pytest.raises(TraceError, match="a first turn exceeds 100 tokens"):
        scaled(work, longest_tokens=100)


def test_a_run_is_its_spec_and_its_workload():
    run = SMALL.run("dualpath")
    assert run.key == Setting("qwen2.5-32b", "32K", 2, (1, 2)).run("dualpath").key
    others = [
        SMALL.run("basic"),
        SMALL.run("dualpath", [("calibration.turn_s", 0.1)]),
        SMALL.run("dualpath", arrivals_per_s=1.0),
        SMALL.run("dualpath", append_scale=2.0),
        Setting("qwen2.5-32b", "48K", 2).run("dualpath"),
    ]
    assert len({run.key, *(other.key for other in others)}) == 6


@pytest.mark.parametrize(
    ("experiment", "rows"),
    [(CompletionTimes(), 99), (Ratios(), 81), (Lengths(), 48), (Sizes(), 4), (Ablation(), 8), (Beyond(), 264)],
)
def test_every_setting_has_its_row(monkeypatch, experiment, rows):
    monkeypatch.setattr(Run, "spec", property(lambda run: type("Spec", (), {"prefill_nodes": 1, "decode_nodes": 1})))
    table = experiment.rows(always)
    assert len(table) == rows
    assert experiment.rows(lambda run: None) == []
    for lines in experiment.plots:
        assert {*lines.panels, lines.series, lines.x, lines.y} <= set(table[0])


def test_the_rate_of_beyond_online_follows_the_papers_system(monkeypatch):
    monkeypatch.setattr(Run, "spec", property(lambda run: type("Spec", (), {"prefill_nodes": 1, "decode_nodes": 1})))
    nothing_ran = Beyond().runs(lambda run: None)
    assert len(nothing_ran) == len(VARIANTS) * len(offline_settings())
    assert {run.arrivals_per_s for run in nothing_ran} == {None}
    assert len(Beyond().runs(always)) == 2 * len(nothing_ran)
    row = next(row for row in Beyond().rows(always) if row["system"] == "oracle")
    assert row["arrivals_per_s"] == pytest.approx(0.7 * row["agents"] / 20.0)
    assert (row["jct_s"], row["jct_gain"], row["jct_over_oracle"]) == (10.0, 2.0, 1.0)
    only_offline = Beyond().rows(lambda run: None if run.arrivals_per_s else always(run))
    assert {row["ttft_gain"] for row in only_offline} == {None}


def test_rates_are_halved_to_where_the_targets_end():
    # TTFT is 8 s times the rate, TPOT passes its target of 50 ms between 0.48125 and 0.484375.
    rates = [rate for rate, _ in Serving("ds27b", "dualpath").rates(always)]
    assert rates[:11] == [pytest.approx(0.05 * step) for step in range(1, 12)]  # 0.55 is the first to miss
    assert rates[11:15] == pytest.approx([0.525, 0.5125, 0.50625, 0.503125], abs=1e-5)
    assert rates[15:] == pytest.approx([0.475, 0.4875, 0.48125, 0.484375], abs=1e-5)
    (first,) = Serving("ds27b", "dualpath").rates(lambda run: None)
    assert first[1].agents == 180
    highest = [row for row in HighestRates().rows(always) if row["system"] == "dualpath"]
    assert [(row["targets"], row["arrivals_per_s"]) for row in highest] == [("TTFT", 0.5)] * 2 + [
        ("TTFT and TPOT", 0.48125)
    ] * 2
    assert all(row["ttft_s"] <= TTFT_S for row in highest)
    assert {row["over_basic"] for row in highest} == {1.0}
    assert len(Latencies().rows(always)) == 6 * 19


def test_the_papers_values_stand_beside():
    rows = CompletionTimes([Setting("ds27b", "32K", 512)]).rows(always)
    beside = {row["system"]: row for row in with_paper(CompletionTimes(), rows, None)}
    assert beside["basic"]["paper_jct_s"] == 521
    assert beside["basic"]["jct_s_error"] == pytest.approx(30 / 521 - 1)


def test_a_folder_comes_before_the_package(tmp_path):
    (tmp_path / "pd_ratio.csv").write_text("agents,prefill_nodes,decode_nodes,system,jct_s\n512,1,1.0,basic,60\n")
    rows = [row for row in Ratios().rows(always) if row["agents"] == 512 and row["max_length"] == "32K"]
    beside = with_paper(Ratios(), rows, tmp_path)
    assert {row["jct_s_error"] for row in beside} == {None, -0.5}
    assert with_paper(Ratios(), rows, None) == rows


def test_tables_that_need_no_run_agree_with_the_paper():
    bottlenecks = with_paper(Bottlenecks(), Bottlenecks().rows(always), None)
    assert bottlenecks[-1]["least_error"] == pytest.approx(0, abs=1e-5)
    assert bottlenecks[-1]["most_error"] == pytest.approx(0)
    qwen = with_paper(KvPerCompute(), KvPerCompute().rows(always), None)[:2]
    assert max(abs(row["gb_per_pflop_error"]) for row in qwen) < 0.03
    for row in with_paper(Traces(), Traces().rows(always), None):
        assert max(abs(row[f"{name}_error"]) for name in ("append", "generation", "total", "context")) < 0.025
        assert abs(row["turns_error"]) < 0.05


def test_a_second_start_goes_on(tmp_path, capsys):
    experiments = [CompletionTimes([SMALL])]
    assert command.main(["--out", str(tmp_path)], experiments) == 0
    assert capsys.readouterr().err.count("qwen32b_1p2d, 32K, 2 agents") == 3
    with (tmp_path / "offline_jct.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [row["system"] for row in rows] == ["oracle", "dualpath", "basic"]
    assert float(rows[0]["jct_s"]) < float(rows[1]["jct_s"])
    assert imread(tmp_path / "offline_jct.png").shape[0] > 200
    done = tmp_path / "runs.jsonl"
    lines = done.read_text().splitlines(keepends=True)
    assert command.main(["--out", str(tmp_path)], experiments) == 0
    assert capsys.readouterr().err == ""
    done.write_text("".join(lines[:2]) + lines[2][:50])  # killed while it wrote
    assert command.main(["--out", str(tmp_path)], experiments) == 0
    assert capsys.readouterr().err.count("qwen32b_1p2d, 32K, 2 agents") == 1
    assert [json.loads(line)["name"] for line in done.read_text().splitlines()] == [
        json.loads(line)["name"] for line in lines
    ]


def test_results_of_other_constants_are_not_taken_and_new_keys_have_their_defaults(tmp_path):
    path = tmp_path / "runs.jsonl"
    run = SMALL.run("dualpath")
    Ledger(path).add(run, always(run), 1.0)
    assert Ledger(path).get(run) == always(run)
    assert Ledger(path).get(SMALL.run("dualpath", [("calibration.turn_s", 0.123)])) is None
    entry = json.loads(path.read_text())
    del entry["spec"]["scheduling"]["compute_quota_s"]  # as if written before there was such a key
    path.write_text(json.dumps(entry) + "\n")
    assert Ledger(path).get(run) == always(run)
    entry["spec"]["scheduling"]["of_old"] = 1
    path.write_text(json.dumps(entry) + "\n")
    assert Ledger(path).get(run) is None


def test_what_fails_keeps_nothing_else_from_running(tmp_path, capsys):
    small = CompletionTimes([SMALL])
    too_long = Run("qwen32b_1p2d", "basic", "32K", 2, (("hardware.hbm_bytes", 37_000_000_000),))
    small_runs = small.runs(always)
    ledger = Ledger(tmp_path / "runs.jsonl")
    ledger.fill([too_long, *small_runs], workers=1)
    assert [ledger.is_settled(run) for run in (too_long, *small_runs)] == [True] * 4
    assert [ledger.get(run) is None for run in (too_long, *small_runs)] == [True, False, False, False]
    assert "tokens of prompt" in ledger.failed[too_long.name]
    ledger.fill([too_long], workers=1)
    assert capsys.readouterr().err.count("\n") == 3


def test_the_cheapest_run_first(monkeypatch, tmp_path, capsys):
    ran = []

    class Inline:
        def __init__(self, *_: object, **__: object) -> None: ...
        def __enter__(self) -> "Inline":
            return self

        def __exit__(self, *_: object) -> None: ...

        def submit(self, execute, run):
            ran.append(run.expected_requests)
            done = ledgers.Future()
            done.set_result((always(run), 1.0))
            return done

    monkeypatch.setattr(ledgers, "ProcessPoolExecutor", Inline)
    Ledger(tmp_path / "runs.jsonl").fill(Sizes().runs(always), workers=1)
    assert ran == sorted(ran)
    assert "0 min of a processor to go" in capsys.readouterr().err.splitlines()[-1]


PARENT = """
import os, time
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from dualpath_scheduler.simulator.paper.ledger import _end_with_parent

if __name__ == "__main__":
    pool = ProcessPoolExecutor(1, get_context("spawn"), initializer=_end_with_parent)
    print(pool.submit(os.getpid).result(), flush=True)
    time.sleep(60)
"""


def test_a_worker_ends_with_its_parent(tmp_path):
    (tmp_path / "parent.py").write_text(PARENT)
    parent = subprocess.Popen(
        [sys.executable, str(tmp_path / "parent.py")],
        env={"PYTHONPATH": ":".join(sys.path)},
        stdout=subprocess.PIPE,
        text=True,
    )
    with parent:
        try:
            assert parent.stdout is not None
            worker = int(parent.stdout.readline())
        finally:
            parent.kill()
    deadline = time.monotonic() + 20
    while is_running(worker):
        assert time.monotonic() < deadline, f"worker {worker} still runs"
        time.sleep(0.02)


def is_running(pid: int) -> bool:
    """Whether there is such a process, and it is not just waiting to be reaped."""
    try:
        return " Z " not in Path(f"/proc/{pid}/stat").read_text()
    except FileNotFoundError:
        return False


def test_a_plot_shows_both():
    rows = with_paper(CompletionTimes(), CompletionTimes([Setting("ds27b", "32K", 512)]).rows(always), None)
    pixels = imread(io.BytesIO(plot(CompletionTimes.plots[0], rows)))
    assert len(np.unique(pixels.reshape(-1, pixels.shape[-1]), axis=0)) > 10
