"""Epoch times, time to solution, each precision over the most exact one, and reading, as tables of the report."""

from __future__ import annotations

from collections.abc import Iterator

from allpull.report import epoch_layout
from allpull.report.html.block import Block, Part, Points, Table, Text
from allpull.schema.reported import ScalingReport
from allpull.schema.results import RunMetrics
from allpull.units import counted

TITLE = "Epochs and time to solution"
MOST_READING = 6  # runs whose reading is listed


def block(report: ScalingReport) -> Block | None:
    """A table of epoch times, each precision over the most exact one, and reading; None if there is none of them."""
    runs = report.show.runs
    parts = [*_epochs(runs), *_precisions(report), *_reading(runs)]
    if not parts:
        return None
    known = sum(run.epoch_s is not None for run in runs)
    lead = f"{counted(known, 'run')} with complete epochs." if known else "No epoch is complete."
    if len(runs) == 1:
        lead = next(iter(epoch_layout.sentences(runs[0])), lead)
    return Block(title=TITLE, lead=lead, parts=parts)


def _epochs(runs: list[RunMetrics]) -> Iterator[Part]:
    columns, rows = epoch_layout.rows(runs)
    if rows:
        titles = [name[0].upper() + name[1:] for name in columns]
        yield Table(caption="Mean epoch, its parts, and the whole training", columns=titles, rows=rows)
        yield Text(text=epoch_layout.PART_TITLES, quiet=True)
    if len(runs) == 1:
        sentences = list(epoch_layout.sentences(runs[0]))[1:]
        if rows and sentences:
            yield Points(items=sentences)


def _precisions(report: ScalingReport) -> Iterator[Part]:
    rows = epoch_layout.precision_rows(report.show.precisions)
    if rows:
        columns = ["Throughput", "Ranks", "Ratio", "95 % interval"]
        yield Table(caption="Each precision over the most exact one", columns=columns, rows=rows)


def _reading(runs: list[RunMetrics]) -> Iterator[Part]:
    for run in runs[-MOST_READING:]:
        rows = epoch_layout.window_rows(run.io.windows)
        if rows:
            yield Table(
                caption=f"Reading of all ranks, {counted(run.ranks, 'rank')}",
                columns=["Window", "Read", "Reads/s", "From storage", "Per sample", "Reads per sample"],
                rows=rows,
            )
