"""Plots of runs as PNG. Matplotlib is imported where something is drawn, since that takes most of a second."""

import io
import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from dualpath_scheduler.report.metrics import BASELINE_MODE, ModeSummary, completion_s
from dualpath_scheduler.report.records import NodeRecord, RunRecord, SnicSample

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_BINS = 150
_BALANCE_BINS = 60
_NODES_SHOWN = 8
_ROLE_COLOURS = {"prefill": "Blues", "decode": "Oranges"}
_PART_COLOURS = {"queueing": "#bdbdbd", "reading": "#ff7f0e", "prefill": "#1f77b4"}
_MODE_COLOURS = ("#8c8c8c", "#1f77b4", "#2ca02c", "#9467bd", "#ff7f0e", "#d62728")


def completion_plot(summaries: Mapping[str, ModeSummary]) -> bytes:
    """Job completion time per mode, as a PNG."""
    figure = _figure(width=max(5.0, 2.0 + 1.4 * len(summaries)), height=4.0)
    axes = figure.add_subplot()
    times = [summary["completion_s"] for summary in summaries.values()]
    colours = [_mode_colour(index) for index in range(len(times))]
    bars = axes.bar(range(len(times)), times, width=0.6, color=colours)
    axes.bar_label(bars, labels=[_completion_label(mode, summary) for mode, summary in summaries.items()], padding=3)
    axes.set_xticks(range(len(times)), list(summaries))
    axes.set_ylim(0, max(times, default=0.0) * 1.18 or 1.0)
    axes.set_xlabel("mode")
    axes.set_ylabel("job completion time (s)")
    axes.set_title("Job completion time per mode")
    axes.spines[["top", "right"]].set_visible(False)
    return _png(figure)


def snic_plot(runs: Sequence[RunRecord]) -> bytes:
    """What each node's storage card read and wrote over time, a panel a mode, as a PNG."""
    figure = _figure(width=10.0, height=1.2 + 2.1 * max(1, len(runs)))
    panels = figure.subplots(max(1, len(runs)), 1, sharex=True, sharey=True, squeeze=False)[:, 0]
    bin_s = (max(map(_last_time_s, runs), default=0.0) or 1.0) / _BINS
    for run, axes in zip(runs, panels, strict=False):
        _draw_run(axes, run, bin_s)
    panels[0].set_ylim(bottom=0)
    panels[0].set_xlim(left=0)
    panels[-1].set_xlabel("time since the run's start (s)")
    figure.suptitle("Storage card (SNIC) throughput per node")
    return _png(figure)


def ttft_plot(summaries: Mapping[str, ModeSummary]) -> bytes:
    """What the mean time to first token is made of, a bar a mode, as a PNG."""
    figure = _figure(width=max(5.0, 3.0 + 1.4 * len(summaries)), height=4.0)
    axes = figure.add_subplot()
    modes = {mode: summary["ttft_parts_s"] for mode, summary in summaries.items() if summary["ttft_parts_s"]}
    bottoms = np.zeros(len(modes))
    for name, colour in _PART_COLOURS.items():
        heights = np.array([parts[name] for parts in modes.values() if parts is not None])
        axes.bar(range(len(modes)), heights, bottom=bottoms, width=0.6, color=colour, label=name)
        bottoms = bottoms + heights
    for at, height in enumerate(bottoms):
        axes.annotate(f"{height:.2f} s", (at, height), (0, 3), textcoords="offset points", ha="center")
    axes.set_xticks(range(len(modes)), list(modes))
    axes.set_ylim(0, max(bottoms, default=0.0) * 1.12 or 1.0)
    axes.set_xlabel("mode")
    axes.set_ylabel("mean time to first token (s)")
    axes.set_title("What the time to first token is made of")
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(loc="center left", bbox_to_anchor=(1.01, 0.5), fontsize=8, frameon=False, reverse=True)
    return _png(figure)


def balance_plot(runs: Sequence[RunRecord]) -> bytes:
    """Bytes that the busiest storage card read over the mean of those that may read, over time, as a PNG."""
    figure = _figure(width=10.0, height=4.0)
    axes = figure.add_subplot()
    for index, run in enumerate(runs):
        times, ratios = _balance(run)
        axes.plot(times, ratios, color=_mode_colour(index), linewidth=1.2, label=run.mode)
    axes.set_xlim(left=0)
    axes.set_ylim(bottom=0.95)
    axes.set_xlabel("time since the run's start (s)")
    axes.set_ylabel("largest over mean (1: even)")
    axes.set_title(f"Balance of storage cards (SNIC), reads in {_BALANCE_BINS} intervals of each run")
    axes.grid(axis="y", alpha=0.3)
    axes.spines[["top", "right"]].set_visible(False)
    if runs:
        axes.legend(loc="center left", bbox_to_anchor=(1.01, 0.5), fontsize=8, frameon=False)
    return _png(figure)


def _balance(run: RunRecord) -> tuple[np.ndarray, np.ndarray]:
    """The middle of each interval in which anything was read, and its largest over mean."""
    edges = (_last_time_s(run) or 1.0) * np.arange(_BALANCE_BINS + 1) / _BALANCE_BINS
    may_read = [node for node in run.nodes if node.may_read]
    if not may_read:
        return np.zeros(0), np.zeros(0)
    read = np.stack([binned_bytes_per_s(node.samples, edges) for node in may_read])
    some = read.sum(axis=0) > 0
    return ((edges[1:] + edges[:-1]) / 2)[some], read.max(axis=0)[some] / read.mean(axis=0)[some]


def binned_bytes_per_s(samples: Sequence[SnicSample], edges: np.ndarray, *, written: bool = False) -> np.ndarray:
    """The mean rate in each interval between `edges` (`[bins + 1]`, increasing), `[bins]`.

    A sample counts as evenly spread over its seconds, so that bytes within the edges are neither lost nor doubled.
    """
    total = np.zeros(len(edges))
    for sample in samples:
        count = sample.written_bytes if written else sample.read_bytes
        since = edges - sample.time_s
        share = since / sample.seconds if sample.seconds > 0 else (since >= 0).astype(float)
        total = total + count * np.clip(share, 0.0, 1.0)
    return np.diff(total) / np.diff(edges)


def _draw_run(axes: "Axes", run: RunRecord, bin_s: float) -> None:
    edges = bin_s * np.arange(max(1, math.ceil(_last_time_s(run) / bin_s - 1e-9)) + 1)
    if len(run.nodes) <= _NODES_SHOWN:
        _draw_nodes(axes, run.nodes, edges)
    else:
        _draw_roles(axes, run.nodes, edges)
    limits = sorted({node.snic_limit_bytes_per_s for node in run.nodes if node.snic_limit_bytes_per_s is not None})
    for limit in limits:
        axes.axhline(limit / 1e6, color="#444444", linewidth=1, linestyle="--", label=f"limit, {limit / 1e6:g} MB/s")
    axes.set_title(f"{run.mode} (completed after {completion_s(run):.1f} s)", loc="left", fontsize=10)
    axes.set_ylabel("MB/s")
    axes.grid(axis="y", alpha=0.3)
    axes.spines[["top", "right"]].set_visible(False)
    if axes.get_legend_handles_labels()[0]:
        axes.legend(loc="center left", bbox_to_anchor=(1.01, 0.5), fontsize=8, frameon=False)


def _draw_nodes(axes: "Axes", nodes: Sequence[NodeRecord], edges: np.ndarray) -> None:
    """A line a node for its reads, and a dotted one for its writes where it wrote."""
    for node, colour in zip(nodes, _node_colours(nodes), strict=True):
        for written, style, width in ((False, "-", 1.4), (True, ":", 1.1)):
            rates = binned_bytes_per_s(node.samples, edges, written=written) / 1e6
            if written and not rates.any():
                continue
            label = f"{node.node_id}, {'written' if written else 'read'}"
            axes.stairs(rates, edges, color=colour, linestyle=style, linewidth=width, label=label)


def _draw_roles(axes: "Axes", nodes: Sequence[NodeRecord], edges: np.ndarray) -> None:
    """Of many nodes, a role's mean within its range."""
    for role, colours in _ROLE_COLOURS.items():
        of_role = [node for node in nodes if node.role == role]
        if not of_role:
            continue
        rates = np.stack([binned_bytes_per_s(node.samples, edges) for node in of_role]) / 1e6
        colour = _shade(colours, 0.7)
        axes.stairs(
            rates.max(axis=0),
            edges,
            baseline=rates.min(axis=0),
            fill=True,
            color=colour,
            alpha=0.25,
            label=f"{len(of_role)} {role} nodes, read, range",
        )
        axes.stairs(rates.mean(axis=0), edges, color=colour, label=f"{len(of_role)} {role} nodes, read, mean")


def _mode_colour(index: int) -> str:
    return _MODE_COLOURS[index % len(_MODE_COLOURS)]


def _node_colours(nodes: Sequence[NodeRecord]) -> list[tuple[float, float, float, float]]:
    """Shades of a role's colour, from dark to light."""
    colours = []
    for node in nodes:
        peers = [other.node_id for other in nodes if other.role == node.role]
        lightness = peers.index(node.node_id) / max(1, len(peers) - 1)
        colours.append(_shade(_ROLE_COLOURS[node.role], 0.85 - 0.4 * lightness))
    return colours


def _shade(colour_map: str, depth: float) -> tuple[float, float, float, float]:
    from matplotlib import colormaps

    red, green, blue, alpha = colormaps[colour_map](depth)
    return float(red), float(green), float(blue), float(alpha)


def _last_time_s(run: RunRecord) -> float:
    sampled = (sample.time_s + sample.seconds for node in run.nodes for sample in node.samples)
    return max(completion_s(run), max(sampled, default=0.0))


def _completion_label(mode: str, summary: ModeSummary) -> str:
    speedup = summary.get("speedup_over_basic")
    time = f"{summary['completion_s']:.1f} s"
    return time if speedup is None or mode == BASELINE_MODE else f"{time}\n{speedup:.2f}× as fast"


def _figure(*, width: float, height: float) -> "Figure":
    """A figure of its own, unknown to pyplot: nothing global is touched and nothing stays open."""
    from matplotlib.figure import Figure

    return Figure(figsize=(width, height), layout="constrained")


def _png(figure: "Figure") -> bytes:
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    buffer = io.BytesIO()
    FigureCanvasAgg(figure).print_png(buffer)
    return buffer.getvalue()
