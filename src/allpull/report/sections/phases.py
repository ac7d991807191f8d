"""Where does a step's time go? Seconds per step of each phase, stacked, one bar per run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import altair as alt

from allpull.report.colours import PHASES, in_order
from allpull.report.html.block import Block, Chart, Part, Table, Text
from allpull.report.html.chart import data, spec, time_unit
from allpull.report.printable import short
from allpull.report.wording import ABSENT, joined, labels, largest, percent
from allpull.schema.reported import ScalingReport
from allpull.schema.results import RunMetrics
from allpull.units import counted, show_time

TITLE = "Where the time of a step goes"
ROUNDING = 1e-9  # of a step: a smaller closure error is that of float arithmetic
BAR_PX, FRAME_PX = 44, 96
MEANINGS = {
    "input": "waiting for the next batch",
    "copy": "moving the batch to the device",
    "forward": "computing the prediction",
    "backward": "computing the gradients",
    "wait": "ready, and waiting for the slowest rank",
    "transfer": "exchanging data over the network",
    "optimizer": "changing the weights",
    "evaluation": "testing between steps",
    "checkpoint": "saving between steps",
    "host": "device idle while the host prepares work",
    "other": "everything else",
}


def block(report: ScalingReport) -> Block | None:
    """Phases per step by run; a phase that was not measured is named, never drawn as 0. None if none was measured."""
    runs, names = report.show.runs, labels(report.show.runs)
    if not any(measured(run) for run in runs):
        return None
    rows = _rows(runs, names)
    charts = [_chart(rows, len(runs))] if rows else []
    notes: list[Part] = [Text(text=line, quiet=True) for line in (_absent(runs, names), _closure(runs)) if line]
    return Block(title=TITLE, lead=_lead(runs), parts=[*charts, *notes, _table(runs, names)])


def measured(run: RunMetrics) -> dict[str, float]:
    """The phases of ``run`` that were measured, in s per step, in the order of ``colours.PHASES``, others last."""
    return {name: value for name in in_order(run.phases) if (value := run.phases[name]) is not None}


def _lead(runs: Sequence[RunMetrics]) -> str:
    run = largest(runs)
    times_s = measured(run)
    if not times_s or sum(times_s.values()) <= 0:
        return "The mean time per step of each phase, over the steady steps of all ranks."
    longest = max(times_s, key=lambda name: times_s[name])
    share = percent(times_s[longest] / sum(times_s.values()))
    what = f" ({MEANINGS[longest]})" if longest in MEANINGS else ""
    return f"With {counted(run.ranks, 'rank')}, the largest part of a step is {short(longest, 60)}{what}: {share}."


def _rows(runs: Sequence[RunMetrics], names: Sequence[str]) -> list[dict[str, Any]]:
    """One row per run and drawn phase; phases of other names are drawn as part of ``other`` and listed in the table."""
    rows = []
    for name, run in zip(names, runs, strict=True):
        times_s = measured(run)
        total_s = sum(times_s.values())
        drawn: dict[str, float] = {}
        for phase, time_s in times_s.items():
            bar = phase if phase in PHASES else "other"
            drawn[bar] = drawn.get(bar, 0.0) + time_s
        rows += [
            {"run": name, "phase": phase, "place": list(PHASES).index(phase), "time_s": time_s}
            | {"shown": show_time(time_s), "share": percent(time_s / total_s if total_s > 0 else None)}
            for phase, time_s in drawn.items()
            if time_s != 0  # measured, and in the table; a bar of no length would only lengthen the legend
        ]
    return rows


def _chart(rows: Sequence[Mapping[str, Any]], bars: int) -> Chart:
    totals_s: dict[str, float] = {}
    for row in rows:
        totals_s[row["run"]] = totals_s.get(row["run"], 0.0) + row["time_s"]
    factor, unit = time_unit(max(totals_s.values()))
    scaled = [{**row, "time": row["time_s"] * factor} for row in rows]
    drawn = [name for name in PHASES if any(row["phase"] == name for row in rows)]
    colours = alt.Scale(domain=drawn, range=[PHASES[name] for name in drawn])
    chart = (
        alt.Chart(data(scaled))
        .mark_bar(stroke="white", strokeWidth=0.75)
        .encode(
            y=alt.Y("run:N", title=None, sort=None, scale=alt.Scale(paddingInner=0.3, paddingOuter=0.1)),
            x=alt.X("time:Q", title=f"Time per step ({unit})", axis=alt.Axis(tickCount=6)),
            color=alt.Color("phase:N", scale=colours, legend=alt.Legend(symbolStrokeWidth=0)),
            order=alt.Order("place:Q"),
            tooltip=[
                alt.Tooltip("run:N", title="run"),
                alt.Tooltip("phase:N", title="phase"),
                alt.Tooltip("shown:N", title="per step"),
                alt.Tooltip("share:N", title="share"),
            ],
        )
    )
    return Chart(
        slug="phases",
        title="Time per step, by phase",
        caption="One bar per run: the mean time of a steady step, split into what the ranks were doing.",
        height_px=FRAME_PX + BAR_PX * bars,
        key_characters=max(len(name) for name in drawn),
        axis_characters=max(len(name) for name in totals_s),
        spec=spec(chart),
    )


def _absent(runs: Sequence[RunMetrics], names: Sequence[str]) -> str:
    by_runs: dict[tuple[str, ...], list[str]] = {}
    for phase in PHASES:
        missing = tuple(name for name, run in zip(names, runs, strict=True) if run.phases.get(phase) is None)
        if missing:
            by_runs.setdefault(missing, []).append(phase)
    parts = [
        f"{joined(phases)} {'in any run' if len(where) == len(runs) > 1 else f'on {joined(where)}'}"
        for where, phases in sorted(by_runs.items(), key=lambda item: -len(item[0]))
    ]
    return f"Not measured, and so not drawn: {'; '.join(parts)}." if parts else ""


def _closure(runs: Sequence[RunMetrics]) -> str:
    errors = [run.closure_error for run in runs if run.closure_error is not None]
    if not errors:
        return "Whether the phases add up to the step was not measured."
    worst = max(errors)
    if worst < ROUNDING:
        return "The phases add up to the step exactly (closure error 0)."
    return f"The phases add up to the step to within {percent(worst)} (closure error)."


def _table(runs: Sequence[RunMetrics], names: Sequence[str]) -> Table:
    by_run = [measured(run) for run in runs]
    rows = [
        (short(phase, 60), MEANINGS.get(phase, "named by the program"), *(_cell(times_s, phase) for times_s in by_run))
        for phase in in_order(name for times_s in by_run for name in times_s)
    ]
    caption = "Mean time per step, and its share of the step"
    return Table(caption=caption, columns=("Phase", "What it is", *names), rows=rows, text_columns=2)


def _cell(times_s: Mapping[str, float], phase: str) -> str:
    if phase not in times_s:
        return ABSENT
    total_s = sum(times_s.values())
    share = f" ({percent(times_s[phase] / total_s)})" if total_s > 0 else ""
    return f"{show_time(times_s[phase])}{share}"
