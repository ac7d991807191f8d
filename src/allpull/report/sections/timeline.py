"""A few steps on one clock: what each rank did when."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import altair as alt

from allpull.report.colours import PHASES, in_order
from allpull.report.html.block import Block, Chart
from allpull.report.html.chart import data, spec, time_unit
from allpull.report.html.largest_run import explained
from allpull.schema.explained import TimelinePart
from allpull.schema.reported import ScalingReport
from allpull.units import counted, show_time

TITLE = "A few steps, rank by rank"
NETWORK = "network"
BUCKET_COLOUR = "#8C5A9E"
LANE_PX, FRAME_PX = 22, 110
ZOOM = "wheel![event.ctrlKey || event.metaKey]"
"""The wheel alone scrolls the page; on a Mac, pinching arrives as a wheel with the Ctrl key."""


def block(report: ScalingReport) -> Block | None:
    """The timeline of the run with the most ranks; None if there is none."""
    detail = explained(report)
    if detail is None or not detail.timeline:
        return None
    ranks = len({part.rank for part in detail.timeline} - {None})
    steps = len({part.step for part in detail.timeline})
    some = f"{ranks:,} of {counted(detail.result.ranks, 'rank')}, the latest among them"
    of = f"{counted(steps, 'step')} of {some if ranks < detail.result.ranks else counted(ranks, 'rank')}"
    lead = f"{of}, one above the other on one clock. Drag to move; hold Ctrl or ⌘ and scroll to zoom."
    return Block(title=TITLE, lead=lead, parts=[chart(detail.timeline)])


def chart(parts: Sequence[TimelinePart], *, slug: str = "timeline", least_s: float = 0.0) -> Chart:
    """What each rank did in ``parts``; the axis is at least ``least_s`` long, so that two charts compare."""
    begin_s, end_s = min(part.begin_s for part in parts), max(part.end_s for part in parts)
    length_s = max(end_s - begin_s, least_s)
    factor, unit = time_unit(length_s)
    rows: list[dict[str, Any]] = [
        {
            "lane": NETWORK if part.rank is None else f"{part.rank}",
            "begin": (part.begin_s - begin_s) * factor,
            "end": (part.end_s - begin_s) * factor,
            "part": part.part,
            "step": part.step,
            "shown": show_time(part.end_s - part.begin_s),
        }
        for part in parts
    ]
    ranks = sorted({part.rank for part in parts if part.rank is not None})
    lanes = [*map(str, ranks), *([NETWORK] if any(part.rank is None for part in parts) else [])]
    drawn = in_order(row["part"] for row in rows)
    colours = alt.Scale(domain=drawn, range=[PHASES.get(name, BUCKET_COLOUR) for name in drawn])
    zoom = alt.selection_interval(bind="scales", encodings=["x"], zoom=ZOOM)
    bars = (
        alt.Chart(data(rows))
        .mark_bar(clip=True)
        .encode(
            x=alt.X("begin:Q", title=f"Time ({unit})", scale=alt.Scale(nice=False, domain=[0, length_s * factor])),
            x2="end:Q",
            y=alt.Y("lane:N", sort=lanes, title="Rank", scale=alt.Scale(paddingInner=0.15)),
            color=alt.Color("part:N", scale=colours, legend=alt.Legend(symbolStrokeWidth=0)),
            tooltip=[
                alt.Tooltip("part:N", title=" "),
                alt.Tooltip("lane:N", title="rank"),
                alt.Tooltip("step:Q", title="step"),
                alt.Tooltip("shown:N", title="for"),
            ],
        )
        .add_params(zoom)
    )
    return Chart(
        slug=slug,
        title="What each rank did",
        caption=(
            "Collectives are drawn at their recorded times. The phases between them have their measured lengths and "
            "a fixed order, because their own order was not recorded. A rank waits while it is ready and the last "
            "rank is not; a bucket is on the network while backward continues."
        ),
        height_px=FRAME_PX + LANE_PX * len(lanes),
        key_characters=max(len(name) for name in drawn),
        axis_characters=max(len(lane) for lane in lanes),
        zoomable=True,
        spec=spec(bars),
    )
