"""Charts of the lab of the global batch: one number over the batch, the time over the ranks, published epochs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import altair as alt
import numpy as np

from allpull.labs.batch import epochs_at
from allpull.report.colours import QUIET, RUNS
from allpull.report.html.block import Chart
from allpull.report.html.chart import LINE_KEY, data, spec
from allpull.schema.labs import BatchPoint, BatchResult, EpochsFit, OverSeeds, PublishedConvergence
from allpull.units import counted, show_count

FORM = "E(B) = E0 (1 + B ÷ Bc)"
FORM_SOURCE = "McCandlish et al. 2018"
APART = 1.05  # times the batch, from one line to the next
Rows = list[dict[str, Any]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Measure:
    """What a chart over the global batch shows, and in which unit."""

    slug: str
    title: str
    unit: str
    axis_format: str = ".2~g"


def row(point: BatchPoint, value: OverSeeds, spent: float, result: BatchResult) -> dict[str, Any]:
    """One mark: the median and range over seeds; where the median did not reach the target, what was spent in vain."""
    never = value.median is None
    return {
        "batch": point.global_batch,
        "value": spent if never else value.median,
        "low": value.low,
        "high": spent if value.high is None and value.low is not None else value.high,
        "never": never,
        "note": f"{point.reached} of {point.trainings} reached the target within {result.max_epochs} epochs",
    }


def _x(batches: Sequence[int], field: str = "batch") -> alt.X:
    return alt.X(
        f"{field}:Q",
        title="Global batch",
        scale=alt.Scale(type="log", base=2, domain=[batches[0] / 1.2, batches[-1] * 1.2], nice=False),
        axis=alt.Axis(values=list(batches), format=",d", labelOverlap=True),
    )


def against_batch(
    result: BatchResult,
    measure: Measure,
    lines: Mapping[str, Rows],
    fit: EpochsFit | None = None,
) -> Chart:
    """Named lines over the global batch, with the range over seeds; hollow triangles did not get there."""
    names, rows = list(lines), _named(lines)
    for one in rows:  # side by side, so that no range hides another
        one["batch_drawn"] = one["batch"] * APART ** (names.index(one["series"]) - (len(names) - 1) / 2)
    y = alt.Y(
        "value:Q",
        title=measure.unit,
        scale=alt.Scale(type="log", nice=False),
        axis=alt.Axis(format=measure.axis_format, labelOverlap=True),
    )
    x = _x(result.batches)
    colour = alt.Color(
        "series:N",
        scale=alt.Scale(domain=names, range=list(RUNS[: len(names)])),
        legend=LINE_KEY if len(names) > 1 else None,
    )
    base = alt.Chart(data(rows)).encode(x=_x(result.batches, "batch_drawn"), y=y, color=colour)
    tooltip = ["series:N", "batch:Q", alt.Tooltip("value:Q", format=".3s"), "note:N"]
    layers: list[alt.Chart] = [
        base.transform_filter("!datum.never")
        .mark_line(strokeWidth=2)
        .encode(strokeDash=alt.StrokeDash("series:N", sort=names, legend=None)),
        base.transform_filter("isValid(datum.low)").mark_rule(strokeWidth=2).encode(y="low:Q", y2="high:Q"),
        base.transform_filter("!datum.never").mark_circle(size=70, opacity=1).encode(tooltip=tooltip),
        base.transform_filter("datum.never")
        .mark_point(shape="triangle-up", size=110, strokeWidth=2, filled=False)
        .encode(tooltip=tooltip),
    ]
    caption = f"Median and range of {counted(result.seeds, 'seed')}; both axes are logarithmic."
    if any(one["never"] for one in rows):
        caption += (
            f" Hollow triangle: half of the trainings or more did not reach the target in {result.max_epochs} epochs; "
            "it stands where they were stopped."
        )
    if fit is not None:
        layers.insert(0, _fit_line(fit, x, y))
        caption += f" Grey: {_fit_text(fit)}, fitted to the warm-up where every training got there."
    return Chart(
        slug=measure.slug,
        title=measure.title,
        caption=caption,
        height_px=280,
        key_characters=max(map(len, names)),
        spec=spec(alt.layer(*layers)),
    )


def _fit_line(fit: EpochsFit, x: alt.X, y: alt.Y) -> alt.Chart:
    batches = np.geomspace(fit.smallest_batch, fit.largest_batch, 40)
    rows = [{"batch": float(batch), "value": epochs_at(fit, float(batch))} for batch in batches]
    drawn: alt.Chart = alt.Chart(data(rows)).mark_line(color=QUIET, strokeWidth=5, opacity=0.45).encode(x=x, y=y)
    return drawn


def _fit_text(fit: EpochsFit) -> str:
    critical = "no bound" if fit.critical_batch is None else f"Bc = {show_count(fit.critical_batch)}"
    return f"{FORM} with E0 = {fit.first_epochs:.3g} and {critical} ({FORM_SOURCE})"


def _named(lines: Mapping[str, Rows]) -> Rows:
    return [{**one, "series": name} for name, rows in lines.items() for one in rows]


def _rank_lines(result: BatchResult, best: BatchPoint | None) -> dict[str, Rows]:
    """The points of each line over the number of ranks, by its name."""
    first = result.batches[0]
    warm = [
        {**row(one, one.seconds, one.spent_seconds, result), "ranks": one.ranks, "kind": "measured"}
        for one in result.points
        if one.rule == "warmup"
    ]
    lines = {f"measured, {first} samples per rank": [one for one in warm if one["batch"] == first * one["ranks"]]}
    if best is not None:
        shared = [one for one in warm if one["batch"] == best.global_batch]
        lines[f"measured, a batch of {best.global_batch:,} shared"] = shared
    if result.forecast:  # both lines begin where one rank was measured
        begin = {"ranks": 1, "value": warm[0]["value"], "never": False, "kind": "begin"}
        later = {"never": False, "kind": "forecast", "note": "not measured"}
        lines[f"forecast, {first} samples per rank"] = [
            begin,
            *({**later, "ranks": one.ranks, "value": one.seconds} for one in result.forecast),
        ]
        lines["forecast if epochs did not grow"] = [
            begin,
            *({**later, "ranks": one.ranks, "value": one.seconds_if_epochs_stayed} for one in result.forecast),
        ]
    return lines


def ranks_chart(result: BatchResult, best: BatchPoint | None) -> Chart:
    """Time to the target over the number of ranks: what was measured, and what perfect scaling would give."""
    lines = _rank_lines(result, best)
    rows = _named(lines)
    names = list(lines)
    counts = sorted({one["ranks"] for one in rows})
    is_forecast = ["forecast" in {one["kind"] for one in of_line} for of_line in lines.values()]
    forecast_styles = iter([(RUNS[1], [6, 4]), (QUIET, [2, 3])])
    measured_styles = iter([(RUNS[0], [1, 0]), (RUNS[2], [1, 0])])
    styles = [next(forecast_styles if one else measured_styles) for one in is_forecast]
    colour = alt.Scale(domain=names, range=[colour for colour, _ in styles])
    dash = alt.Scale(domain=names, range=[dash for _, dash in styles])
    base = alt.Chart(data(rows)).encode(
        x=alt.X(
            "ranks:Q",
            title="Ranks",
            scale=alt.Scale(type="log", base=2, domain=[0.85, 1.2 * max(*counts, 2)], nice=False),
            axis=alt.Axis(values=counts, format=",d", labelOverlap=True),
        ),
        y=alt.Y(
            "value:Q",
            title="s",
            scale=alt.Scale(type="log", nice=False),
            axis=alt.Axis(format=".2~g", labelOverlap=True),
        ),
        color=alt.Color("series:N", scale=colour, legend=LINE_KEY),
    )
    tooltip = ["series:N", "ranks:Q", alt.Tooltip("value:Q", format=".3s"), "note:N"]
    reached = base.transform_filter("!datum.never")
    layers = [
        reached.mark_line(strokeWidth=2).encode(strokeDash=alt.StrokeDash("series:N", scale=dash, legend=None)),
        base.transform_filter("isValid(datum.low)").mark_rule(strokeWidth=2).encode(y="low:Q", y2="high:Q"),
        reached.transform_filter("datum.kind == 'measured'").mark_circle(size=80, opacity=1).encode(tooltip=tooltip),
        reached.transform_filter("datum.kind == 'forecast'")
        .mark_point(size=70, filled=False, fill="white")
        .encode(tooltip=tooltip),
        base.transform_filter("datum.never")
        .mark_point(shape="triangle-up", size=110, strokeWidth=2, filled=False)
        .encode(tooltip=tooltip),
    ]
    return Chart(
        slug="ranks",
        title="Time to the target against ranks, with warm-up",
        caption="Filled: measured, median and range over seeds. Hollow: not measured. Both axes are logarithmic.",
        height_px=280,
        key_characters=max(map(len, names)),
        spec=spec(alt.layer(*layers)),
    )


def published_chart(known: PublishedConvergence) -> Chart:
    """Published epochs over the global batch, with the fit through them."""
    rows: Rows = [
        {
            "batch": one.global_batch,
            "value": one.mean,
            "low": one.low,
            "high": one.high,
            "note": f"{one.trainings} runs",
        }
        for one in known.points
    ]
    batches = [one.global_batch for one in known.points]
    x = alt.X(
        "batch:Q",
        title="Global batch",
        scale=alt.Scale(type="log", base=2, domain=[batches[0] / 1.2, batches[-1] * 1.2], nice=False),
        axis=alt.Axis(values=_apart(batches), format=",d", labelOverlap=True),
    )
    y = alt.Y("value:Q", title="epochs", scale=alt.Scale(zero=True))
    base = alt.Chart(data(rows)).encode(x=x, y=y)
    tooltip = ["batch:Q", alt.Tooltip("value:Q", format=".1f"), "note:N"]
    return Chart(
        slug="published",
        title="Published: ResNet-50 on ImageNet",
        caption=f"{known.recipe}. Mean and range of the published trainings. Grey: {_fit_text(known.fit)}.",
        height_px=240,
        spec=spec(
            alt.layer(
                _fit_line(known.fit, x, y),
                base.mark_rule(strokeWidth=2, color=RUNS[3]).encode(y="low:Q", y2="high:Q"),
                base.mark_point(shape="diamond", size=80, filled=True, opacity=1, color=RUNS[3]).encode(
                    tooltip=tooltip
                ),
            )
        ),
    )


def _apart(batches: Iterable[int]) -> list[int]:
    """Those of ``batches`` whose labels fit side by side: each at least 1.6 times the one before."""
    kept: list[int] = []
    for batch in batches:
        if not kept or batch >= 1.6 * kept[-1]:
            kept.append(batch)
    return kept
