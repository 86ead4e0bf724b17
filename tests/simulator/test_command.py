"""`dualpath-simulate`: what it prints, what it writes, and what it says of wrong arguments."""

import json

import pytest

from dualpath_scheduler.simulator.command import main
from dualpath_scheduler.simulator.outcome import Outcome
from dualpath_scheduler.simulator.search import Targets, highest_rate

SHORT = ["--trace", "paper-32k", "--agents", "12", "--max_turns", "4"]


def printed(capsys: pytest.CaptureFixture[str]) -> list[dict[str, object]]:
    return [json.loads(line) for line in capsys.readouterr().out.splitlines()]


def test_modes_and_report(capsys, tmp_path):
    assert main([*SHORT, "--mode", "basic", "dualpath", "--report", str(tmp_path / "report")]) == 0
    basic, dualpath = printed(capsys)
    assert (basic["mode"], dualpath["mode"]) == ("basic", "dualpath")
    assert dualpath["completion_s"] < basic["completion_s"]
    files = {path.name for path in (tmp_path / "report").iterdir()}
    plots = {"completion.png", "snic_throughput.png", "snic_balance.png", "ttft_parts.png"}
    assert files == {"report.json", "requests.csv", *plots}
    report = json.loads((tmp_path / "report" / "report.json").read_text())
    assert report["modes"]["basic"]["completion_s"] == pytest.approx(basic["completion_s"])
    assert report["config"]["decode_nodes"] == 1


def test_a_sweep_is_all_combinations(capsys):
    sweeps = ["--sweep", "decode_nodes=1,2", "--sweep", "hardware.snic_bytes_per_s=25e9,50e9"]
    assert main([*SHORT, *sweeps]) == 0
    rows = printed(capsys)
    assert [(r["decode_nodes"], r["hardware.snic_bytes_per_s"]) for r in rows] == [
        (1, 25e9),
        (1, 50e9),
        (2, 25e9),
        (2, 50e9),
    ]
    assert len({row["completion_s"] for row in rows}) > 1


def test_the_highest_rate_that_keeps_the_targets(capsys):
    assert main([*SHORT, "--agents", "30", "--max_turns", "2", "--slo_ttft_s", "2"]) == 0
    (row,) = printed(capsys)
    assert row["ttft_mean_s"] <= 2
    assert main([*SHORT, "--max_turns", "2", "--slo_tpot_ms", "0.001"]) == 1


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--config", "27b_1p1"], "no such preset: '27b_1p1': expected 27b_1p1d, 660b_2p4d"),
        (["--trace", "nothing.jsonl"], "nothing.jsonl: no such file"),
        (["--set", "decode_nodes"], "--set decode_nodes: expected key=value"),
        (["--sweep", "decode_nodes=0"], "decode_nodes = 0: expected more than 0"),
        (["--set", "model.layer=3"], "no such key; the closest valid key is model.layers"),
        (["--sweep", "decode_nodes=1,2", "--report", "r"], "expected no --sweep beside it"),
    ],
)
def test_wrong_arguments_are_one_line(capsys, arguments, said):
    assert main([*SHORT, *arguments]) == 2
    error = capsys.readouterr().err
    assert said in error
    assert error.count("\n") == 1


@pytest.mark.parametrize(("limit", "start"), [(5.0, 0.1), (0.02, 0.1), (0.1, 0.1)])
def test_the_search_brackets_the_limit(limit, start):
    def outcome(rate: float) -> Outcome:
        return Outcome(1, 1, rate, 0, 0, 0, 0, 0, 0, 0, 0, 0, None, 1)

    rate, best = highest_rate(outcome, Targets(limit, None), start)
    assert limit / 1.03 <= rate <= limit
    assert best is not None
    assert best.ttft_mean_s == rate
