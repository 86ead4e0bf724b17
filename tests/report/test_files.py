"""The report's files, the table, and what importing all of it costs."""

import csv
import json
import subprocess
import sys
from dataclasses import fields, replace
from pathlib import Path

import numpy as np
import pytest
from matplotlib.image import imread

from dualpath_scheduler.files import write_atomically
from dualpath_scheduler.report import (
    NodeRecord,
    RequestRecord,
    RunRecord,
    SnicSample,
    format_table,
    summarise,
    write_report,
)
from dualpath_scheduler.report.plots import binned_bytes_per_s

PLOTS = ["completion.png", "snic_balance.png", "snic_throughput.png", "ttft_parts.png"]
FILES = sorted(["report.json", "requests.csv", *PLOTS])


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_the_report(tmp_path: Path, basic: RunRecord, dualpath: RunRecord) -> None:
    folder = tmp_path / "new" / "report"
    for _ in range(2):  # a second report replaces the first
        summaries = write_report(folder, {"prefill_nodes": 1}, {"name": "demo"}, [basic, dualpath])
        assert names(folder) == FILES
    report = json.loads((folder / "report.json").read_text())
    assert report == {"config": {"prefill_nodes": 1}, "trace": {"name": "demo"}, "modes": summaries}
    assert summaries == summarise([basic, dualpath])


def test_a_row_a_request(tmp_path: Path, basic: RunRecord, dualpath: RunRecord) -> None:
    write_report(tmp_path, {}, {}, [basic, dualpath])
    with (tmp_path / "requests.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert list(rows[0]) == ["mode", *(field.name for field in fields(RequestRecord))]
    assert [row["mode"] for row in rows] == ["basic"] * 9 + ["dualpath"] * 3
    failed = rows[-1]
    assert (failed["error"], failed["first_token_s"], failed["attempts"]) == ("node decode-0 lost", "", "3")
    assert float(rows[1]["assigned_s"]) == 1.125
    assert rows[1]["prefill_side_blocks"] == "15"


@pytest.mark.parametrize("modes", [0, 1, 2])
def test_plots_show_something(tmp_path: Path, basic: RunRecord, dualpath: RunRecord, modes: int) -> None:
    write_report(tmp_path, {}, {}, [basic, dualpath][:modes])
    for name in PLOTS:
        pixels = imread(tmp_path / name)
        assert pixels.shape[0] >= 300
        assert pixels.shape[1] >= 450
        assert len(np.unique(pixels.reshape(-1, pixels.shape[-1]), axis=0)) > 10


def test_many_nodes_are_drawn_and_tabled_by_role(tmp_path: Path, dualpath: RunRecord) -> None:
    nodes = tuple(
        NodeRecord(f"node-{index}", "decode" if index % 2 else "prefill", 10, 0, index / 4, dualpath.nodes[0].samples)
        for index in range(20)
    )
    table = format_table(write_report(tmp_path, {}, {}, [replace(dualpath, nodes=nodes)]))
    assert row(table, "SNIC busy, least of 20 nodes (%)") == ["0.0"]
    assert row(table, "SNIC busy, mean of 20 nodes (%)") == ["47.5"]
    assert row(table, "SNIC busy, most of 20 nodes (%)") == ["95.0"]


@pytest.mark.parametrize("bad", [{"when": object()}, {"rate": float("nan")}])
def test_nothing_is_written_where_something_is_no_json(
    tmp_path: Path, basic: RunRecord, bad: dict[str, object]
) -> None:
    with pytest.raises(ValueError, match="JSON"):
        write_report(tmp_path, bad, {}, [basic])
    assert names(tmp_path) == []


def test_a_write_that_fails_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "report.json"
    write_atomically(path, b"old")

    def refuse(*_: object) -> None:
        raise OSError("no space")

    monkeypatch.setattr("os.replace", refuse)
    with pytest.raises(OSError, match="no space"):
        write_atomically(path, b"new")
    assert path.read_bytes() == b"old"
    assert names(tmp_path) == ["report.json"]


def test_bytes_are_binned_without_loss() -> None:
    samples = [SnicSample(0.5, 1.0, 600, 30), SnicSample(1.5, 0.25, 100, 0), SnicSample(2.0, 0.0, 7, 0)]
    edges = np.array([0.0, 1.0, 1.5, 2.0, 4.0])
    np.testing.assert_allclose(binned_bytes_per_s(samples, edges), [300, 600, 200 + 14, 0])
    np.testing.assert_allclose(binned_bytes_per_s(samples, edges, written=True), [15, 30, 0, 0])
    assert binned_bytes_per_s([], edges).tolist() == [0, 0, 0, 0]


def row(table: str, label: str) -> list[str]:
    (line,) = (line for line in table.splitlines() if line.startswith(label))
    return line.removeprefix(label).split()


def test_the_table(basic: RunRecord, dualpath: RunRecord) -> None:
    table = format_table(summarise([basic, dualpath]))
    lines = table.splitlines()
    assert lines[0].split() == ["basic", "dualpath"]
    assert len({len(line) for line in lines}) == 1
    assert row(table, "Job completion time (s)") == ["10.00", "5.00"]
    assert row(table, "Speed-up over basic (x)") == ["1.00", "2.00"]
    assert row(table, "Prompt tokens/s") == ["900", "400"]
    assert row(table, "TTFT p50 (s)") == ["1.000", "1.250"]
    assert row(table, "TPOT p50 (ms)") == ["50.0", "50.0"]
    assert row(table, "Hit rate (%)") == ["96.0", "96.0"]
    assert row(table, "Read by prefill side (MB)") == ["216.0", "90.0"]
    assert row(table, "SNIC busy, decode-0 (%)") == ["0.0", "20.0"]
    assert row(table, "Failed requests") == ["0", "1"]


def test_what_memory_gave_and_storage_refused_is_tabled_where_there_was_any(
    basic: RunRecord, dualpath: RunRecord
) -> None:
    table = format_table(summarise([basic, dualpath]))
    assert "from memory" not in table
    assert "not stored" not in table
    nodes = tuple(replace(node, memory_read_bytes=3_000_000, dropped_blocks=7) for node in dualpath.nodes)
    table = format_table(summarise([basic, replace(dualpath, nodes=nodes)]))
    assert row(table, "Read from memory (MB)") == ["0.0", "6.0"]
    assert row(table, "Blocks not stored") == ["0", "14"]


def test_the_table_without_a_baseline_or_a_request(dualpath: RunRecord) -> None:
    table = format_table(summarise([replace(dualpath, requests=())]))
    assert row(table, "Speed-up over basic (x)") == ["-"]
    assert row(table, "TTFT p99 (s)") == ["-"]


def test_the_table_is_never_too_wide(basic: RunRecord) -> None:
    nodes = tuple(replace(node, node_id=node.node_id + "-in-a-rack-with-a-long-name" * 2) for node in basic.nodes)
    modes = [f"mode-number-{index}" for index in range(9)]
    table = format_table(summarise([replace(basic, mode=mode, nodes=nodes) for mode in modes]))
    assert max(map(len, table.splitlines())) <= 100
    assert [word for line in table.splitlines() for word in line.split() if word in modes] == modes


def test_reading_a_report_module_loads_no_matplotlib() -> None:
    program = "import sys, dualpath_scheduler.report; sys.exit('matplotlib' in sys.modules)"
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)


def test_drawing_leaves_no_figure_open(tmp_path: Path) -> None:
    program = (
        "import sys; from pathlib import Path; from dualpath_scheduler.report import write_report;"
        "write_report(Path(sys.argv[1]), {}, {}, []); sys.exit('matplotlib.pyplot' in sys.modules)"
    )
    subprocess.run([sys.executable, "-W", "error", "-c", program, str(tmp_path)], check=True, timeout=60)
    assert names(tmp_path) == FILES
