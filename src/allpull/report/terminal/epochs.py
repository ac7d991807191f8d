"""Epoch times and precisions of several runs on a terminal, and the reading of one over its time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import ceil

from rich.box import SIMPLE_HEAD
from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

from allpull.report import epoch_layout
from allpull.report.wording import ABSENT, rate
from allpull.schema.reading import IoOverTime
from allpull.schema.results import ShowResult
from allpull.units import show_time

BARS = "▁▂▃▄▅▆▇█"
MOST_BARS = 40
LEFT_OUT = ("other", "start", "checkpoint", "evaluation", "to solution", "training")
"""Columns of epoch times, those first that a narrow terminal misses least."""
UNLIMITED = 1000  # columns


def epoch_table(show: ShowResult) -> RenderableType | None:
    """Seconds of an epoch by part, one line per run; None if no run has a complete epoch."""
    columns, rows = epoch_layout.rows(show.runs)
    return EpochTable(columns, rows) if rows else None


@dataclass(frozen=True, slots=True)
class EpochTable:
    """A line per run: where they do not fit, the smaller parts of an epoch are left out."""

    columns: Sequence[str]
    rows: Sequence[Sequence[str]]

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        kept = list(range(len(self.columns)))
        for part in (None, *LEFT_OUT):
            kept = [at for at in kept if self.columns[at] != part]
            table = _table([self.columns[at] for at in kept], [[row[at] for at in kept] for row in self.rows])
            if Measurement.get(console, options.update(width=UNLIMITED), table).maximum <= options.max_width:
                break
        yield table


def precision_table(show: ShowResult) -> RenderableType | None:
    """Each precision over the most exact one, a line per size; None if there is one precision only."""
    rows = epoch_layout.precision_rows(show.precisions)
    return _table(["throughput", "ranks", "ratio", "95 % interval"], rows) if rows else None


def reading_over_time(series: IoOverTime) -> str:
    """Bytes/s over time as a row of bars, with its length and its largest value; empty if nothing was read.

    >>> whole = dict.fromkeys(("reads_per_s", "storage_read_bytes_per_s"), [None, None])
    >>> rates = {"begin_s": [0, 1], "end_s": [1, 2], "read_bytes_per_s": [1e9, 2e9], "ranks": [1, 1], **whole}
    >>> reading_over_time(IoOverTime(**rates))
    'Reading over 2 s: ▄█ (the highest bar is 2 GB/s)'
    """
    length_s, most = series.end_s[-1], max((rate or 0.0 for rate in series.read_bytes_per_s), default=0.0)
    if most <= 0 or length_s <= 0:
        return ""
    edges = [length_s * place / MOST_BARS for place in range(MOST_BARS + 1)]
    if len(series.begin_s) < MOST_BARS:
        edges = [series.begin_s[0], *series.end_s]
    means = [_mean(series, begin, end) for begin, end in pairwise(edges)]
    highest = max((mean or 0.0 for mean in means), default=0.0)
    bars = "".join(" " if mean is None else BARS[max(0, ceil(mean / highest * 8) - 1)] for mean in means)
    return f"Reading over {show_time(length_s)}: {bars} (the highest bar is {rate(highest)})"


def _mean(series: IoOverTime, begin_s: float, end_s: float) -> float | None:
    """The mean rate between two moments; None where nothing was measured."""
    parts = [
        (max(0.0, min(end, end_s) - max(begin, begin_s)), rate)
        for begin, end, rate in zip(series.begin_s, series.end_s, series.read_bytes_per_s, strict=True)
        if rate is not None
    ]
    time_s = sum(length for length, _ in parts)
    return sum(length * rate for length, rate in parts) / time_s if time_s > 0 else None


def _table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> Table:
    result = Table(box=SIMPLE_HEAD, pad_edge=False, show_edge=False, collapse_padding=True)
    for place, name in enumerate(columns):
        result.add_column(name, justify="right" if place else "left", overflow="fold", style=None if place else "bold")
    for row in rows:
        result.add_row(*(Text(cell or ABSENT) for cell in row))
    return result
