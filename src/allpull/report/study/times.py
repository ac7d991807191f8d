"""How long does it take? Time of an epoch and time to solution against ranks, with published ones beside."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from allpull.report.html.block import Block, Part, Table
from allpull.report.html.chart import time_unit
from allpull.report.study.content import StudyReport
from allpull.report.study.drawing import Frame, Line, Mark, chart
from allpull.report.study.lines import Series, published_name, series
from allpull.report.study.scaling import MOST_ROWS
from allpull.report.wording import ABSENT, ranged
from allpull.schema.results import Interval
from allpull.schema.studied import PublishedPoint, PublishedSeries, StudyPoint
from allpull.units import counted, show_time

TITLE = "Time of an epoch, time to solution"


def block(report: StudyReport) -> Block | None:
    """Charts and a table of the times; None if none was measured."""
    everything = series(report.study)
    published = report.study.published
    parts: list[Part] = []
    for slug, title, caption, own, stated in (
        (
            "epoch-time",
            "Time of an epoch against ranks",
            "Seconds of an epoch with all its parts: training, evaluation, checkpoints.",
            lambda point: point.epoch_s,
            lambda point: point.epoch_time_s,
        ),
        (
            "time-to-solution",
            "Time to solution against ranks",
            "Seconds from the start of the training to its end. Compare it only with trainings of as many epochs.",
            lambda point: point.time_to_solution_s,
            lambda point: point.train_time_s,
        ),
    ):
        drawn = _chart(Frame(slug=slug, title=title, caption=caption, x_title="Ranks", y_title="s"), everything, published,
                       own, stated)  # fmt: skip
        parts += [drawn] if drawn is not None else []
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
    columns = ("Series", "Ranks", "Epoch", "Speed-up by epochs", "Time to solution")
    parts.append(Table(caption="Times with 95 % intervals", columns=columns, rows=rows[:MOST_ROWS]))
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


def _lead(report: StudyReport) -> str:
    known = [(point.epoch_s.value, point) for point in report.study.points if point.epoch_s is not None]
    if not known:
        return "From the start of the training to its end."
    _, fastest = min(known, key=lambda pair: pair[0])
    return f"The shortest epoch takes {timed(fastest.epoch_s)}, on {counted(fastest.ranks, 'rank')}."


def _chart(
    frame: Frame,
    everything: Sequence[Series],
    published: Sequence[PublishedSeries],
    own: Callable[[StudyPoint], Interval | None],
    stated: Callable[[PublishedPoint], float | None],
) -> Part | None:
    known = [
        (one.name, [(point, value) for point in one.points if (value := own(point)) is not None and value.value > 0])
        for one in everything
        if one.is_scaled
    ]
    beside = [
        (
            published_name(one),
            [(point, value) for point in one.points if (value := stated(point)) is not None and value > 0],
        )
        for one in published
    ]
    longest_s = max((value.value for _, pairs in known for _, value in pairs), default=0.0)
    factor, unit = time_unit(max([longest_s, *(value for _, pairs in beside for _, value in pairs)]))
    lines = [Line(name=name, marks=[_mark(point, value, factor) for point, value in pairs]) for name, pairs in known]
    for name, pairs in beside:
        marks = [
            Mark(x=point.ranks, value=value * factor, shown=show_time(value), note=point.gpu)
            for point, value in sorted(pairs, key=lambda pair: pair[0].ranks)
        ]
        is_curve = len({mark.x for mark in marks}) == len(marks)
        lines.append(Line(name=name, marks=marks if is_curve else [], is_published=True))
    titled = Frame(
        slug=frame.slug,
        title=frame.title,
        caption=frame.caption + (" Open diamonds are published." if any(pairs for _, pairs in beside) else ""),
        x_title="Ranks",
        y_title=f"Time ({unit})",
    )
    return chart(titled, lines)


def _mark(point: StudyPoint, interval: Interval, factor: float) -> Mark:
    return Mark(
        x=point.ranks,
        value=interval.value * factor,
        low=None if interval.low is None else interval.low * factor,
        high=None if interval.high is None else interval.high * factor,
        shown=timed(interval),
        note=counted(point.hosts, "host"),
    )
