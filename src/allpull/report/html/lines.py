"""One chart of lines with intervals: measured, published, and what would be ideal."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import altair as alt

from allpull.report.colours import QUIET, RUNS
from allpull.report.html.block import Chart
from allpull.report.html.chart import LINE_KEY, data, spec
from allpull.report.html.page_limits import evenly
from allpull.units import show_count

LOG_FROM_RATIO = 16  # the smallest of five doublings would vanish on a linear axis
MAX_TICKS = 12
FINE_DECADES = 3  # over more powers of ten, lines at 2 and 5 crowd the axis
LOG_Y_FROM_RATIO = 20  # less than a tenth of the height for the smallest hides it
MOST_BAR = 2.0  # times the largest value, or a share of the smallest: longer bars would flatten all points
CATEGORY_CHARACTERS = 14  # of the labels under an axis of names

X = float | int | str


@dataclass(frozen=True, slots=True, kw_only=True)
class Mark:
    """One point: its interval is None where it is not known; ``shown`` and ``note`` are for the tooltip."""

    x: X
    value: float
    low: float | None = None
    high: float | None = None
    shown: str
    note: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """The points of one name, in the order in which they are joined."""

    name: str
    marks: Sequence[Mark]
    is_published: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Frame:
    """What a chart is of. ``rules`` are horizontal lines with their names; ``ideal`` slanted ones, by two ends."""

    slug: str
    title: str
    caption: str
    x_title: str
    y_title: str
    ideal: Sequence[tuple[tuple[float, float], tuple[float, float]]] = ()
    rules: Sequence[tuple[float, str]] = ()
    from_zero: bool = True


def round_values(low: float, high: float) -> list[float]:
    """1, 2 and 5 times powers of ten from one below ``low`` to one above ``high``; powers alone over many decades.

    >>> round_values(300, 4000)
    [200.0, 500.0, 1000.0, 2000.0, 5000.0]
    """
    first, last = math.floor(math.log10(low)), math.ceil(math.log10(high))
    steps = (1.0, 2.0, 5.0) if last - first <= FINE_DECADES else (1.0,)
    values = [step * 10.0**power for power in range(first, min(last, 307) + 1) for step in steps]
    inside = [index for index, value in enumerate(values) if low <= value <= high]
    begin, end = (inside[0], inside[-1]) if inside else (0, len(values) - 1)
    return values[max(0, begin - 1) : end + 2]


def drawn(lines: Sequence[Line]) -> tuple[list[Line], int]:
    """As many of ``lines`` as there are colours, measured ones first, and how many are left out."""
    usable = [line for line in lines if line.marks]
    measured = [line for line in usable if not line.is_published]
    published = [line for line in usable if line.is_published]
    room = max(len(RUNS) - min(len(published), 2), 2)
    kept = [measured[at] for at in evenly(len(measured), room)]
    kept += published[: len(RUNS) - len(kept)]
    return kept, len(usable) - len(kept)


def chart(frame: Frame, lines: Sequence[Line]) -> Chart | None:
    """``lines`` in ``frame``; None where nothing is measured, or no line has two points."""
    kept, left_out = drawn(lines)
    marks = [mark for line in kept for mark in line.marks]
    if all(line.is_published for line in kept) or max((len(line.marks) for line in kept), default=0) < 2:
        return None
    x, y = _x(frame, [mark.x for mark in marks]), _y(frame, marks)
    low, high = min(mark.value for mark in marks) / MOST_BAR, max(mark.value for mark in marks) * MOST_BAR
    is_cut = any((mark.high or 0.0) > high or (mark.low is not None and 0 < mark.low < low) for mark in marks)
    names = [line.name for line in kept]
    colour = alt.Color(
        "line:N",
        scale=alt.Scale(domain=names, range=list(RUNS[: len(names)])),
        legend=LINE_KEY if len(names) > 1 else None,
    )
    layers = [*_rules(frame, y), *_ideals(frame, x, y)]
    for is_published in (True, False):
        of_kind = [line for line in kept if line.is_published == is_published]
        if of_kind:
            layers += _layers([_cut(line, low, high) for line in of_kind], x, y, colour)
    drawn_of = f" Drawn: {len(kept)} of {len(kept) + left_out} lines, for legibility." if left_out else ""
    cut = f" Bars end at {show_count(low)} and {show_count(high)} at most; tables have all of them." if is_cut else ""
    return Chart(
        slug=frame.slug,
        title=frame.title,
        caption=frame.caption + cut + drawn_of,
        height_px=340,
        key_characters=max(map(len, names)),
        spec=spec(alt.layer(*layers)),
    )


def _cut(line: Line, low: float, high: float) -> Line:
    """``line`` with no bar beyond ``low`` and ``high``."""
    marks = [
        replace(mark, low=max(mark.low, low), high=min(mark.high, high))
        if mark.low is not None and mark.high is not None and mark.low > 0
        else mark
        for mark in line.marks
    ]
    return replace(line, marks=marks)


def _layers(lines: Sequence[Line], x: alt.X, y: alt.Y, colour: alt.Color) -> list[alt.Chart]:
    is_published = lines[0].is_published
    rows = [_row(line.name, mark) for line in lines for mark in line.marks]
    tooltip = [
        alt.Tooltip("line:N", title=" "),
        alt.Tooltip("at:N", title="at"),
        alt.Tooltip("shown:N", title="value"),
        alt.Tooltip("note:N", title="note"),
    ]
    base = alt.Chart(data(rows)).encode(x=x, y=y, color=colour)
    dash = [2, 3] if is_published else [1, 0]
    point = base.mark_point(size=60, filled=not is_published, opacity=1, shape="diamond" if is_published else "circle")
    made = [base.mark_line(strokeWidth=1.5 if is_published else 2.5, strokeDash=dash).encode(order="order:Q")]
    bars = [row for row in rows if row["low"] is not None and row["high"] is not None]
    if bars:
        made.append(alt.Chart(data(bars)).mark_rule(strokeWidth=2).encode(x=x, y="low:Q", y2="high:Q", color=colour))
    return [*made, point.encode(tooltip=tooltip)]


def _row(name: str, mark: Mark) -> dict[str, Any]:
    positive = mark.low is not None and mark.low > 0
    return {
        "line": name,
        "x": mark.x,
        "at": f"{mark.x:,}" if isinstance(mark.x, int) else str(mark.x),
        "order": mark.x if not isinstance(mark.x, str) else None,
        "value": mark.value,
        "low": mark.low if positive else None,
        "high": mark.high if positive else None,
        "shown": mark.shown,
        "note": mark.note,
    }


def _x(frame: Frame, values: Sequence[X]) -> alt.X:
    if any(isinstance(value, str) for value in values):
        names = list(dict.fromkeys(map(str, values)))
        axis = alt.Axis(labelAngle=0, grid=False, labelLimit=7 * CATEGORY_CHARACTERS)
        return alt.X("x:N", title=frame.x_title, sort=names, scale=alt.Scale(domain=names), axis=axis)
    places = sorted({float(value) for value in values})
    ratio = places[-1] / places[0] if places[0] > 0 else 0.0
    if ratio >= LOG_FROM_RATIO:
        scale = alt.Scale(type="log", base=2, domain=[places[0] / ratio**0.04, places[-1] * ratio**0.04])
    else:
        scale = alt.Scale(domain=[min(0.0, places[0]), places[-1] * 1.06 if places[-1] > 0 else 1.0])
    ticks: dict[str, Any] = {"values": places} if len(places) <= MAX_TICKS else {"tickCount": MAX_TICKS}
    axis = alt.Axis(format=",~g", grid=False, labelOverlap=True, **ticks)
    return alt.X("x:Q", title=frame.x_title, scale=scale, axis=axis)


def _y(frame: Frame, marks: Sequence[Mark]) -> alt.Y:
    values = [mark.value for mark in marks] + [value for value, _ in frame.rules]
    low, high = min(values), max(values)
    if low > 0 and high / low >= LOG_Y_FROM_RATIO:
        axis = alt.Axis(values=round_values(low, high), format=",.4~r")
        return alt.Y("value:Q", title=frame.y_title, scale=alt.Scale(type="log", nice=False), axis=axis)
    axis = alt.Axis(tickCount=6, format=",.4~r")
    return alt.Y("value:Q", title=frame.y_title, scale=alt.Scale(zero=frame.from_zero), axis=axis)


def _rules(frame: Frame, y: alt.Y) -> list[alt.Chart]:
    made = []
    for value, name in frame.rules:
        row = alt.Chart(data([{"value": value, "name": name}]))
        made.append(row.mark_rule(color=QUIET, strokeDash=[5, 4]).encode(y=y))
        made.append(
            row.mark_text(text=name, align="left", baseline="bottom", dx=4, dy=-3, color=QUIET).encode(
                x=alt.value(0), y=y
            )
        )
    return made


def _ideals(frame: Frame, x: alt.X, y: alt.Y) -> list[alt.Chart]:
    rows = [
        {"pair": number, "x": at, "value": value}
        for number, ends in enumerate(frame.ideal)
        for at, value in ends
        if value > 0 and math.isfinite(value)
    ]
    if not rows:
        return []
    line = alt.Chart(data(rows)).mark_line(color=QUIET, strokeDash=[5, 4], strokeWidth=1.5)
    name = alt.Chart(data(rows[-1:])).mark_text(
        text="ideal", align="right", baseline="bottom", dx=-8, dy=-4, color=QUIET
    )
    return [line.encode(x=x, y=y, detail="pair:N"), name.encode(x=x, y=y)]
