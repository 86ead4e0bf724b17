"""What a run did: records, metrics, report files, plots, and the table at the end. Knows no real cluster."""

from dualpath_scheduler.report.metrics import BASELINE_MODE, ModeSummary, summarise
from dualpath_scheduler.report.records import NodeRecord, RequestColumns, RequestRecord, RunRecord, SnicSample
from dualpath_scheduler.report.table import format_table
from dualpath_scheduler.report.write import write_report

__all__ = [
    "BASELINE_MODE",
    "ModeSummary",
    "NodeRecord",
    "RequestColumns",
    "RequestRecord",
    "RunRecord",
    "SnicSample",
    "format_table",
    "summarise",
    "write_report",
]
