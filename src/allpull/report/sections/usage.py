"""Over the time of the run: how long steps took, and what they used of CPUs, memory, network and accelerators."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import altair as alt

from allpull.report.colours import RUNS
from allpull.report.html.block import Block, Chart
from allpull.report.html.chart import LINE_KEY, data, spec, time_unit
from allpull.report.wording import percent, rate
from allpull.schema.reported import ScalingReport
from allpull.schema.results import UsageSeries
from allpull.units import counted, show_bytes, show_count, show_time

TITLE = "Over the time of the run"
HEIGHT_PX = 150


@dataclass(frozen=True, slots=True, kw_only=True)
class Panel:
    """One chart: its slug, title and caption, and the series in it, each with its label."""

    slug: str
    title: str
    caption: str
    series: Mapping[str, str]


PANELS = (
    Panel(
        slug="step-time",
        title="Step time",
        caption="Every step, with the evaluations and checkpoints in it; the mean over ranks. Where there are many "
        "steps, the line is the median of neighbouring ones.",
        series={"step": "step", "slowest step": "slowest of its neighbours"},
    ),
    Panel(
        slug="cpus",
        title="CPUs in use",
        caption="User and system time of all ranks and their loader workers, per second.",
        series={"cpus": "CPUs"},
    ),
    Panel(
        slug="gpus", title="Accelerators busy", caption="The mean over all accelerators.", series={"gpu busy": "busy"}
    ),
    Panel(
        slug="memory",
        title="Memory",
        caption="Resident memory of all ranks and their workers, and that of their accelerators.",
        series={"memory": "host", "gpu memory": "accelerators"},
    ),
    Panel(
        slug="network",
        title="Network",
        caption="Bytes sent by all network interfaces of the hosts, of other programs too.",
        series={"network sent": "sent"},
    ),
    Panel(
        slug="reading",
        title="Reading",
        caption="Bytes read by all ranks; what storage does not deliver comes from the page cache.",
        series={"read": "read", "storage read": "from storage"},
    ),
    Panel(
        slug="read-calls",
        title="Reads",
        caption="System calls by which all ranks and their loader workers read, of pipes between them too.",
        series={"reads": "reads"},
    ),
)


def block(report: ScalingReport) -> Block | None:
    """The charts of the run with the most ranks; None if nothing was recorded over time."""
    by_name: dict[str, UsageSeries] = {one.name: one for one in report.usage}
    moments = [time_s for one in report.usage for time_s in one.times_s]
    domain = [min(moments, default=0.0), max(moments, default=0.0)]
    charts = [chart for panel in PANELS if (chart := _chart(panel, by_name, domain)) is not None]
    if not charts:
        return None
    ranks = max(run.ranks for run in report.show.runs)
    return Block(title=TITLE, lead=f"The run on {counted(ranks, 'rank')}, from its first step on.", parts=charts)


def _chart(panel: Panel, by_name: Mapping[str, UsageSeries], domain: Sequence[float]) -> Chart | None:
    drawn = [by_name[name] for name in panel.series if name in by_name]
    values = [value for one in drawn for value in one.values if value is not None]
    if not values:
        return None
    factor, unit = _scale(drawn[0].unit, max(values))
    rows: list[dict[str, Any]] = [
        {"time": time_s, "value": value * factor, "what": panel.series[one.name], "shown": _shown(one.unit, value)}
        for one in drawn
        for time_s, value in zip(one.times_s, one.values, strict=False)
        if value is not None
    ]
    labels = [panel.series[one.name] for one in drawn]
    key = LINE_KEY if len(labels) > 1 else None
    scale = alt.Scale(domain=list(domain), nice=False)
    lines = alt.Chart(data(rows)).encode(
        x=alt.X("time:Q", title="Time (s)", axis=alt.Axis(tickCount=7, grid=False), scale=scale),
        y=alt.Y("value:Q", title=unit, axis=alt.Axis(tickCount=4), scale=alt.Scale(zero=True)),
        color=alt.Color("what:N", scale=alt.Scale(domain=labels, range=list(RUNS[: len(labels)])), legend=key),
    )
    tooltip = [
        alt.Tooltip("what:N", title=" "),
        alt.Tooltip("time:Q", title="at (s)", format=",.1f"),
        alt.Tooltip("shown:N", title="value"),
    ]
    points = lines.mark_point(filled=True, size=40, opacity=0).encode(tooltip=tooltip)
    return Chart(
        slug=panel.slug,
        title=panel.title,
        caption=panel.caption,
        height_px=HEIGHT_PX,
        key_characters=max(len(label) for label in labels),
        spec=spec(alt.layer(lines.mark_line(strokeWidth=1.75, interpolate=_interpolate(drawn[0].unit)), points)),
    )


def _interpolate(unit: str) -> Literal["linear", "step-before"]:
    """A rate holds for the whole time between two samples."""
    return "step-before" if unit in {"CPUs", "bytes/s", "reads/s"} else "linear"


def _scale(unit: str, largest: float) -> tuple[float, str]:
    """The factor and the title of an axis up to ``largest`` of ``unit``.

    >>> _scale("bytes/s", 3e8), _scale("CPUs", 2.0)
    ((1e-06, 'MB/s'), (1.0, 'CPUs'))
    """
    if unit == "s":
        factor, name = time_unit(largest)
        return factor, f"Step ({name})"
    if unit == "share":
        return 100.0, "Busy (%)"
    if unit in {"bytes", "bytes/s"}:
        factor, name = next(((f, n) for least, f, n in BYTES if largest >= least), (1.0, "B"))
        return factor, name + unit.removeprefix("bytes")
    return 1.0, unit


BYTES: Sequence[tuple[float, float, str]] = ((1e9, 1e-9, "GB"), (1e6, 1e-6, "MB"), (1e3, 1e-3, "kB"))
"""(least bytes, factor, unit): one unit for a whole axis."""


def _shown(unit: str, value: float) -> str:
    if unit == "s":
        return show_time(value)
    if unit == "share":
        return percent(value)
    return {"bytes": show_bytes(value), "bytes/s": rate(value)}.get(unit, f"{show_count(value)} {unit}")
