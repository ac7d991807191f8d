"""Are the steps uniform? The distribution of step times: a steep line is a steady run, a long tail is a problem."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import altair as alt
import numpy as np

from allpull.report.colours import RUNS
from allpull.report.html.block import Block, Chart, Part, Table, Text
from allpull.report.html.chart import LINE_KEY, data, spec, time_unit
from allpull.report.html.page_limits import evenly
from allpull.report.wording import ABSENT, labels, largest, times
from allpull.schema.reported import ScalingReport
from allpull.schema.results import RunDetail
from allpull.units import show_time

TITLE = "How long steps take"
CURVE_POINTS = 240  # of one line: finer than it can be seen
LOG_FROM_RATIO = 12  # beyond it, one outlier would compress all others against the axis


def block(report: ScalingReport) -> Block | None:
    """The distribution of steady step times of each run, with its median and 95th percentile; None if unknown."""
    pairs = list(zip(labels(report.show.runs), report.details, strict=True))
    drawn = [(label, detail) for label, detail in pairs if any(time_s > 0 for time_s in detail.step_times_s)]
    parts: list[Part] = []
    if drawn:
        chosen = [drawn[index] for index in evenly(len(drawn), len(RUNS))]
        parts.append(_chart(chosen))
        if len(chosen) < len(drawn):
            parts.append(Text(text=f"Drawn: {len(chosen)} of {len(drawn)} runs, for legibility.", quiet=True))
    if any(detail.metrics.step_s for _, detail in pairs):
        parts.append(_table(pairs))
    return Block(title=TITLE, lead=_lead(pairs), parts=parts) if parts else None


def _lead(pairs: Sequence[tuple[str, RunDetail]]) -> str:
    widest = largest([detail.metrics for _, detail in pairs])
    if widest.step_s is None or widest.step_s.median <= 0:
        return "The distribution of the steady step times of each run."
    return (
        f"Half of the steps of the largest run take at most {show_time(widest.step_s.median)}, and 95 % of them at "
        f"most {show_time(widest.step_s.p95)}."
    )


def distribution(times_s: Sequence[float]) -> list[tuple[float, float]]:
    """(time in s, share of steps that take at most so long): the empirical distribution at even shares.

    >>> distribution([0.3, 0.1, 0.2])
    [(0.1, 0.3333333333333333), (0.2, 0.6666666666666666), (0.3, 1.0)]
    """
    ordered = np.sort(np.asarray([time_s for time_s in times_s if time_s > 0], dtype=float))
    return [(float(ordered[index]), (index + 1) / len(ordered)) for index in evenly(len(ordered), CURVE_POINTS)]


def _chart(chosen: Sequence[tuple[str, RunDetail]]) -> Chart:
    curves = {label: distribution(detail.step_times_s) for label, detail in chosen}
    shortest_s = min(curve[0][0] for curve in curves.values())
    longest_s = max(curve[-1][0] for curve in curves.values())
    factor, unit = time_unit(longest_s)
    lines = [
        {"run": label, "time": time_s * factor, "share": 100 * share}
        for label, curve in curves.items()
        for time_s, share in [(curve[0][0], 0.0), *curve]
    ]
    scale = alt.Scale(type="log") if longest_s / shortest_s >= LOG_FROM_RATIO else alt.Scale(zero=False, nice=True)
    x = alt.X("time:Q", title=f"Step time ({unit})", scale=scale, axis=alt.Axis(tickCount=7, grid=False))
    y_scale = alt.Scale(domain=[0, 100], nice=False)
    y = alt.Y("share:Q", title="Share of steps (%)", scale=y_scale, axis=alt.Axis(values=[0, 25, 50, 75, 95]))
    colour = alt.Color("run:N", scale=alt.Scale(domain=list(curves), range=list(RUNS[: len(curves)])), legend=LINE_KEY)
    marks = [mark for label, detail in chosen for mark in _marks(label, detail, factor)]
    chart = alt.layer(
        alt.Chart(data(lines)).mark_line(interpolate="step-after", strokeWidth=2).encode(x=x, y=y, color=colour),
        alt.Chart(data(marks))
        .mark_point(filled=True, size=70, opacity=1)
        .encode(
            x=x,
            y=y,
            color=colour,
            tooltip=[
                alt.Tooltip("run:N", title="run"),
                alt.Tooltip("what:N", title="point"),
                alt.Tooltip("shown:N", title="step time"),
            ],
        ),
    )
    caption = (
        "The height of a line is the share of steps that take at most so long. A steep line means that steps are "
        "alike; a tail to the right means that some are slow. Points mark the median and the 95th percentile."
    )
    return Chart(
        slug="steps",
        title="Distribution of step times",
        caption=caption,
        height_px=300,
        key_characters=max(len(label) for label in curves),
        spec=spec(chart),
    )


def _marks(label: str, detail: RunDetail, factor: float) -> list[dict[str, Any]]:
    step_s = detail.metrics.step_s
    if step_s is None or min(step_s.median, step_s.p95) <= 0:
        return []
    points = (("median", step_s.median, 0.5), ("95th percentile", step_s.p95, 0.95))
    return [
        {"run": label, "what": what, "time": time_s * factor, "share": 100 * share, "shown": show_time(time_s)}
        for what, time_s, share in points
    ]


def _table(pairs: Sequence[tuple[str, RunDetail]]) -> Table:
    rows = []
    for label, detail in pairs:
        step_s = detail.metrics.step_s
        if step_s is None:
            rows.append((label, f"{detail.metrics.steady.used:,}", ABSENT, ABSENT, ABSENT))
            continue
        tail = times(step_s.p95 / step_s.median) if step_s.median > 0 else ABSENT
        used = f"{detail.metrics.steady.used:,}"
        rows.append((label, used, show_time(step_s.median), show_time(step_s.p95), tail))
    columns = ("Run", "Steady steps", "Median", "95th percentile", "Ratio of the two")
    return Table(caption="Step times over the steady window", columns=columns, rows=rows)
