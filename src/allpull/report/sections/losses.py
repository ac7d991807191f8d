"""From the ideal speed-up to the measured one: the size of each loss, as a waterfall and as a table."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import altair as alt

from allpull.report.colours import PHASES, QUIET
from allpull.report.html.block import Block, Chart, Part, Table, Text, Tone
from allpull.report.html.chart import MUTED, data, spec
from allpull.report.html.largest_run import Against, against, explained, factor_of
from allpull.report.html.waterfall import Bar, Step, bars
from allpull.report.wording import ABSENT, percent, times
from allpull.schema.explained import Efficiency, ExplainResult
from allpull.schema.reported import ScalingReport
from allpull.schema.results import Interval
from allpull.units import counted, show_time

TITLE = "Where the speed-up goes"
GOOD, FAIR = 0.9, 0.8  # POP: above 0.8 is acceptable
BAR_PX, FRAME_PX = 34, 70
EXACT = 1e-4  # of the measured time: a smaller difference is rounding
WORTH = 1.005  # a smaller gain reads 1.00×
INSIDE = 0.25  # of the widest bar: a bar as long as this has room for its number
COARSE = 0.005  # below it, a change would read 0.00
REST = "counted otherwise"
NUMBERS: dict[str, tuple[Literal["left", "right"], int, str]] = {
    "inside": ("right", -6, "white"),
    "before": ("right", -5, MUTED),
    "after": ("left", 5, MUTED),
}
"""Position of the number of a bar → its alignment, its distance and its colour."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Factor:
    """One factor of the efficiency tree: its field, its name in the field, and what falls with it, in plain words.

    ``is_clause``: those words are a clause, so that they follow "because" without "of".
    """

    field: str
    name: str
    plain: str
    is_clause: bool = False


FACTORS = (
    Factor(field="load_balance", name="load balance", plain="the same rank is late each step", is_clause=True),
    Factor(field="serialisation", name="serialisation", plain="another rank is late each step", is_clause=True),
    Factor(field="orchestration", name="orchestration", plain="copies, and work between the phases"),
    Factor(field="sequential", name="sequential sections", plain="checkpoints, and evaluation by a few ranks"),
    Factor(field="input", name="input", plain="waiting for data"),
    Factor(field="transfer", name="transfer", plain="exchanging gradients that computing does not hide"),
)
"""From the ideal down to the measured; the tree is read the other way round."""
COMPUTATIONAL = Factor(
    field="computational",
    name="computational scaling",
    plain="a sample takes more compute time than at the reference",
    is_clause=True,
)

CLAUSES = {factor.name for factor in (*FACTORS, COMPUTATIONAL) if factor.is_clause}


def block(report: ScalingReport) -> Block | None:
    """The efficiency tree of the run with the most ranks; None if there is none."""
    detail = explained(report)
    if detail is None or detail.result.efficiency is None:
        return None
    result, tree = detail.result, detail.result.efficiency
    compared = against(report, result)
    drawn = _bars(result.ranks, tree, compared)
    parts: list[Part] = [_chart(drawn, compared)] if drawn else []
    parts.append(_table(result, tree, compared))
    if compared is not None:
        parts.append(Text(text=_two_numbers(compared)))
    parts.append(Text(text=_method(result), quiet=True))
    return Block(title=TITLE, lead=_lead(result.ranks, tree, drawn, compared), parts=parts)


def _bars(ranks: int, tree: Efficiency, compared: Against | None) -> list[Bar]:
    """The waterfall, in speed-up if there is a reference, else in ranks; [] if a factor was not measured."""
    factors = [*([COMPUTATIONAL] if compared else []), *FACTORS]
    values = [(factor, factor_of(tree, factor.field)) for factor in factors]
    steps = [Step(name=one.name, plain=one.plain, factor=value.value) for one, value in values if value is not None]
    if len(steps) < len(values):
        return []
    if compared is None:
        return bars(float(ranks), steps)
    return bars(compared.ideal, steps, compared.speedup, unexplained=REST)


def _lead(ranks: int, tree: Efficiency, drawn: Sequence[Bar], compared: Against | None) -> str:
    whole = factor_of(tree, "parallel")
    if whole is None or not drawn:
        return "How much of the time ranks computed is not known: some ranks of the job left no records."
    largest = min(drawn[1:-1], key=lambda bar: bar.change, default=None)
    plain = "" if largest is None or largest.change >= 0 else largest.plain
    if compared is not None:
        reached = f"{counted(ranks, 'rank')} are {times(compared.speedup)} as fast as {compared.reference_ranks:,}; "
        ideal = f"{times(compared.ideal)} would be ideal."
        because = "because" if largest is not None and largest.name in CLAUSES else "because of"
        return f"{reached}{ideal}" + (f" Most is lost {because} {plain}." if plain else "")
    does = "does" if ranks == 1 else "do"
    share = whole.value
    useful = f"{ranks * share:.1f}" if ranks * share >= 1 else f"{ranks * share:.2g}"
    worth = f"{counted(ranks, 'rank')} {does} the work of {useful}: {percent(share)} of their time is useful."
    return worth if share > GOOD or not plain else f"{worth} Most of the rest: {plain}."


def _chart(drawn: Sequence[Bar], compared: Against | None) -> Chart:
    unit = "×" if compared else ""
    widest = max(bar.end for bar in drawn)
    rows = [_row(bar, widest, unit) for bar in drawn]
    base = alt.Chart(data(rows)).encode(y=alt.Y("what:N", sort=None, title=None, scale=alt.Scale(paddingInner=0.25)))
    kinds = {"ends": PHASES["backward"], "lost": PHASES["wait"], "gained": PHASES["optimizer"]}
    title = "Speed-up" if compared else "Worth of ranks"
    filled = base.mark_bar().encode(
        x=alt.X("from:Q", title=title, scale=alt.Scale(domain=[0, widest], nice=False), axis=alt.Axis(tickCount=5)),
        x2="to:Q",
        color=alt.Color("kind:N", scale=alt.Scale(domain=list(kinds), range=list(kinds.values())), legend=None),
        tooltip=[alt.Tooltip("what:N", title=" "), alt.Tooltip("tip:N", title=" ")],
    )
    numbers = [_numbers(rows, side) for side in ("inside", "before", "after")]
    ideal = alt.Chart(data([{"at": drawn[0].end}]))
    rule = ideal.mark_rule(strokeDash=[4, 3], color=QUIET).encode(x="at:Q")
    counting = f" “{REST}” is explained below the table." if any(bar.name == REST for bar in drawn) else ""
    return Chart(
        slug="losses",
        title="From ideal to measured",
        caption=f"Each bar begins where the one above ends; together they lead from ideal to measured.{counting}",
        height_px=FRAME_PX + BAR_PX * len(rows),
        axis_characters=max(len(row["what"]) for row in rows),
        spec=spec(alt.layer(rule, filled, *numbers)),
    )


def _row(bar: Bar, widest: float, unit: str) -> dict[str, Any]:
    """A bar as drawn, and the position of its number: inside, before or after it."""
    low, high = min(bar.begin, bar.end), max(bar.begin, bar.end)
    number = f"{bar.end:.2f}{unit}" if bar.kind == "ends" else f"{_signed(bar.change)}{unit}"
    side = "inside" if high - low > INSIDE * widest else "before" if low > INSIDE * widest else "after"
    tip = f"{number}: {bar.plain}" if bar.plain else number
    places = {"from": low, "to": high, "at": low if side == "before" else high, "side": side}
    return {"what": bar.name, "kind": bar.kind, "number": number, "tip": tip, **places}


def _signed(change: float) -> str:
    """A change with its sign, to a hundredth, or to one digit below it.

    >>> _signed(-0.654), _signed(0.0031)
    ('−0.65', '+0.003')
    """
    size = abs(change)
    return f"{'−' if change < 0 else '+'}{f'{size:.2f}' if size >= COARSE else f'{size:.1g}'}"


def _numbers(rows: Sequence[dict[str, Any]], side: str) -> alt.Chart:
    marked = alt.Chart(data([row for row in rows if row["side"] == side]))
    align, dx, colour = NUMBERS[side]
    text: alt.Chart = marked.mark_text(align=align, dx=dx, color=colour).encode(
        x="at:Q", y=alt.Y("what:N", sort=None, title=None), text="number:N"
    )
    return text


def _table(result: ExplainResult, tree: Efficiency, compared: Against | None) -> Table:
    rows: list[tuple[str, ...]] = []
    tones: dict[tuple[int, int], Tone] = {}
    for name, what, field in _lines(compared):
        value = factor_of(tree, field)
        gain = result.gains.get(field)
        shown = ABSENT if gain is None else times(gain) if gain >= WORTH else "none"
        if value is not None:
            tones[len(rows), 2] = _tone(value.value)
        rows.append((name, what, *_shown(value), shown))
    return Table(
        caption="The efficiency tree",
        columns=("Factor", "What it is", "Value", "95 % interval", "Gain if gone"),
        rows=rows,
        text_columns=2,
        tones=tones,
    )


def _lines(compared: Against | None) -> Iterator[tuple[str, str, str]]:
    """Name, meaning and field of each line of the tree."""
    whole = "share of the ranks' time in which they compute: the product of the six below"
    yield "Parallel efficiency", whole, "parallel"
    for factor in reversed(FACTORS):
        yield f"  {factor.name.capitalize()}", f"lost to: {factor.plain}", factor.field
    if compared is not None:
        yield (
            "Computational scaling",
            "compute time per sample at the reference, divided by that of this run",
            "computational",
        )
        meaning = (
            "parallel efficiency × computational scaling: samples/s, over those of as many ranks that compute all the "
            "time, as fast as the reference's"
        )
        yield "Global efficiency", meaning, "global_"


def _two_numbers(compared: Against) -> str:
    """Why global efficiency differs from the scaling efficiency of the first screen."""
    at_the_top = percent(compared.efficiency)
    both = f"Global efficiency is {percent(compared.whole)}, the scaling efficiency at the top {at_the_top}"
    if abs(compared.whole - compared.efficiency) < WORTH - 1:
        return f"{both}: they agree."
    apart = times(abs(compared.speedup - compared.ideal * compared.whole))
    return (
        f"{both}, and both are right: they count otherwise, which is the bar of {apart} above. The scaling efficiency "
        "compares with the reference as it ran, the global one with ranks that compute all the time; and it leaves out "
        "steps with evaluations or checkpoints and the first of each epoch, which are counted in here."
    )


def _shown(interval: Interval | None) -> tuple[str, str]:
    if interval is None:
        return ABSENT, ABSENT
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
        else f"; the replay misses the measured time by {_error(result.simulation_error)}, which cannot show whether "
        "its model is right"
    )
    level = (
        "when each bucket of gradients was ready is known"
        if window.level == "bucket"
        else "buckets are not known, so waiting is an upper bound while the network is busy"
    )
    clock = "" if not result.clock_error_s else f", clocks of hosts are within {show_time(result.clock_error_s)}"
    return (
        f"From {counted(window.steps, 'step')} ({show_time(window.seconds)}), replayed without one loss "
        f"after the other: {level}{clock}{exact}. Factors multiply. Green is 0.9 and more, yellow 0.8 and more."
    )
