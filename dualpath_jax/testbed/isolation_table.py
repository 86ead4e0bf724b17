"""What the isolation measurement says: times of an exchange as ratios within one run, and what KV got."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

CONDITIONS = ("alone", "lanes", "lanes off")
"""No KV; KV with the lanes; KV with all in one class."""


@dataclass(frozen=True)
class Measured:
    """One condition, once: times of single exchanges in seconds, and the bytes that each host sent in `seconds`."""

    times_s: Sequence[float]
    seconds: float
    kv_bytes: float
    """That arrived at the other host."""
    model_bytes: float
    """Counted by the kernel in the model's class; with the lanes off that is all."""


@dataclass(frozen=True)
class Row:
    """One condition over all rounds."""

    median_ms: float
    p99_ms: float
    exchanges: int
    kv_bytes_per_s: float
    kv_share_of_rest: float | None
    """Of what the collectives leave of the link; None: not known."""


@dataclass(frozen=True)
class IsolationTable:
    """A row for each condition."""

    rows: Mapping[str, Row]

    def ratios(self, condition: str) -> tuple[float, float]:
        """Median and 99th percentile, over those of the exchange alone."""
        mine, alone = self.rows[condition], self.rows["alone"]
        return mine.median_ms / alone.median_ms, mine.p99_ms / alone.p99_ms

    def figures(self) -> dict[str, dict[str, float | None]]:
        """The same as JSON."""
        return {
            name: {**vars(row), "median_over_alone": self.ratios(name)[0], "p99_over_alone": self.ratios(name)[1]}
            for name, row in self.rows.items()
        }

    def lines(self) -> list[str]:
        """The table."""
        head = ("", "median ms", "p99 ms", "median / alone", "p99 / alone", "KV MB/s", "KV of the rest %", "exchanges")
        cells = [head, *(self._cells(name, row) for name, row in self.rows.items())]
        widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
        return ["  ".join(cell.rjust(width) for cell, width in zip(line, widths, strict=True)) for line in cells]

    def _cells(self, name: str, row: Row) -> tuple[str, ...]:
        median, p99 = self.ratios(name)
        share = "-" if row.kv_share_of_rest is None else f"{100 * row.kv_share_of_rest:.1f}"
        kv = f"{row.kv_bytes_per_s / 1e6:.2f}"
        return (
            name,
            f"{row.median_ms:.2f}",
            f"{row.p99_ms:.2f}",
            f"{median:.2f}",
            f"{p99:.2f}",
            kv,
            share,
            str(row.exchanges),
        )


def isolation_table(measured: Mapping[str, Sequence[Measured]], link_bytes_per_s: float) -> IsolationTable:
    """The rounds of each condition together."""
    return IsolationTable({name: _row(name, rounds, link_bytes_per_s) for name, rounds in measured.items()})


def _row(name: str, rounds: Sequence[Measured], link_bytes_per_s: float) -> Row:
    times_ms = 1e3 * np.concatenate([one.times_s for one in rounds])
    seconds = sum(one.seconds for one in rounds)
    kv, model = sum(one.kv_bytes for one in rounds), sum(one.model_bytes for one in rounds)
    left = link_bytes_per_s * seconds - model
    return Row(
        median_ms=float(np.median(times_ms)),
        p99_ms=float(np.percentile(times_ms, 99)),
        exchanges=len(times_ms),
        kv_bytes_per_s=kv / seconds,
        kv_share_of_rest=kv / left if name == "lanes" else None,
    )
