"""From the ideal speed-up to the measured one: what each loss takes, as a waterfall and as a table."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import altair as alt

from allpull.report.block import Block, Chart, Part, Table, Text, Tone
from allpull.report.chart import data, spec
from allpull.report.colours import PHASES, QUIET
from allpull.report.explaining import explained
from allpull.report.wording import ABSENT, counted, percent, times
from allpull.schema.explained import Efficiency, ExplainResult
from allpull.schema.reported import ScalingReport
from allpull.schema.results import Interval
from allpull.units import show_time

TITLE = "Where the speed-up goes"
GOOD, FAIR = 0.9, 0.8  # POP: above 0.8 is acceptable
BAR_PX, FRAME_PX = 34, 70
EXACT = 1e-4  # of the measured time: a smaller difference is rounding
SMALL = 0.002  # of the ideal: a bar that nobody would see


@dataclass(frozen=True, slots=True, kw_only=True)
class Factor:
    """One factor of the efficiency tree: its field, its name in the field, and what falls with it, in plain words."""

    field: str
    name: str
    plain: str


FACTORS = (
    Factor(field="load_balance", name="load balance", plain="the same rank is late each step"),
    Factor(field="serialisation", name="serialisation", plain="another rank is late each step"),
    Factor(field="orchestration", name="orchestration", plain="copies, and work between the phases"),
    Factor(field="sequential", name="sequential sections", plain="a few ranks evaluate or save, the others wait"),
    Factor(field="input", name="input", plain="waiting for data"),
    Factor(field="transfer", name="transfer", plain="exchanging gradients that computing does not hide"),
)
"""From the ideal down to the measured; the tree is read the other way round."""


def block(report: ScalingReport) -> Block | None:
    """The efficiency tree of the run with most ranks; None where there is none."""
    detail = explained(report)
    if detail is None or detail.result.efficiency is None:
        return None
    result, tree = detail.result, detail.result.efficiency
    parts: list[Part] = [_chart(result.ranks, tree), _table(result, tree), Text(text=_method(result), quiet=True)]
    return Block(title=TITLE, lead=_lead(result.ranks, tree), parts=parts)


def _lead(ranks: int, tree: Efficiency) -> str:
    worst = min(FACTORS, key=lambda factor: _of(tree, factor.field).value)
    share = tree.parallel.value
    worth = f"{counted(ranks, 'rank')} do the work of {ranks * share:.1f}: {percent(share)} of their time is useful."
    return worth if share > GOOD else f"{worth} Most of the rest: {worst.plain}."


def _of(tree: Efficiency, field: str) -> Interval:
    found: Interval = getattr(tree, field)
    return found


def _chart(ranks: int, tree: Efficiency) -> Chart:
    rows: list[dict[str, Any]] = [_bar("ideal", 0.0, float(ranks), "ends", f"{ranks} ranks")]
    left = float(ranks)
    for factor in FACTORS:
        after = left * _of(tree, factor.field).value
        if left - after > SMALL * ranks:
            rows.append(_bar(factor.name, after, left, "lost", f"−{left - after:.2f} ranks: {factor.plain}"))
        left = after
    rows.append(_bar("measured", 0.0, left, "ends", f"{left:.2f} ranks' worth"))
    colours = alt.Scale(domain=["ends", "lost"], range=[PHASES["backward"], PHASES["wait"]])
    base = alt.Chart(data(rows)).encode(y=alt.Y("what:N", sort=None, title=None, scale=alt.Scale(paddingInner=0.25)))
    bars = base.mark_bar().encode(
        x=alt.X("begin:Q", title="Worth of ranks", scale=alt.Scale(domain=[0, ranks], nice=False)),
        x2="end:Q",
        color=alt.Color("kind:N", scale=colours, legend=None),
        tooltip=[alt.Tooltip("what:N", title=" "), alt.Tooltip("said:N", title=" ")],
    )
    rule = alt.Chart(data([{"at": ranks}])).mark_rule(strokeDash=[4, 3], color=QUIET).encode(x="at:Q")
    return Chart(
        slug="losses",
        title="From ideal to measured",
        caption="Each bar begins where the one above ends: what is left of the ranks' time after that loss.",
        height_px=FRAME_PX + BAR_PX * len(rows),
        axis_characters=max(len(row["what"]) for row in rows),
        spec=spec(alt.layer(bars, rule)),
    )


def _bar(what: str, begin: float, end: float, kind: str, said: str) -> dict[str, Any]:
    return {"what": what, "begin": begin, "end": end, "kind": kind, "said": said}


def _table(result: ExplainResult, tree: Efficiency) -> Table:
    rows: list[tuple[str, ...]] = [
        (
            "Parallel efficiency",
            "useful share of the ranks' time: the product of the six below",
            *_numbers(tree.parallel),
            ABSENT,
        )
    ]
    for factor in reversed(FACTORS):
        gain = result.gains.get(factor.field)
        rows.append(
            (
                f"  {factor.name.capitalize()}",
                f"falls when: {factor.plain}",
                *_numbers(_of(tree, factor.field)),
                times(gain),
            )
        )
    tones = {(row, 2): _tone(value) for row, value in enumerate(_values(tree))}
    if tree.computational is not None and tree.global_ is not None:
        rows.append(
            (
                "Computational scaling",
                "work per sample at the reference over that here",
                *_numbers(tree.computational),
                ABSENT,
            )
        )
        rows.append(("Global efficiency", "measured speed-up over the ideal one", *_numbers(tree.global_), ABSENT))
        tones |= {(len(rows) - 2, 2): _tone(tree.computational.value), (len(rows) - 1, 2): _tone(tree.global_.value)}
    return Table(
        caption="The efficiency tree",
        columns=("Factor", "What it is", "Value", "95 % interval", "Gain if only this were gone"),
        rows=rows,
        words=2,
        tones=tones,
    )


def _values(tree: Efficiency) -> Sequence[float]:
    return [tree.parallel.value, *(_of(tree, factor.field).value for factor in reversed(FACTORS))]


def _numbers(interval: Interval) -> tuple[str, str]:
    if interval.low is None or interval.high is None:
        return f"{interval.value:.3f}", ABSENT
    return f"{interval.value:.3f}", f"{interval.low:.3f} to {interval.high:.3f}"


def _error(share: float) -> str:
    return percent(share) if share >= EXACT else f"less than {percent(EXACT)}"


def _tone(value: float) -> Tone:
    return "good" if value >= GOOD else "fair" if value >= FAIR else "poor"


def _method(result: ExplainResult) -> str:
    window = result.window
    exact = (
        ""
        if result.simulation_error is None
        else f"; the replay misses the measured time by {_error(result.simulation_error)}"
    )
    level = (
        "when each bucket of gradients was ready is known"
        if window.level == "bucket"
        else "buckets are not known, so waiting is an upper bound while the network is busy"
    )
    clock = "" if not result.clock_error_s else f", clocks of hosts are within {show_time(result.clock_error_s)}"
    return (
        f"From {counted(window.steps, 'consecutive step')} ({show_time(window.seconds)}), replayed without one loss "
        f"after the other: {level}{clock}{exact}. Factors multiply. Green is 0.9 and more, yellow 0.8 and more."
    )
