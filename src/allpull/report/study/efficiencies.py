"""The POP table of each series, a column per size, with the published efficiencies beside it."""

from __future__ import annotations

from collections.abc import Iterator

from allpull.report.html.block import Block, Part, Table, Text, Tone
from allpull.report.pop_layout import MAPPING, USEFUL, Column, cell, lines
from allpull.report.sections.pop import tone
from allpull.report.study.content import StudyReport
from allpull.report.study.lines import Series, series
from allpull.units import counted, percent

TITLE = "POP efficiencies"
MOST_SERIES = 8
MOST_SIZES = 8


def block(report: StudyReport) -> Block | None:
    """One table per series with efficiencies, then the published ones; None if none was measured."""
    shown = [(one, columns) for one in series(report.study) if (columns := _columns(report, one))]
    if not shown:
        return None
    parts: list[Part] = [_table(one, columns) for one, columns in shown[:MOST_SERIES]]
    parts += _published(report)
    if len(shown) > MOST_SERIES:
        parts.append(Text(text=f"This page shows {MOST_SERIES} of {len(shown)} series.", quiet=True))
    parts += [Text(text=f"{note}.", quiet=True) for note in (USEFUL, MAPPING)]
    largest = max((column for _, columns in shown for column in columns), key=lambda column: column.ranks)
    lead = f"{counted(largest.ranks, 'rank').capitalize()} compute {percent(largest.pop.parallel)} of the time."
    return Block(title=TITLE, lead=lead, parts=parts)


def _columns(report: StudyReport, one: Series) -> list[Column]:
    return [
        Column(label=counted(point.ranks, "rank"), ranks=point.ranks, pop=report.pop[point.id])
        for point in one.points
        if point.id in report.pop
    ][:MOST_SIZES]


def _table(one: Series, columns: list[Column]) -> Table:
    rows: list[tuple[str, ...]] = []
    tones: dict[tuple[int, int], Tone] = {}
    for name, values in lines(columns):
        tones |= {(len(rows), 1 + at): tone(value) for at, value in enumerate(values) if value is not None}
        rows.append((name, *(cell(value) for value in values)))
    rows.append(("Steps", *(f"{column.pop.steps:,}" for column in columns)))
    head = ("Efficiency", *(column.label for column in columns))
    return Table(caption=f"{one.name}: of the first repeat of each size", columns=head, rows=rows, tones=tones)


def _published(report: StudyReport) -> Iterator[Table]:
    rows = [
        (
            one.series,
            f"{point.ranks:,}",
            *(cell(value) for value in (point.parallel_efficiency, point.load_balance, point.communication_efficiency)),
        )
        for one in report.study.published
        for point in one.points
        if point.parallel_efficiency is not None
    ]
    if rows:
        columns = ("Series", "Ranks", "Parallel efficiency", "Load balance", "Communication efficiency")
        yield Table(caption="As published", columns=columns, rows=rows)
