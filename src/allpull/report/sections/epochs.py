"""Epoch times, time to solution, each precision over the most exact one, and reading, as tables of the report."""

from __future__ import annotations

from collections.abc import Iterator

from allpull.report import epoch_layout, idle_text
from allpull.report.html.block import Block, Chart, Part, Points, Table, Text
from allpull.report.html.lines import Frame, Line, Mark
from allpull.report.html.lines import chart as line_chart
from allpull.report.wording import ABSENT, labels, percent
from allpull.schema.idle import AcceleratorIdle
from allpull.schema.reported import ScalingReport
from allpull.schema.results import RunMetrics
from allpull.units import counted

TITLE = "Epochs and time to solution"
MOST_READING = 6  # runs whose reading is listed


def block(report: ScalingReport) -> Block | None:
    """A table of epoch times, each precision over the most exact one, and reading; None if there is none of them."""
    runs = report.show.runs
    parts = [*_epochs(runs), *_idle(runs), *_precisions(report), *_reading(runs)]
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


def _idle(runs: list[RunMetrics]) -> Iterator[Part]:
    """How much of an epoch accelerators ran nothing: a sentence for one run, else a row per run, and each epoch."""
    known = [(label, run.idle) for label, run in zip(labels(runs), runs, strict=True) if run.idle is not None]
    known = [(label, idle) for label, idle in known if idle.share is not None]
    if not known:
        return
    if len(runs) == 1:
        yield Points(items=[idle_text.sentence(known[0][1])])
    else:
        rows = [(label, percent(idle.share), idle_text.extremes(idle), idle.source or ABSENT) for label, idle in known]
        columns = ("Run", "Idle share", "Least and most of an epoch", "Source")
        yield Table(caption="Idle accelerators, mean over epochs", columns=columns, rows=rows)
    chart = _idle_chart(known)
    if chart is not None:
        yield chart


def _idle_chart(known: list[tuple[str, AcceleratorIdle]]) -> Chart | None:
    """The idle share of each epoch; None where no run has two epochs with one."""
    lines = [
        Line(
            name=label,
            marks=[
                Mark(x=one.epoch, value=100 * one.share, shown=percent(one.share))
                for one in idle.epochs
                if one.share is not None
            ],
        )
        for label, idle in known
    ]
    return line_chart(
        Frame(
            slug="idle",
            title="Idle share of each epoch",
            caption="The share of an epoch in which an accelerator ran nothing of ours, mean over accelerators.",
            x_title="Epoch",
            y_title="Idle share (%)",
        ),
        lines,
    )


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
