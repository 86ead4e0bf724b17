"""Plots of tables, the paper's values beside the simulated ones."""

import io
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from dualpath_scheduler.simulator.paper.experiment import Lines, Row

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_DPI = 60


def plot(lines: Lines, rows: Sequence[Row]) -> bytes:
    """A PNG: simulated values are filled marks on lines, the paper's hollow ones on dashes."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    panels: dict[tuple[object, ...], list[Row]] = {}
    for row in rows:
        panels.setdefault(tuple(row[name] for name in lines.panels), []).append(row)
    columns = math.ceil(math.sqrt(len(panels)))
    down = -(-len(panels) // columns)
    figure = Figure(figsize=(1.5 + 3.6 * columns, 1.3 + 2.7 * down), dpi=_DPI, layout="constrained")
    grid = figure.subplots(down, columns, squeeze=False)
    series = list(dict.fromkeys(row[lines.series] for row in rows))
    for axes, (panel, of_panel) in zip(grid.flat, panels.items(), strict=False):
        _draw_panel(axes, lines, of_panel, series)
        axes.set_title(", ".join(map(str, panel)), fontsize=9)
    for axes in grid.flat[len(panels) :]:
        axes.set_visible(False)
    handles, labels = grid.flat[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside right upper", fontsize=8, frameon=False)
    figure.suptitle(lines.title, fontsize=11)
    figure.supxlabel(lines.x, fontsize=9)
    figure.supylabel(lines.y, fontsize=9)
    buffer = io.BytesIO()
    FigureCanvasAgg(figure).print_png(buffer)
    return buffer.getvalue()


def _draw_panel(axes: "Axes", lines: Lines, rows: Sequence[Row], series: Sequence[object]) -> None:
    for index, name in enumerate(series):
        of_series = [row for row in rows if row[lines.series] == name]
        for column, style in ((lines.y, "o-"), (f"paper_{lines.y}", "s--")):
            points = [(row[lines.x], row[column]) for row in of_series if row.get(column) is not None]
            fill = "full" if column == lines.y else "none"
            label = f"{name}" if column == lines.y else f"{name}, paper"
            if points or column == lines.y:
                xs, ys = zip(*points, strict=True) if points else ((), ())
                axes.plot(xs, ys, style, color=f"C{index}", fillstyle=fill, markersize=4, linewidth=1, label=label)
    if lines.limit is not None:
        axes.axhline(lines.limit, color="#444444", linewidth=1, linestyle=":")
        axes.set_ylim(0, 2.5 * lines.limit)
    else:
        axes.set_ylim(bottom=0)
    axes.grid(alpha=0.3)
    axes.tick_params(labelsize=8)
    axes.spines[["top", "right"]].set_visible(False)
