"""A forecast on a terminal: a line per size with its interval, then what the measurements cannot tell."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import groupby

from rich.box import SIMPLE_HEAD
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from allpull.report.printable import printable
from allpull.report.terminal.table import bullets
from allpull.report.wording import ABSENT
from allpull.schema.predicted import PredictedSize, PredictResult
from allpull.schema.results import Interval
from allpull.units import percent, show_count


def predicted(result: PredictResult) -> RenderableType:
    """The forecast of each setup, and what is not known."""
    if result.refused is not None:
        parts: list[RenderableType] = [Text(printable(f"{result.series}: no forecast. {_sentence(result.refused)}"))]
    else:
        sizes = ", ".join(f"{one.ranks:,}" for one in result.calibration)
        parts = [Text(printable(f"{result.series}, from its sizes {sizes}; intervals cover 90 %."))]
        for setup, predictions in groupby(result.predictions, key=lambda one: one.setup):
            parts += [Text(), Text(printable(setup), style="bold"), _table(list(predictions), result.unit)]
    if result.refused_sizes and result.refused is None:
        refused = [f"{one.setup}: {_at(one.ranks)}{one.reason}" for one in result.refused_sizes]
        parts += [Text(), Text("Not predicted:"), bullets(refused)]
    if lines := list(_unknown(result)):
        parts += [Text(), Text("What these measurements cannot tell:"), bullets(lines)]
    if result.notes:
        parts += [Text(), bullets(result.notes)]
    return Group(*parts)


def _table(predictions: list[PredictedSize], unit: str) -> Table:
    table = Table(box=SIMPLE_HEAD, pad_edge=False, show_edge=False, collapse_padding=True)
    for title in ("ranks", unit, "90 % interval", "efficiency", "held back", "error"):
        table.add_column(title, justify="right", no_wrap=True)
    for one in predictions:
        error = ABSENT if one.measured is None else f"{one.throughput.value / one.measured - 1:+.1%}"
        table.add_row(
            f"{one.ranks:,}",
            show_count(one.throughput.value),
            _bounds(one.throughput),
            percent(one.efficiency.value),
            ABSENT if one.measured is None else show_count(one.measured),
            error,
        )
    return table


def _at(ranks: int | None) -> str:
    return "" if ranks is None else f"{ranks:,} ranks: "


def _bounds(interval: Interval) -> str:
    assert interval.low is not None
    assert interval.high is not None
    return f"{show_count(interval.low)} to {show_count(interval.high)}"


def _unknown(result: PredictResult) -> Iterator[str]:
    yield from result.unidentified
    if result.next_measurement is not None:
        yield f"measure next, to narrow the interval most: {result.next_measurement}"


def _sentence(text: str) -> str:
    return f"{text[:1].upper()}{text[1:]}."
