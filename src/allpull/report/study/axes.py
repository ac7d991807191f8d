"""What does one setting change? Throughput against each parameter that was varied, and ratios between named values."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from allpull.analyse.published_scaling import rate
from allpull.report.html.block import Block, Chart, Part, Table
from allpull.report.html.lines import Frame, Line, Mark, chart
from allpull.report.printable import short
from allpull.report.study.content import StudyReport
from allpull.report.study.lines import Axis, AxisLine, axes, plain_name, plain_value, published_name, setting
from allpull.report.study.scaling import MOST_ROWS
from allpull.report.wording import ABSENT, joined, ranged, spread
from allpull.schema.studied import PublishedSeries, StudyPoint, Value
from allpull.study.results import base_value, throughput_ratio
from allpull.units import counted, show_count

TITLE = "One setting at a time"
TITLE_CHARACTERS = 16  # of a parameter in the title of a figure 8 cm wide
SLUGS = {
    "batch": "batch",
    "global_batch": "global-batch",
    "workers": "workers",
    "precision": "precision",
    "bucket_mb": "buckets",
    "buckets": "buckets",
    "backend": "backend",
    "model": "model",
    "data": "data",
    "name": "name",
    "hook": "hook",
    "compression": "hook",
    "compile": "compile",
    "threads": "threads",
    "hosts": "hosts",
    "launcher": "launcher",
}
"""File names of the charts of well-known parameters; those of others are numbered."""


def block(report: StudyReport) -> Block | None:
    """A chart and a table for each parameter that has several values at otherwise equal settings."""
    parts: list[Part] = []
    names = []
    for number, axis in enumerate(axes(report.study), start=1):
        slug = SLUGS.get(plain_name(axis.parameter), f"axis-{number}")
        taken = {part.slug for part in parts if isinstance(part, Chart)}
        made = list(_parts(axis, f"axis-{number}" if slug in taken else slug, report.study.published))
        if made:
            names.append(plain_name(axis.parameter))
            parts += made
    if not parts:
        return None
    return Block(title=TITLE, lead=f"Throughput against {joined(names)}, all other settings equal.", parts=parts)


def _parts(axis: Axis, slug: str, published: Sequence[PublishedSeries]) -> Iterator[Part]:
    if not any(_is_measured(point) for line in axis.lines for _, point in line.points):
        return
    name = plain_name(axis.parameter)
    moving = f" It moves together with {joined([plain_name(one) for one in axis.with_it])}." if axis.with_it else ""
    lines = [
        Line(name=line.name, marks=[_mark(axis, *pair) for pair in line.points if _is_measured(pair[1])])
        for line in axis.lines
    ]
    lines += _published(axis, published)
    drawn = chart(
        Frame(
            slug=slug,
            title=f"Throughput against {short(name, TITLE_CHARACTERS)}",
            caption=f"Each line has equal settings apart from {name}.{moving} A bar is the 95 % interval of a point.",
            x_title=name,
            y_title="Samples per second",
        ),
        lines,
    )
    if drawn is not None:
        yield drawn
    yield _table(axis, name)
    if not axis.is_numeric:
        yield from _ratios(axis)


def _is_measured(point: StudyPoint) -> bool:
    return point.throughput is not None and point.throughput.value > 0


def _mark(axis: Axis, value: Value, point: StudyPoint) -> Mark:
    interval = point.throughput
    assert interval is not None
    return Mark(
        x=value if axis.is_numeric else plain_value(value),
        value=interval.value,
        low=interval.low,
        high=interval.high,
        shown=f"{spread(interval)} samples/s",
        note=", ".join(
            [counted(point.ranks, "rank"), *(setting(one, point.parameters.get(one)) for one in axis.with_it)]
        ),
    )


def _published(axis: Axis, published: Sequence[PublishedSeries]) -> Iterator[Line]:
    """Published series over the same parameter: of one size, and with several numbers of workers or batches."""
    key = {"workers": "workers", "batch": "batch_per_rank"}.get(plain_name(axis.parameter))
    for one in published if key is not None and axis.is_numeric else ():
        pairs = [(getattr(point, key or ""), point) for point in one.points]
        known = {at: (value, point) for at, point in pairs if at is not None and (value := rate(point)) is not None}
        if len(known) > 1 and len({point.ranks for _, point in known.values()}) == 1:
            marks = [
                Mark(x=at, value=value, shown=f"{show_count(value)} images/s", note=counted(point.ranks, "rank"))
                for at, (value, point) in sorted(known.items())
            ]
            yield Line(name=published_name(one), marks=marks, is_published=True)


def _values(lines: Sequence[AxisLine]) -> list[Value]:
    """Every value on the axis, numbers in order."""
    made = list({plain_value(value): value for line in lines for value, _ in line.points}.values())
    return made if any(isinstance(value, str | bool) for value in made) else sorted(made, key=float)


def _by_value(line: AxisLine) -> Mapping[str, StudyPoint]:
    return {plain_value(value): point for value, point in line.points}


def _table(axis: Axis, name: str) -> Table:
    """One row per value and line, the fastest of each line marked."""
    rows: list[tuple[str, ...]] = []
    marked: set[int] = set()
    for line in axis.lines:
        rates = [point.throughput.value if point.throughput else 0.0 for _, point in line.points]
        for (value, point), one in zip(line.points, rates, strict=True):
            if one == max(rates) > 0:
                marked.add(len(rows))
            rows.append((line.name, plain_value(value), spread(point.throughput)))
    caption = f"Samples per second by {name}; the fastest of each line is marked"
    kept = frozenset(row for row in marked if row < MOST_ROWS)
    columns = ("Line", name, "Samples/s")
    text_columns = 1 if axis.is_numeric else 2
    return Table(caption=caption, columns=columns, rows=rows[:MOST_ROWS], text_columns=text_columns, marked=kept)


def _ratios(axis: Axis) -> Iterator[Table]:
    """Each value over the base, at each setting of the others: FP16 over FP32 at each size."""
    values = _values(axis.lines)
    base = plain_value(base_value(values))
    others = [plain_value(value) for value in values if plain_value(value) != base]
    rows: list[tuple[str, ...]] = []
    for line in axis.lines:
        points = _by_value(line)
        rows.append((line.name, *(ranged(throughput_ratio(points.get(one), points.get(base))) for one in others)))
    if any(cell != ABSENT for row in rows for cell in row[1:]):
        yield Table(
            caption=f"Throughput over that of {base}, with 95 % intervals",
            columns=("Line", *(f"{one} ÷ {base}" for one in others)),
            rows=rows[:MOST_ROWS],
        )
