"""Did it learn as well? Loss and accuracy against epochs: speed at the cost of accuracy is no gain."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import altair as alt

from allpull.report.colours import RUNS
from allpull.report.html.block import Block, Chart, Part, Table, Text
from allpull.report.html.chart import LINE_KEY, data, spec
from allpull.report.html.page_limits import evenly
from allpull.report.printable import short
from allpull.report.wording import ABSENT, joined, labels, percent
from allpull.schema.reported import ScalingReport
from allpull.schema.results import Curve, RunDetail
from allpull.units import show_count

TITLE = "How well it learns"
LOSSES = {"train_loss": "training", "test_loss": "test"}
ACCURACIES = {
    "test_top1": "top-1",
    "test_top5": "top-5",
    "test_map": "mAP",
    "test_f1_micro": "micro F1",
    "test_f1_macro": "macro F1",
    "train_top1": "training top-1",
    "train_top5": "training top-5",
}
SEVERAL = ("test_map", "test_f1_micro", "test_f1_macro")
DASHES = {"Full lines": [1, 0], "dashed": [5, 3], "dotted": [1, 3], "dash-dotted": [6, 3, 1, 3], "long dashes": [10, 3]}
"""How the curves of one chart differ, in the order of its table."""


def block(report: ScalingReport) -> Block | None:
    """Training loss and test accuracy against epochs, and their final values; None if none was recorded."""
    pairs = list(zip(labels(report.show.runs), report.details, strict=True))
    with_curves = [(label, detail) for label, detail in pairs if _known(detail)]
    if not with_curves:
        return None
    chosen = [with_curves[index] for index in evenly(len(with_curves), len(RUNS))]
    parts: list[Part] = []
    lines = [(label, detail.curves) for label, detail in chosen]
    loss = curve_rows(lines, LOSSES, 1.0)
    if loss:
        parts.append(curve_chart("loss", "Loss against epochs", "Loss", loss))
    accuracy = curve_rows(lines, ACCURACIES, 100.0)
    if accuracy:
        kind = (
            "Accuracy"
            if {row["curve"] for row in accuracy} & {ACCURACIES["train_top1"], ACCURACIES["train_top5"]}
            else "Test accuracy"
        )
        parts.append(curve_chart("accuracy", f"{kind} against epochs", f"{kind} (%)", accuracy))
    if len(chosen) < len(with_curves):
        parts.append(Text(text=f"Drawn: {len(chosen)} of {len(with_curves)} runs, for legibility.", quiet=True))
    parts.append(_table(pairs))
    undrawn = sorted({short(curve.name, 40) for _, detail in pairs for curve in detail.curves} - _NAMES)
    if undrawn:
        parts.append(Text(text=f"Recorded, and not drawn: {joined(undrawn)}.", quiet=True))
    return Block(title=TITLE, lead=_lead(pairs), parts=parts)


_NAMES = {*LOSSES, *ACCURACIES}


def _known(detail: RunDetail) -> bool:
    return any(curve.name in _NAMES and any(v is not None for v in curve.values) for curve in detail.curves)


def _lead(pairs: Sequence[tuple[str, RunDetail]]) -> str:
    reached = [(label, detail.metrics.accuracy) for label, detail in pairs if detail.metrics.accuracy is not None]
    precise = [(label, last) for label, detail in pairs if (last := _last(detail, "test_map")) is not None]
    if not reached and precise:
        return f"Mean average precision over labels in the last test: {_listed(precise)}."
    if not reached:
        return "The loss on the training samples as training went on."
    if len(reached) == 1:
        return f"In the last evaluation, {percent(reached[0][1])} of the answers were right."
    return f"Right answers in the last test: {_listed(reached)}."


def _listed(scores: Sequence[tuple[str, float]]) -> str:
    more = f", and {len(scores) - 3} more in the table" if len(scores) > 3 else ""
    return joined([f"{percent(score)} with {label}" for label, score in scores[:3]]) + more


def curve_rows(
    lines: Sequence[tuple[str, Sequence[Curve]]], curves: Mapping[str, str], factor: float
) -> list[dict[str, Any]]:
    """Rows of a chart, of the ``curves`` that are named, by their names there; values times ``factor``."""
    return [
        {"run": label, "curve": curves[curve.name], "epoch": epoch, "value": None if value is None else value * factor}
        | {"shown": ABSENT if value is None else show_count(value * factor)}
        for label, own in lines
        for curve in own
        if curve.name in curves
        for epoch, value in zip(curve.epochs, curve.values, strict=False)
    ]


def curve_chart(slug: str, title: str, y_title: str, rows: Sequence[dict[str, Any]]) -> Chart:
    """Values against epochs: one colour per run, one dash per curve."""
    runs, curves = (list(dict.fromkeys(row[key] for row in rows)) for key in ("run", "curve"))
    x = alt.X("epoch:Q", title="Epochs", axis=alt.Axis(tickCount=7, grid=False))
    y = alt.Y("value:Q", title=y_title, scale=alt.Scale(zero=False, nice=True), axis=alt.Axis(tickCount=6))
    colour = alt.Color("run:N", scale=alt.Scale(domain=runs, range=list(RUNS[: len(runs)])), legend=LINE_KEY)
    base = alt.Chart(data(rows)).encode(x=x, y=y, color=colour)
    line = base.mark_line(strokeWidth=2)
    if len(curves) > 1:
        dash = alt.Scale(domain=curves, range=[*DASHES.values()][: len(curves)])
        line = line.encode(strokeDash=alt.StrokeDash("curve:N", scale=dash, legend=LINE_KEY))
    tooltip = [
        alt.Tooltip("run:N", title="run"),
        alt.Tooltip("curve:N", title="curve"),
        alt.Tooltip("epoch:Q", title="epochs done", format=".3~f"),
        alt.Tooltip("shown:N", title="value"),
    ]
    # Points are for the pointer; of many, they would hide their line.
    point = base.mark_point(filled=True, size=30, opacity=1 if len(rows) <= 60 else 0).encode(tooltip=tooltip)
    chart = alt.layer(line, point)
    ways = [f"{way}: {curve}" for way, curve in zip(DASHES, curves, strict=False)]
    dashed = f" {'; '.join(ways)}." if len(curves) > 1 else ""
    return Chart(
        slug=slug,
        title=title,
        caption=f"{title}, one colour per run.{dashed}",
        height_px=280,
        key_characters=max(len(label) for label in runs),
        spec=spec(chart),
    )


def _table(pairs: Sequence[tuple[str, RunDetail]]) -> Table:
    """Of scores, top-1 and top-5, and those of several labels a sample where a run has them."""
    several = [name for name in SEVERAL if any(_last(detail, name) is not None for _, detail in pairs)]
    rows = [
        (
            label,
            ABSENT if (loss := _last(detail, "train_loss")) is None else show_count(loss),
            percent(detail.metrics.accuracy),
            percent(detail.metrics.accuracy_top5),
            *(percent(_last(detail, name)) for name in several),
            f"{detail.metrics.global_batch:,}" if detail.metrics.global_batch else ABSENT,
        )
        for label, detail in pairs
    ]
    scores = [f"Test {ACCURACIES[name]}" for name in several]
    columns = ("Run", "Last training loss", "Test top-1", "Test top-5", *scores, "Global batch")
    return Table(caption="Where learning ended", columns=columns, rows=rows)


def _last(detail: RunDetail, name: str) -> float | None:
    values = [value for curve in detail.curves if curve.name == name for value in curve.values if value is not None]
    return values[-1] if values else None
