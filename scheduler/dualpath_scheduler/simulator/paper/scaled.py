"""Workloads whose appends or generations are longer than the trace's (paper, append and generation lengths)."""

from dataclasses import replace

import numpy as np

from dualpath_scheduler.simulator.workload import Workload
from dualpath_scheduler.workload import TraceError


def scaled(
    workload: Workload, *, append: float = 1.0, generate: float = 1.0, longest_tokens: int | None = None
) -> Workload:
    """All appends (first prompts too) and generations times these factors.

    `longest_tokens`: a session ends before the turn whose prompt and generation would exceed this, as trajectories of
    the paper's traces end at their longest length. Absent: all turns stay, and contexts grow.

    Raises TraceError where a session's first turn is too long.
    """
    longer = replace(
        workload,
        append_tokens=_times(workload.append_tokens, append),
        generate_tokens=_times(workload.generate_tokens, generate),
    )
    if longest_tokens is None:
        return longer
    kept = longer.prompt_tokens() + longer.generate_tokens <= longest_tokens
    turns = np.add.reduceat(kept, workload.first[:-1], dtype=np.int64)
    if not turns.all():
        raise TraceError(f"{workload.name}: a first turn exceeds {longest_tokens} tokens: expected smaller factors")
    return replace(
        longer,
        first=np.concatenate([[0], np.cumsum(turns)]),
        append_tokens=longer.append_tokens[kept],
        generate_tokens=longer.generate_tokens[kept],
        delay_s=longer.delay_s[kept],
    )


def _times(tokens: np.ndarray, factor: float) -> np.ndarray:
    return np.maximum(1, np.round(tokens * factor)).astype(tokens.dtype)
