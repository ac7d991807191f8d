"""Does more hardware train faster? Throughput, speed-up and efficiency against ranks, with published ones beside."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from allpull.analyse.published_scaling import rate, relative
from allpull.report.html.block import Block, Part, Points, Table, Text, Tone
from allpull.report.html.lines import Frame, Line, Mark, chart
from allpull.report.printable import short
from allpull.report.study.content import StudyReport
from allpull.report.study.lines import Series, published_name, series
from allpull.report.wording import ABSENT, joined, percent, ranged, spread, times
from allpull.schema.results import Interval, Scaling
from allpull.schema.studied import PublishedPoint, PublishedSeries, StudyPoint
from allpull.units import counted, show_count, show_time

ACCEPTABLE = 0.8  # the POP Centre's mark of acceptable efficiency
MOST_ROWS = 60
VALUE_CHARACTERS = 60
CAVEAT_CHARACTERS = 400
LEADS: dict[Scaling | None, str] = {
    "weak": "Weak scaling: every rank keeps its batch, so more ranks make a larger batch.",
    "strong": "Strong scaling: one fixed batch, split over more ranks.",
    "mixed": "The batch and the share of a rank both change with the ranks.",
    None: "Samples per second of all ranks, for each number of ranks.",
}
TITLES: dict[str | None, str] = {"weak": "Weak scaling", "strong": "Strong scaling"}


def weak(report: StudyReport) -> Block | None:
    """Series in which a rank keeps its batch, and those of unknown or mixed scaling; None where there are none."""
    scaled = [one for one in series(report.study) if one.is_scaled and one.scaling != "strong"]
    kinds = {one.scaling for one in scaled}
    return _block(report, scaled, kinds.pop() if len(kinds) == 1 else None, report.study.published)


def strong(report: StudyReport) -> Block | None:
    """Series of one global batch; published series are beside them where there is no weak scaling."""
    everything = series(report.study)
    scaled = [one for one in everything if one.is_scaled and one.scaling == "strong"]
    is_alone = not any(one.is_scaled and one.scaling != "strong" for one in everything)
    return _block(report, scaled, "strong", report.study.published if is_alone else [])


def _block(
    report: StudyReport, scaled: Sequence[Series], scaling: Scaling | None, published: Sequence[PublishedSeries]
) -> Block | None:
    if not any(_throughputs(one) for one in scaled):
        return None
    prefix = f"{scaling}-" if scaling in {"weak", "strong"} else ""
    charts = [
        _throughput(f"{prefix}scaling", scaled, published),
        _speedup(f"{prefix}speedup", scaled, published),
        _efficiency(f"{prefix}efficiency", scaled, published),
    ]
    parts: list[Part] = [part for part in charts if part is not None]
    parts.append(_table(scaled))
    tables = list(_published_table(published))
    parts += tables
    if report.study.changed and published:
        parts.append(Text(text="This study was fitted to this machine: compare shapes, not heights.", quiet=True))
    return Block(title=TITLES.get(scaling, "Scaling"), lead=LEADS[scaling], parts=parts)


def _title(slug: str, title: str) -> str:
    kind = slug.partition("-")[0]
    return f"{TITLES[kind]}: {title[0].lower()}{title[1:]}" if kind in TITLES else title


def _throughputs(one: Series) -> list[StudyPoint]:
    return [point for point in one.points if point.throughput is not None and point.throughput.value > 0]


def _throughput(slug: str, scaled: Sequence[Series], published: Sequence[PublishedSeries]) -> Part | None:
    lines = [Line(name=one.name, marks=[_rate_mark(point) for point in _throughputs(one)]) for one in scaled]
    for one in published:
        marks = [
            Mark(x=point.ranks, value=value, shown=f"{show_count(value)} images/s", note=_caveat(point))
            for point in sorted(one.points, key=lambda own: own.ranks)
            if (value := rate(point)) is not None
        ]
        is_curve = len({mark.x for mark in marks}) == len(marks)
        lines.append(Line(name=published_name(one), marks=marks if is_curve else [], is_published=True))
    ideal = [ends for one in scaled[:3] if (ends := _ideal(_throughputs(one))) is not None]
    beside = " Open diamonds are published." if any(line.is_published and line.marks for line in lines) else ""
    return chart(
        Frame(
            slug=slug,
            title=_title(slug, "Throughput against ranks"),
            caption="A bar is the 95 % interval of a point, often smaller than the point. The dashed line is perfect "
            f"scaling from the smallest point of a series.{beside}",
            x_title="Ranks",
            y_title="Samples per second",
            ideal=ideal,
        ),
        lines,
    )


def _rate_mark(point: StudyPoint) -> Mark:
    rate_ = point.throughput
    assert rate_ is not None
    hosts = f"{counted(point.hosts, 'host')}" + (f", epoch {show_time(point.epoch_s.value)}" if point.epoch_s else "")
    return Mark(
        x=point.ranks,
        value=rate_.value,
        low=rate_.low,
        high=rate_.high,
        shown=f"{spread(rate_)} samples/s",
        note=hosts,
    )


def _ideal(points: Sequence[StudyPoint]) -> tuple[tuple[float, float], tuple[float, float]] | None:
    """The ends of the line on which doubling the ranks doubles the throughput of the smallest point."""
    if len(points) < 2 or points[0].throughput is None:
        return None
    per_rank = points[0].throughput.value / points[0].ranks
    return (points[0].ranks, points[0].throughput.value), (points[-1].ranks, per_rank * points[-1].ranks)


def _speedup(slug: str, scaled: Sequence[Series], published: Sequence[PublishedSeries]) -> Part | None:
    lines = []
    for one in scaled:
        known = [point for point in one.points if point.speedup is not None]
        if known:
            marks = [_ratio_mark(point.ranks / known[0].ranks, point, point.speedup) for point in known]
            lines.append(Line(name=one.name, marks=marks))
    for own in published:
        marks = [
            Mark(
                x=one.times_ranks,
                value=one.speedup,
                shown=times(one.speedup),
                note=f"{counted(one.point.ranks, 'rank')}{_semicolon(_caveat(one.point))}",
            )
            for one in relative(own)
        ]
        lines.append(Line(name=published_name(own), marks=marks, is_published=True))
    largest = max((float(mark.x) for line in lines for mark in line.marks if not isinstance(mark.x, str)), default=1.0)
    return chart(
        Frame(
            slug=slug,
            title=_title(slug, "Speed-up over the smallest size"),
            caption="Throughput over that of the smallest size of the same series, against how many times as many "
            "ranks there are. On the dashed line twice the ranks train twice as fast.",
            x_title="Ranks ÷ ranks of the smallest size",
            y_title="Speed-up",
            ideal=[((1.0, 1.0), (largest, largest))],
        ),
        lines,
    )


def _ratio_mark(x: float, point: StudyPoint, interval: Interval | None) -> Mark:
    assert interval is not None
    return Mark(
        x=x,
        value=interval.value,
        low=interval.low,
        high=interval.high,
        shown=ranged(interval),
        note=f"{counted(point.ranks, 'rank')} on {counted(point.hosts, 'host')}",
    )


def _efficiency(slug: str, scaled: Sequence[Series], published: Sequence[PublishedSeries]) -> Part | None:
    lines = []
    for one in scaled:
        marks = [
            Mark(
                x=point.ranks,
                value=100 * own.value,
                low=None if own.low is None else 100 * own.low,
                high=None if own.high is None else 100 * own.high,
                shown=bounds(own),
                note=counted(point.hosts, "host"),
            )
            for point in one.points
            if (own := point.efficiency) is not None
        ]
        lines.append(Line(name=one.name, marks=marks))
    for published_one in published:
        marks = [
            Mark(
                x=own.point.ranks,
                value=100 * own.efficiency,
                shown=percent(own.efficiency),
                note=_caveat(own.point),
            )
            for own in relative(published_one)
        ]
        lines.append(Line(name=published_name(published_one), marks=marks, is_published=True))
    return chart(
        Frame(
            slug=slug,
            title=_title(slug, "Efficiency against ranks"),
            caption="Speed-up divided by the ideal one, relative to the smallest size of each series. The lower dashed "
            "line is 80 %, which the POP Centre takes as acceptable.",
            x_title="Ranks",
            y_title="Efficiency (%)",
            rules=((100.0, "ideal"), (100 * ACCEPTABLE, "80 %")),
        ),
        lines,
    )


def bounds(interval: Interval | None) -> str:
    """A share in percent with its 95 % interval.

    >>> bounds(Interval(value=0.8, low=0.75, high=0.85)), bounds(None)
    ('80.0 % (75.0 to 85.0 %)', '–')
    """
    if interval is None or interval.low is None or interval.high is None:
        return percent(None if interval is None else interval.value)
    return f"{percent(interval.value)} ({percent(interval.low).removesuffix(' %')} to {percent(interval.high)})"


def _table(scaled: Sequence[Series]) -> Table:
    rows = [
        (
            one.name,
            f"{point.ranks:,}",
            f"{point.hosts:,}",
            spread(point.throughput),
            ranged(point.speedup),
            bounds(point.efficiency),
        )
        for one in scaled
        for point in one.points
    ]
    efficiencies = [point.efficiency for one in scaled for point in one.points][:MOST_ROWS]
    tones: dict[tuple[int, int], Tone] = {
        (row, 5): "good" if own.value >= ACCEPTABLE else "poor"
        for row, own in enumerate(efficiencies)
        if own is not None
    }
    return Table(
        caption="Measured, with 95 % intervals",
        columns=("Series", "Ranks", "Hosts", "Samples/s", "Speed-up", "Efficiency"),
        rows=rows[:MOST_ROWS],
        tones=tones,
    )


def _published_table(published: Sequence[PublishedSeries]) -> Iterator[Part]:
    rows = [row for one in published for row in _published_rows(one)]
    if rows:
        columns = ("Series", "Ranks", "Images/s", "Epoch", "Training", "Speed-up")
        caption = "Published, in the same units; each speed-up is over the smallest size of its series"
        yield Table(caption=caption, columns=columns, rows=rows[:MOST_ROWS])
        yield Points(items=[_source(one) for one in published])


def _published_rows(one: PublishedSeries) -> Iterator[tuple[str, ...]]:
    speedups = {id(own.point): own.speedup for own in relative(one)}
    for point in sorted(one.points, key=lambda own: own.ranks):
        yield (
            one.series,
            f"{point.ranks:,}",
            ABSENT if point.images_per_s is None else show_count(point.images_per_s),
            ABSENT if point.epoch_time_s is None else show_time(point.epoch_time_s),
            ABSENT if point.train_time_s is None else show_time(point.train_time_s),
            times(speedups.get(id(point))),
        )


def _source(one: PublishedSeries) -> str:
    hardware = joined(list(dict.fromkeys(short(point.gpu, VALUE_CHARACTERS) for point in one.points)))
    caveats = dict.fromkeys(_caveat(point) for point in one.points if point.caveat)
    read_with_care = f" Caveats: {'; '.join(caveats)}." if caveats else ""
    return f"{one.series}: {one.model}, {one.framework}, {hardware}. Source: {one.source}.{read_with_care}"


def _caveat(point: PublishedPoint) -> str:
    return short(point.caveat or "", CAVEAT_CHARACTERS)


def _semicolon(text: str) -> str:
    return f"; {text}" if text else ""
