"""The files of a report: `report.json`, `requests.csv` and the plots."""

import csv
import io
import json
from collections.abc import Mapping, Sequence
from dataclasses import fields
from pathlib import Path

from dualpath_scheduler.files import write_atomically
from dualpath_scheduler.report.metrics import ModeSummary, summarise
from dualpath_scheduler.report.plots import balance_plot, completion_plot, snic_plot, ttft_plot
from dualpath_scheduler.report.records import RequestRecord, RunRecord

_REQUEST_COLUMNS = tuple(field.name for field in fields(RequestRecord))


def write_report(
    directory: Path, config: Mapping[str, object], trace: Mapping[str, object], runs: Sequence[RunRecord]
) -> dict[str, ModeSummary]:
    """Write the report of one or more runs into `directory`, which is made where it is missing.

    `report.json` is `{"config": config, "trace": trace, "modes": {mode: summary}}`; `requests.csv` has a row for each
    of the runs' `requests`; `completion.png`, `ttft_parts.png`, `snic_throughput.png` and `snic_balance.png` are the
    plots. Each file appears whole; files of an earlier report are replaced.

    Returns:
        The summaries, by mode.

    Raises:
        ValueError: where two runs have one mode, or `config` or `trace` is not JSON.
        OSError: where the directory cannot be written.
    """
    summaries = summarise(runs)
    report = {"config": config, "trace": trace, "modes": summaries}
    try:
        text = json.dumps(report, indent=2, allow_nan=False)
    except TypeError as error:
        raise ValueError(
            f"report.json cannot be made: {error}: expected a config and a trace of JSON values"
        ) from error
    contents = {
        "report.json": text.encode() + b"\n",
        "requests.csv": requests_csv(runs).encode(),
        "completion.png": completion_plot(summaries),
        "snic_throughput.png": snic_plot(runs),
        "snic_balance.png": balance_plot(runs),
        "ttft_parts.png": ttft_plot(summaries),
    }
    directory.mkdir(parents=True, exist_ok=True)
    for name, data in contents.items():
        write_atomically(directory / name, data)
    return summaries


def requests_csv(runs: Sequence[RunRecord]) -> str:
    """A row a request, in order, with its mode; times in seconds since the run's start, empty where never reached."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(("mode", *_REQUEST_COLUMNS))
    for run in runs:
        for request in run.requests:
            writer.writerow((run.mode, *(_cell(getattr(request, name)) for name in _REQUEST_COLUMNS)))
    return text.getvalue()


def _cell(value: object) -> object:
    return f"{value:.6f}" if isinstance(value, float) else "" if value is None else value
