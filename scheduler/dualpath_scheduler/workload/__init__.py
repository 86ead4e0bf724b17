"""Traces of agent sessions: their generator, and files in Mooncake's format."""

from dualpath_scheduler.workload.generator import PAPER_TRACES, PaperTrace, generate_trace
from dualpath_scheduler.workload.load import load_trace, trace_names
from dualpath_scheduler.workload.mooncake import save_trace
from dualpath_scheduler.workload.trace import SessionTrace, TokenSpan, Trace, TraceError, Turn

__all__ = [
    "PAPER_TRACES",
    "PaperTrace",
    "SessionTrace",
    "TokenSpan",
    "Trace",
    "TraceError",
    "Turn",
    "generate_trace",
    "load_trace",
    "save_trace",
    "trace_names",
]
