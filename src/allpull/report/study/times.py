"""How long does it take? Time of an epoch and time to solution against ranks, with published ones beside."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from allpull.report.html.block import Block, Part, Table
from allpull.report.html.chart import time_unit
from allpull.report.html.lines import Frame, Line, Mark, chart
from allpull.report.study.content import StudyReport
from allpull.report.study.lines import Series, published_name, series
from allpull.report.study.scaling import MOST_ROWS
from allpull.report.wording import ABSENT, percent, ranged
from allpull.schema.results import Interval
from allpull.schema.studied import PublishedPoint, PublishedSeries, StudyPoint
from allpull.study.epochs import epoch_of, may_be_cut, same_epochs
from allpull.units import counted, show_time

TITLE = "Time of an epoch, time to solution"
PARTS = ("training", "evaluation", "checkpoint", "start", "other")


@dataclass(frozen=True, slots=True, kw_only=True)
class Duration:
    """A time that is drawn against ranks: of a measured point, and of a published one."""

    slug: str
    title: str
    caption: str
    measured: Callable[[StudyPoint], Interval | None]
    published: Callable[[PublishedPoint], float | None]


DURATIONS = (
    Duration(
        slug="epoch-time",
        title="Time of an epoch against ranks",
        caption="An epoch with all its parts: training, evaluation, checkpoints.",
        measured=lambda point: point.epoch_s,
        published=lambda point: point.epoch_time_s,
    ),
    Duration(
        slug="time-to-solution",
        title="Time to solution against ranks",
        caption="From the begin of the first epoch to the end of the last. Compare trainings of as many epochs only.",
        measured=lambda point: point.time_to_solution_s,
        published=lambda point: point.train_time_s,
    ),
)


def block(report: StudyReport) -> Block | None:
    """Charts and tables of the times; None if none was measured."""
    everything = series(report.study)
    rows = [
        (
            one.name,
            f"{point.ranks:,}",
            timed(point.epoch_s),
            ranged(point.epoch_speedup),
            timed(point.time_to_solution_s),
        )
        for one in everything
        for point in one.points
        if point.epoch_s is not None or point.time_to_solution_s is not None
    ]
    if not rows:
        return None
    charts = (_chart(duration, everything, report.study.published) for duration in DURATIONS)
    parts: list[Part] = [part for part in charts if part is not None]
    columns = ("Series", "Ranks", "Epoch", "Speed-up by epochs", "Time to solution")
    parts.append(Table(caption="Times with 95 % intervals", columns=columns, rows=rows[:MOST_ROWS]))
    parts += _of_parts(everything)
    return Block(title=TITLE, lead=_lead(report), parts=parts)


def timed(interval: Interval | None) -> str:
    """A time with its 95 % interval.

    >>> timed(Interval(value=12.0, low=11.5, high=12.5)), timed(None)
    ('12 s (11.5 s to 12.5 s)', '–')
    """
    if interval is None:
        return ABSENT
    if interval.low is None or interval.high is None:
        return show_time(interval.value)
    return f"{show_time(interval.value)} ({show_time(interval.low)} to {show_time(interval.high)})"


def _of_parts(everything: Sequence[Series]) -> Iterator[Table]:
    pairs = [
        (one, point, epoch) for one in everything for point in one.points if (epoch := epoch_of(point)) is not None
    ]
    rows = [
        (
            one.name,
            f"{point.ranks:,}",
            *(show_time(getattr(epoch, name)) for name in PARTS),
            percent(1 - epoch.training / epoch.total if epoch.total > 0 else None),
        )
        for one, point, epoch in pairs
    ]
    if rows:
        columns = ("Series", "Ranks", *(name.capitalize() for name in PARTS), "Not training")
        yield Table(caption="Parts of an epoch, of the first repeat", columns=columns, rows=rows[:MOST_ROWS])


def _lead(report: StudyReport) -> str:
    known = [(point.epoch_s.value, point) for point in report.study.points if point.epoch_s is not None]
    if may_be_cut(report.study.points):
        return "Each run has one epoch, which ended with its program, so it may not be a whole one."
    if not same_epochs(report.study.points):
        return "An epoch has as many steps at every size, so more ranks train more samples in it."
    if not known:
        return "From the begin of the first epoch to the end of the last."
    _, fastest = min(known, key=lambda pair: pair[0])
    return f"The shortest epoch takes {timed(fastest.epoch_s)}, on {counted(fastest.ranks, 'rank')}."


def _chart(duration: Duration, everything: Sequence[Series], published: Sequence[PublishedSeries]) -> Part | None:
    measured = [
        (one.name, [(point, time) for point in one.points if (time := duration.measured(point)) and time.value > 0])
        for one in everything
        if one.is_scaled
    ]
    stated = [
        (published_name(one), [(point, time_s) for point in one.points if (time_s := duration.published(point))])
        for one in published
    ]
    times_s = [time.value for _, pairs in measured for _, time in pairs]
    factor, unit = time_unit(max([0.0, *times_s, *(time_s for _, pairs in stated for _, time_s in pairs)]))
    lines = [Line(name=name, marks=[_mark(point, time, factor) for point, time in pairs]) for name, pairs in measured]
    for name, given in stated:
        marks = [
            Mark(x=point.ranks, value=time_s * factor, shown=show_time(time_s), note=point.gpu)
            for point, time_s in sorted(given, key=lambda pair: pair[0].ranks)
        ]
        is_curve = len({mark.x for mark in marks}) == len(marks)
        lines.append(Line(name=name, marks=marks if is_curve else [], is_published=True))
    beside = " Open diamonds are published." if any(line.is_published and line.marks for line in lines) else ""
    frame = Frame(
        slug=duration.slug,
        title=duration.title,
        caption=f"{duration.caption}{beside}",
        x_title="Ranks",
        y_title=f"Time ({unit})",
    )
    return chart(frame, lines)


def _mark(point: StudyPoint, interval: Interval, factor: float) -> Mark:
    return Mark(
        x=point.ranks,
        value=interval.value * factor,
        low=None if interval.low is None else interval.low * factor,
        high=None if interval.high is None else interval.high * factor,
        shown=timed(interval),
        note=counted(point.hosts, "host"),
    )
