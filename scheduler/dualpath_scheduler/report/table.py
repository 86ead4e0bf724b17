"""The table that a replay or a simulation prints at its end."""

from collections.abc import Callable, Mapping, Sequence
from typing import Final

from dualpath_scheduler.report.metrics import ModeSummary

MAX_COLUMNS: Final = 100

_NODES_SHOWN = 8
_LABEL_COLUMNS = 34
_GAP = "  "
_NOTHING = "-"

Row = tuple[str, Callable[[ModeSummary], str]]


def format_table(summaries: Mapping[str, ModeSummary]) -> str:
    """Metrics as rows, modes as columns, with units; at most 100 columns wide, in several parts where that must be."""
    rows = _rows(summaries)
    texts = {mode: [mode, *(show(summary) for _, show in rows)] for mode, summary in summaries.items()}
    labels = [_cut(label) for label in ["", *(label for label, _ in rows)]]
    label_width = max(map(len, labels))
    parts = [
        "\n".join(
            _line(label, label_width, [(texts[mode][index], _width(texts[mode])) for mode in modes])
            for index, label in enumerate(labels)
        )
        for modes in _fitting(texts, MAX_COLUMNS - label_width)
    ]
    return "\n\n".join(parts)


def _rows(summaries: Mapping[str, ModeSummary]) -> list[Row]:
    head: list[Row] = [
        ("Job completion time (s)", lambda s: _number(s["completion_s"], 2)),
        ("Speed-up over basic (x)", lambda s: _number(s.get("speedup_over_basic"), 2)),
        ("Prompt tokens/s", lambda s: _number(s["prompt_tokens_per_s"], 0)),
        ("Generated tokens/s", lambda s: _number(s["generated_tokens_per_s"], 1)),
        ("TTFT p50 (s)", lambda s: _number(s["ttft_p50_s"], 3)),
        ("TTFT p99 (s)", lambda s: _number(s["ttft_p99_s"], 3)),
        ("TPOT p50 (ms)", lambda s: _number(s["tpot_p50_s"], 1, times=1e3)),
        ("Hit rate (%)", lambda s: _number(s["hit_rate"], 1, times=100)),
        ("Read by prefill side (MB)", lambda s: _number(s["bytes_read_prefill_side"], 1, times=1e-6)),
        ("Read by decode side (MB)", lambda s: _number(s["bytes_read_decode_side"], 1, times=1e-6)),
    ]
    if any(summary["bytes_read_memory"] for summary in summaries.values()):  # the nodes have DRAM tiers
        head.append(("Read from memory (MB)", lambda s: _number(s["bytes_read_memory"], 1, times=1e-6)))
    tail: list[Row] = [
        ("SNIC bytes, largest over mean (x)", lambda s: _number(s["snic_bytes_max_over_mean"], 2)),
        ("Requests", lambda s: str(s["requests"])),
        ("Failed requests", lambda s: str(s["failed"])),
        ("Recomputed blocks", lambda s: str(s["recomputed_blocks"])),
    ]
    if any(summary["dropped_blocks"] for summary in summaries.values()):
        tail.append(("Blocks not stored", lambda s: str(s["dropped_blocks"])))
    return [*head, *_busy_rows(summaries), *tail]


def _busy_rows(summaries: Mapping[str, ModeSummary]) -> list[Row]:
    """A row a node; of many nodes the least, mean and most busy."""
    nodes = list(dict.fromkeys(node for summary in summaries.values() for node in summary["snic_busy_share"]))
    if len(nodes) <= _NODES_SHOWN:
        return [(f"SNIC busy, {node} (%)", _busy_row(node)) for node in nodes]
    return [
        (f"SNIC busy, {name} of {len(nodes)} nodes (%)", _over_nodes(reduce))
        for name, reduce in (("least", min), ("mean", _mean), ("most", max))
    ]


def _busy_row(node: str) -> Callable[[ModeSummary], str]:
    return lambda summary: _number(summary["snic_busy_share"].get(node), 1, times=100)


def _over_nodes(reduce: Callable[[list[float]], float]) -> Callable[[ModeSummary], str]:
    def show(summary: ModeSummary) -> str:
        shares = [share for share in summary["snic_busy_share"].values() if share is not None]
        return _number(reduce(shares) if shares else None, 1, times=100)

    return show


def _mean(values: list[float]) -> float:
    return sum(values) / len(values)


def _number(value: float | None, digits: int, *, times: float = 1.0) -> str:
    return _NOTHING if value is None else f"{value * times:,.{digits}f}"


def _cut(label: str) -> str:
    return label if len(label) <= _LABEL_COLUMNS else label[: _LABEL_COLUMNS - 1] + "…"


def _width(texts: Sequence[str]) -> int:
    return max(map(len, texts))


def _line(label: str, label_width: int, cells: Sequence[tuple[str, int]]) -> str:
    return label.ljust(label_width) + "".join(_GAP + text.rjust(width) for text, width in cells)


def _fitting(texts: Mapping[str, Sequence[str]], columns: int) -> list[list[str]]:
    """Modes in runs whose columns fit beside the labels; a mode alone always counts as fitting."""
    parts: list[list[str]] = []
    left = 0
    for mode, cells in texts.items():
        wanted = len(_GAP) + _width(cells)
        if not parts or wanted > left:
            parts.append([])
            left = columns
        parts[-1].append(mode)
        left -= wanted
    return parts
