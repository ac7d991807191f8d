"""The page of the lab of overlap: two lanes of a recorded step for each bucket size, and what a replay foretold."""

from __future__ import annotations

from typing import Any

import altair as alt

from allpull.report.colours import PHASES, RUNS, in_order
from allpull.report.html.block import Block, Chart, Notice, Part, Points, Slider, Table, Text
from allpull.report.html.chart import LINE_KEY, data, spec
from allpull.report.page import Page
from allpull.schema.labs import OverlapResult, OverlapRun
from allpull.units import counted, show_bytes, show_time

SIZE = "size"
HIDDEN, EXPOSED, READY = "bucket, hidden", "bucket, exposed", "ready"
COLOURS = {**PHASES, HIDDEN: "#C9A6D4", EXPOSED: "#882255"}
COMPUTE, NETWORK = "compute", "network"


def page(result: OverlapResult) -> Page:
    """The page that shows ``result``."""
    best = min(result.runs, key=lambda one: one.step_s)
    where = f"links of {result.link}" if result.link else "plain Gloo within one machine"
    return Page(
        kicker="Lab: what backward hides",
        subject=f"Buckets of {best.bucket_mib:g} MiB expose {show_time(best.exposed_s)} of the exchange",
        facts=f"DDP on {result.ranks} ranks · {where} · {counted(len(result.runs), 'run')} of {result.steps} steps",
        blocks={"lanes": _lanes(result), "sizes": _sizes(result), "exercises": _exercises()},
        made="from recorded runs",
    )


def _lanes(result: OverlapResult) -> Block:
    parts: list[Part] = [
        _lane_chart(result),
        Slider(name=SIZE, label="Bucket size", texts=[_text(one, result) for one in result.runs]),
        Text(
            text="The step is an ordinary one of that run, and the compute lane is the rank whose last gradient came "
            "last. When each bucket was ready, and when the last one was done, are recorded, and so are steps and what "
            "is exposed. How long the others were on the network is inferred, as buckets follow each other: one that "
            "is hidden may have taken any time until the next begins, so the sum may be half or twice the truth. "
            "Computing is slept, not done: ranks, DDP and Gloo are real." + _shrunk(result),
            quiet=True,
        ),
    ]
    if result.unshaped:
        items = [result.unshaped, "So all ranks are processes of this machine, and its memory is the network."]
        parts.append(Notice(title="Without links", items=items))
    lead = (
        "DDP collects gradients in buckets while backward runs, and sends each as soon as it is full on all ranks. "
        "What is sent before backward ends is hidden; what comes after is exposed, and the step waits for it."
    )
    return Block(title="Two lanes", lead=lead, parts=parts)


def _shrunk(result: OverlapResult) -> str:
    if result.shrink == 1:
        return ""
    return f" Bytes and rates are divided by {result.shrink:g}, times are not; sizes shown are those of the network."


def _text(one: OverlapRun, result: OverlapResult) -> str:
    return (
        f"{one.bucket_mib:g} MiB: {counted(len(one.buckets), 'bucket')}, on the network for "
        f"about {show_time(one.exchange_s)}, of which {show_time(one.hidden_s)} hidden and {show_time(one.exposed_s)} "
        f"exposed; a step takes {show_time(one.step_s)}, {_by_replay(one, result)}"
    )


def _by_replay(one: OverlapRun, result: OverlapResult) -> str:
    if one.bucket_mib == result.base_mib:
        return f"{show_time(one.replayed_s)} by replay of itself"
    return f"{show_time(one.replayed_s)} by replay of {result.base_mib:g} MiB"


def _lane_chart(result: OverlapResult) -> Chart:
    rows: list[dict[str, Any]] = []
    marks: list[dict[str, Any]] = []
    for place, one in enumerate(result.runs):
        last_s = max(part.end_s for part in one.compute if part.part == "backward")
        rows += [
            {"place": place, "lane": COMPUTE, "part": part.part, "begin": 1e3 * part.begin_s, "end": 1e3 * part.end_s}
            for part in one.compute
            if part.end_s > part.begin_s
        ]
        for number, bucket in enumerate(one.buckets):
            shown = f"bucket {number + 1} of {len(one.buckets)}, {show_bytes(bucket.size_bytes * result.shrink)}"
            for name, begin_s, end_s in (
                (HIDDEN, bucket.begin_s, min(bucket.end_s, last_s)),
                (EXPOSED, max(bucket.begin_s, last_s), bucket.end_s),
            ):
                if end_s > begin_s:
                    rows.append({"place": place, "lane": NETWORK, "part": name, "begin": 1e3 * begin_s,
                                 "end": 1e3 * end_s, "shown": shown})  # fmt: skip
            marks.append({"place": place, "lane": NETWORK, "ready": 1e3 * bucket.ready_s, "shown": f"{shown}: ready"})
    names = in_order(row["part"] for row in rows)
    x = alt.X("begin:Q", title="Time in the step (ms)", scale=alt.Scale(domain=[0, max(row["end"] for row in rows)]))
    y = alt.Y("lane:N", title=None, sort=[COMPUTE, NETWORK], scale=alt.Scale(paddingInner=0.35))
    colours = alt.Scale(domain=names, range=[COLOURS.get(name, "#C3CAD1") for name in names])
    tooltip = [alt.Tooltip("part:N", title=" "), alt.Tooltip("shown:N", title="which")]
    at = f"datum.place == {SIZE}"
    bars = alt.Chart(data(rows)).transform_filter(at).mark_bar(stroke="white", strokeWidth=1).encode(
        x=x, x2="end:Q", y=y, color=alt.Color("part:N", scale=colours, legend=alt.Legend(symbolStrokeWidth=0)),
        tooltip=tooltip,
    )  # fmt: skip
    ready = alt.Chart(data(marks)).transform_filter(at).mark_point(
        shape="triangle-down", filled=True, size=70, yOffset=-32, color="#5F6B76", opacity=1
    ).encode(x="ready:Q", y=y, tooltip=[alt.Tooltip("shown:N", title=" ")])  # fmt: skip
    return Chart(
        slug="lanes",
        title="Compute lane and communication lane of one step",
        caption="Triangles: all ranks have the gradients of a bucket ready.",
        height_px=190,
        key_characters=max(map(len, names)),
        axis_characters=8,
        spec=spec(alt.layer(bars, ready).add_params(alt.param(name=SIZE, value=len(result.runs) - 1))),
    )


def _sizes(result: OverlapResult) -> Block:
    measured, replayed = "measured", f"replay of {result.base_mib:g} MiB"
    rows = [
        {"size": f"{one.bucket_mib:g}", "ms": 1e3 * seconds, "line": line}
        for one in result.runs
        for line, seconds in ((measured, one.step_s), (replayed, one.replayed_s))
    ]
    line = alt.Chart(data(rows)).mark_line(point=True, strokeWidth=2).encode(
        x=alt.X("size:N", title="Bucket size (MiB)", sort=[f"{one.bucket_mib:g}" for one in result.runs],
                axis=alt.Axis(labelAngle=0)),
        y=alt.Y("ms:Q", title="ms", scale=alt.Scale(zero=False)),
        color=alt.Color("line:N", scale=alt.Scale(domain=[measured, replayed], range=[RUNS[0], RUNS[1]]),
                        legend=LINE_KEY),
        strokeDash=alt.StrokeDash("line:N", sort=[measured, replayed], legend=None),
    )  # fmt: skip
    chart = Chart(
        slug="step-size",
        title="A step, measured and foretold",
        caption="Mean over the steps of each run. The replay uses one run alone; it cuts gradients anywhere, DDP "
        "between parameters, and a bucket costs it no time of its own.",
        height_px=230,
        key_characters=len(replayed),
        spec=spec(line),
    )
    best = min(result.runs, key=lambda one: one.step_s)
    table = Table(
        caption="Means over the steps of each run",
        columns=["Bucket size", "Buckets", "Exchange (about)", "Hidden (about)", "Exposed", "Step", "Replay", "Off by"],
        rows=[
            [
                f"{one.bucket_mib:g} MiB",
                f"{len(one.buckets)}",
                show_time(one.exchange_s),
                show_time(one.hidden_s),
                show_time(one.exposed_s),
                show_time(one.step_s),
                show_time(one.replayed_s),
                f"{100 * (one.replayed_s / one.step_s - 1):+.1f} %",
            ]
            for one in result.runs
        ],
        marked=frozenset({result.runs.index(best)}),
    )
    small = (
        "the messages of the smallest cost too little here to show"
        if best is result.runs[0]
        else "the smallest pay for each message"
    )
    lead = (
        f"One bucket for everything hides nothing; {small}. "
        f"Fastest here: {best.bucket_mib:g} MiB. The replay takes the run with {result.base_mib:g} MiB and cuts its "
        "gradients otherwise: a question to a recording, without another run."
    )
    return Block(title="Which size is best", lead=lead, parts=[chart, table])


def _exercises() -> Block:
    items = [
        "Before you move the slider: what does a single bucket hide, and why?",
        "The largest bucket has bytes that were ready early. Why do they wait?",
        "The replay has no price per bucket. What does one cost here, by the smallest size?",
        "Double the rate of the links. Which sizes gain, and which do not?",
    ]
    return Block(title="Exercises", lead="Guess first, then look.", parts=[Points(items=items)])
