"""Does more hardware train faster? Samples per second against ranks, compared with perfect scaling."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import altair as alt

from allpull.report.colours import QUIET, RUNS
from allpull.report.html.block import Block, Chart
from allpull.report.html.chart import data, spec
from allpull.report.html.lines import LOG_FROM_RATIO, MAX_TICKS, round_values
from allpull.report.wording import ABSENT, efficiencies, labels, largest, percent, spread, times
from allpull.schema.reported import ScalingReport
from allpull.schema.results import RunMetrics, ShowResult
from allpull.units import counted, show_count

TITLE = "How much faster it gets"
TOOLTIP = [
    alt.Tooltip("run:N", title="run"),
    alt.Tooltip("shown:N", title="samples/s"),
    alt.Tooltip("speedup:N", title="speed-up"),
    alt.Tooltip("efficiency:N", title="efficiency"),
]


def block(report: ScalingReport) -> Block | None:
    """Throughput against ranks with 95 % intervals and the ideal line; None if there is nothing to compare."""
    points = _points(report.show)
    if len({point["ranks"] for point in points}) < 2:
        return None
    ideal = list(_ideal(report.show, points))
    caption = (
        "Each point is a run; its bar is the 95 % confidence interval of the mean, often smaller than the point. "
        + _ideal_caption(ideal)
        + "A percentage next to a point is its efficiency."
    )
    chart = Chart(
        slug="throughput",
        title="Throughput against ranks",
        caption=caption,
        height_px=340,
        key_characters=max(map(len, names)) if len(names := _precisions(points)) > 1 else 0,
        spec=spec(_chart(points, ideal)),
    )
    return Block(title=TITLE, lead=_lead(report.show), parts=[chart])


def _lead(show: ShowResult) -> str:
    reference = next((run for run in show.runs if run.run == show.reference), None)
    widest = largest(show.runs)
    ranks = [run.ranks for run in show.runs]
    alone = reference is not None and ranks.count(reference.ranks) == ranks.count(widest.ranks) == 1
    if reference is None or widest.speedup is None or not alone:
        return "Samples per second of all ranks, for each number of ranks."
    ideal = widest.ranks / reference.ranks
    interval = widest.speedup_interval
    none = "No speed-up is shown: " if interval is not None and interval.includes(1.0) else ""
    return (
        f"{none}{counted(widest.ranks, 'rank')} train {times(widest.speedup)} as many samples per second as "
        f"{counted(reference.ranks, 'rank')}; perfect scaling would be {show_count(ideal)}×."
    )


def _points(show: ShowResult) -> list[dict[str, Any]]:
    return [
        _point(label, run, efficiency=share, is_reference=is_reference(run, show))
        for label, run, share in zip(labels(show.runs), show.runs, efficiencies(show.runs), strict=True)
        if run.throughput is not None and run.throughput.value > 0 and run.ranks > 0
    ]


def _point(label: str, run: RunMetrics, *, efficiency: float | None, is_reference: bool) -> dict[str, Any]:
    assert run.throughput is not None
    return {
        "run": label,
        "ranks": run.ranks,
        "precision": run.precision or ABSENT,
        "value": run.throughput.value,
        "low": run.throughput.low,
        "high": run.throughput.high,
        "shown": spread(run.throughput),
        "speedup": times(run.speedup),
        "efficiency": percent(efficiency),
        "note": "" if is_reference or efficiency is None else f"{100 * efficiency:.0f} %",
    }


def is_reference(run: RunMetrics, show: ShowResult) -> bool:
    """Whether speed-ups are measured against ``run``: each precision has a reference of its own."""
    return run.run in {show.reference, *(one.reference for one in show.runs)}


def _ideal(show: ShowResult, points: Sequence[Mapping[str, Any]]) -> Iterator[dict[str, Any]]:
    """Two ends of the line through each reference on which doubling ranks doubles throughput.

    It spans the sizes of its own precision, the first end before the second.
    """
    for reference in (run for run in show.runs if is_reference(run, show)):
        if reference.throughput is not None and reference.throughput.value > 0:
            precision, per_rank = reference.precision or ABSENT, reference.throughput.value / reference.ranks
            sizes = [point["ranks"] for point in points if point["precision"] == precision]
            if min(sizes) < max(sizes):
                for ranks in (min(sizes), max(sizes)):
                    yield {"ranks": ranks, "value": per_rank * ranks, "precision": precision}


def _ideal_caption(ideal: Sequence[Mapping[str, Any]]) -> str:
    if not ideal:
        return ""
    if len(ideal) > 2:
        return "The dashed lines are perfect scaling from the reference run of each precision. "
    return "The dashed line is perfect scaling from the reference run. "


def _precisions(points: Sequence[Mapping[str, Any]]) -> list[str]:
    return list(dict.fromkeys(point["precision"] for point in points))


def _axes(points: Sequence[Mapping[str, Any]]) -> tuple[alt.X, alt.Y]:
    """Linear axes from 0, or logarithmic ones over many doublings; room at the right for the last label."""
    ranks = sorted({point["ranks"] for point in points})
    rates = [point["value"] for point in points]
    ratio = ranks[-1] / ranks[0]
    if ratio >= LOG_FROM_RATIO:
        x_scale = alt.Scale(type="log", base=2, domain=[ranks[0] / ratio**0.03, ranks[-1] * ratio**0.12])
        y_scale, y_ticks = alt.Scale(type="log", nice=False), alt.Axis(values=round_values(min(rates), max(rates)))
    else:
        x_scale = alt.Scale(domain=[0, ranks[-1] * 1.15])
        y_scale, y_ticks = alt.Scale(zero=True), alt.Axis(tickCount=6)
    y_ticks.format = ",.4~r"
    ticks: dict[str, Any] = {"values": ranks} if len(ranks) <= MAX_TICKS else {"tickCount": MAX_TICKS}
    x = alt.X("ranks:Q", title="Ranks", scale=x_scale, axis=alt.Axis(format=",d", grid=False, **ticks))
    return x, alt.Y("value:Q", title="Samples per second", scale=y_scale, axis=y_ticks)


def _chart(points: Sequence[Mapping[str, Any]], ideal: Sequence[Mapping[str, Any]]) -> alt.LayerChart | alt.FacetChart:
    x, y = _axes(points)
    measured = alt.Chart(data(points))
    bars = alt.Chart(data([point for point in points if _has_bar(point)]))
    layers: list[alt.Chart] = []
    precisions = _precisions(points)
    colour: Any = alt.value(RUNS[0])
    if len(precisions) > 1:
        scale = alt.Scale(domain=precisions, range=[RUNS[at % len(RUNS)] for at in range(len(precisions))])
        colour = alt.Color("precision:N", scale=scale, title=None)
    if ideal:
        perfect = alt.Chart(data(ideal)).encode(x=x, y=y, detail="precision:N")
        layers.append(perfect.mark_line(color=QUIET, strokeDash=[5, 4], strokeWidth=1.5))
        layers.append(
            alt.Chart(data(ideal[-1:]))
            .mark_text(text="ideal", align="right", baseline="bottom", dx=-8, dy=-6, color=QUIET)
            .encode(x=x, y=y)
        )
    if len({(point["ranks"], point["precision"]) for point in points}) == len(points):
        layers.append(measured.mark_line(strokeWidth=2.5).encode(x=x, y=y, color=colour))
    layers.append(bars.mark_rule(strokeWidth=2).encode(x=x, y="low:Q", y2="high:Q", color=colour))
    dots = measured.mark_point(size=90, filled=True, opacity=1)
    layers.append(dots.encode(x=x, y=y, tooltip=TOOLTIP, color=colour))
    layers.append(measured.mark_text(baseline="top", dx=11, dy=8).encode(x=x, y=y, text="note:N"))
    return alt.layer(*layers)


def _has_bar(point: Mapping[str, Any]) -> bool:
    return point["low"] is not None and point["high"] is not None and point["low"] > 0
