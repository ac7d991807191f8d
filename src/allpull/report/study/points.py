"""All points with their runs: what was measured at each, what failed and why, and what --fit-here changed."""

from __future__ import annotations

from collections.abc import Iterator

from allpull.report.html.block import Block, Notice, Part, Points, Table, Text
from allpull.report.printable import short
from allpull.report.study.answer import described
from allpull.report.study.content import StudyReport
from allpull.report.study.times import timed
from allpull.report.wording import ABSENT, NAME_CHARACTERS, percent, spread
from allpull.schema.studied import StudyPoint
from allpull.units import counted

MOST_POINTS = 120
REASON_CHARACTERS = 300


def block(report: StudyReport) -> Block:
    """One row per point, and one per run that did not complete."""
    points = report.study.points
    rows = [
        (
            described(report, point),
            _state(point),
            spread(point.throughput),
            timed(point.epoch_s),
            percent(_accuracy(point)),
        )
        for point in points[:MOST_POINTS]
    ]
    columns = ["Point", "Repeats completed", "Samples/s", "Epoch", "Test top-1"]
    kept = [at for at in range(len(columns)) if at < 3 or any(row[at] != ABSENT for row in rows)]
    parts: list[Part] = []
    if rows:
        cells = [[row[at] for at in kept] for row in rows]
        parts.append(Table(caption="Every point of the study", columns=[columns[at] for at in kept], rows=cells))
    if len(points) > MOST_POINTS:
        parts.append(Text(text=f"This page shows {MOST_POINTS} of {counted(len(points), 'point')}.", quiet=True))
    parts += _failed(report)
    done = sum(point.throughput is not None for point in points)
    return Block(title="The points", lead=f"{done} of {counted(len(points), 'point')} measured.", parts=parts)


def changed(report: StudyReport) -> Block | None:
    """What ``--fit-here`` changed, so that the study fits the machine; None for the full study."""
    rows = [(short(one.what, NAME_CHARACTERS), one.full, one.here) for one in report.study.changed]
    if not rows:
        return None
    table = Table(caption="Changed", columns=("Setting", "Full study", "Here"), rows=rows, text_columns=3)
    return Block(
        title="What was changed to fit here",
        lead="The full study does not fit this machine; these settings differ from it. Its shape can be compared with "
        "what was published, and its absolute numbers cannot.",
        parts=[table],
    )


def _failed(report: StudyReport) -> Iterator[Part]:
    rows = [
        (described(report, point), str(run.repeat), run.state, short(run.reason or ABSENT, REASON_CHARACTERS))
        for point in report.study.points
        for run in point.runs
        if run.state not in {"completed", "missing"}
    ]
    if rows:
        columns = ("Point", "Repeat", "State", "Reason")
        caption = "Runs that did not complete"
        yield Table(caption=caption, columns=columns, rows=rows[:MOST_POINTS], text_columns=4)
    missing = [point for point in report.study.points if any(run.state == "missing" for run in point.runs)]
    if missing:
        yield Notice(
            title=f"{counted(len(missing), 'point')} not complete", items=["allpull study run resumes the study"]
        )
    if report.study.notes:
        yield Points(items=list(report.study.notes[:MOST_POINTS]))


def _state(point: StudyPoint) -> str:
    done = sum(run.state == "completed" for run in point.runs)
    return f"{done} of {len(point.runs)}" if point.runs else ABSENT


def _accuracy(point: StudyPoint) -> float | None:
    known = [run.metrics.accuracy for run in point.runs if run.metrics and run.metrics.accuracy is not None]
    return sum(known) / len(known) if known else None
