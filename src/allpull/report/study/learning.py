"""Does it learn as well as the published runs? Accuracy against epochs, published curves under the measured ones."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from allpull.report.html.block import Block, Part, Text
from allpull.report.html.page_limits import evenly
from allpull.report.printable import short
from allpull.report.sections.learning import curve_chart, curve_rows
from allpull.report.study.answer import described
from allpull.report.study.content import StudyReport
from allpull.report.study.lines import LABEL_CHARACTERS
from allpull.report.wording import joined, percent
from allpull.schema.results import Curve
from allpull.units import counted

TITLE = "How well it learns"
SCORES = {"test_top1": "top-1", "test_top5": "top-5"}
MOST_MEASURED, MOST_PUBLISHED = 4, 3


def block(report: StudyReport) -> Block | None:
    """Top-1 and top-5 of the points with the most ranks, and of published runs; None if no accuracy was measured."""
    measured = list(_measured(report))
    if not measured:
        return None
    published = list(_published(report))
    kept = [measured[at] for at in evenly(len(measured), MOST_MEASURED)]
    beside = [published[at] for at in evenly(len(published), MOST_PUBLISHED)]
    parts: list[Part] = []
    for name, score in SCORES.items():
        rows = [*curve_rows(kept, {name: "measured"}, 100.0), *curve_rows(beside, {name: "published"}, 100.0)]
        if any(row["curve"] == "measured" for row in rows):
            parts.append(curve_chart(score, f"Test {score} against epochs", f"Test {score} (%)", rows))
    if len(kept) < len(measured):
        parts.append(Text(text=f"Drawn: {len(kept)} of {len(measured)} points, for legibility.", quiet=True))
    last = [f"{percent(top1)} with {name}" for name, curves in kept if (top1 := _last(curves)) is not None]
    lead = f"Top-1 in the last evaluation: {joined(last)}." if last else "Accuracy as training went on."
    return Block(title=TITLE, lead=lead, parts=parts)


def _measured(report: StudyReport) -> Iterator[tuple[str, list[Curve]]]:
    for point in report.study.points:
        detail = report.details.get(point.id)
        known = [one for one in detail.curves if one.name in SCORES and any(one.values)] if detail else []
        if known:
            yield short(described(report, point), LABEL_CHARACTERS), known


def _published(report: StudyReport) -> Iterator[tuple[str, list[Curve]]]:
    for series in report.study.published:
        for run in series.curves:
            epochs = [float(one.epoch) for one in run.epochs]
            curves = [
                Curve(name=name, epochs=epochs, values=[getattr(one, name) for one in run.epochs]) for name in SCORES
            ]
            yield short(f"{series.series}, {counted(run.ranks, 'rank')}", LABEL_CHARACTERS), curves


def _last(curves: Sequence[Curve]) -> float | None:
    """The last top-1."""
    return next(
        (value for one in curves if one.name == "test_top1" for value in reversed(one.values) if value is not None),
        None,
    )
