"""A forecast as one page: the sentence for a proposal, rates with bands, where a step goes, what a change brings."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import altair as alt

from allpull.report.atomic_file import place
from allpull.report.colours import QUIET, RUNS
from allpull.report.html.block import Block, Chart, Command, Commands, Notice, Part, Points, Table, Text, Tile, Tiles
from allpull.report.html.chart import LINE_KEY, data, spec, time_unit
from allpull.report.page import Page, render_page
from allpull.report.printable import short
from allpull.report.terminal.targets import bounds_text, title_of
from allpull.report.wording import ABSENT, NAME_CHARACTERS, joined, percent
from allpull.schema.forecast import ForecastParameter, ForecastResult, ForecastSize, WhatIf
from allpull.schema.interval import Interval
from allpull.units import counted, show_count, show_time

GOOD_EFFICIENCY = 0.8  # what proposals are usually asked for
SMALL = 0.001  # of a step: a term below it in every size is not drawn
COLOURS = (*RUNS, "#F2DC5D", "#332288", "#882255")


def write(result: ForecastResult, path: Path) -> Path:
    """Write the page of ``result`` to ``path``; returns ``path``.

    Raises:
        BadInput: ``path`` cannot be written.
    """
    return place(path, render_page(page(result), path.parent).encode("utf-8"))


def page(result: ForecastResult) -> Page:
    """The page of ``result``."""
    runs = sorted({(one.ranks, one.hosts) for one in result.calibration if one.kind == "run"})
    measured = joined([f"{counted(ranks, 'rank')} on {counted(hosts, 'host')}" for ranks, hosts in runs])
    made = {
        "answer": _answer(result),
        "sizes": _sizes(result),
        "terms": _terms(result),
        "epochs": _epochs(result),
        "changes": _changes(result),
        "target": _target(result),
        "certainty": _certainty(result),
    }
    return Page(
        kicker="Forecast",
        subject=short(result.program, NAME_CHARACTERS),
        facts=f"from {measured}; intervals cover 90 %",
        blocks={name: block for name, block in made.items() if block is not None},
    )


def proposal(result: ForecastResult) -> str:
    """Up to how many ranks the efficiency stays good, for a proposal."""
    sizes = sorted(result.predictions, key=lambda one: one.ranks)
    good = [one for one in sizes if one.efficiency.value >= GOOD_EFFICIENCY]
    poor = [one for one in sizes if one.efficiency.value < GOOD_EFFICIENCY]
    line = percent(GOOD_EFFICIENCY)
    base = counted(result.speedup_reference or 1, "rank")
    if not poor:
        return f"Up to {sizes[-1].ranks:,} ranks efficiency stays above {line} of {base}."
    first = poor[0]
    low, high = first.efficiency.low, first.efficiency.high
    unsure = f" ({percent(low)} to {percent(high)})" if low is not None and high is not None else ""
    last = [one for one in good if one.ranks < first.ranks]
    beyond = f"Beyond {last[-1].ranks:,} ranks efficiency falls" if last else f"At {first.ranks:,} ranks efficiency is"
    there = f" under {line} of {base}: {percent(first.efficiency.value)}{unsure} at {first.ranks:,} ranks"
    return f"{beyond}{there}, where beside compute {first.bottleneck} costs most."


def _answer(result: ForecastResult) -> Block:
    if result.refused is not None or not result.predictions:
        reason = result.refused or "no size was requested"
        return Block(title="Answer", lead=f"No forecast: {reason}.", parts=list(_next(result)))
    largest = result.predictions[-1]
    tiles = [
        Tile(
            value=f"{show_count(largest.throughput.value)}/s",
            label=f"samples on {largest.ranks:,} ranks",
            detail=_range(largest.throughput, show_count),
        ),
        Tile(
            value=show_time(largest.step_s.value),
            label="a step",
            detail=_range(largest.step_s, show_time),
        ),
        Tile(
            value=percent(largest.efficiency.value),
            label="of the ideal speed-up",
            detail=_range(largest.efficiency, percent),
        ),
        Tile(
            value=f"{largest.extrapolation:.3g}×",
            label="beyond what was measured",
            detail="ranks ÷ the most that were measured",
        ),
    ]
    return Block(title="Answer", lead=proposal(result), parts=[Tiles(tiles=tiles)])


def _range(of: Interval, show: Any) -> str:
    return ABSENT if of.low is None or of.high is None else f"{show(of.low)} to {show(of.high)}"


def _sizes(result: ForecastResult) -> Block | None:
    if not result.predictions:
        return None
    measured = [
        {"ranks": one.ranks, "rate": one.batch * one.ranks / one.step_s, "kind": "measured, used"}
        for one in result.calibration
        if one.batch is not None and one.step_s
    ]
    measured += [
        {"ranks": one.ranks, "rate": one.batch * one.ranks / one.measured_step_s, "kind": "measured, held back"}
        for one in result.predictions
        if one.measured_step_s
    ]
    rows = [
        {
            "ranks": one.ranks,
            "rate": one.throughput.value,
            "low": one.throughput.low,
            "high": one.throughput.high,
            "kind": "forecast",
        }
        for one in result.predictions
    ]
    x = alt.X("ranks:Q", title="Ranks", scale=alt.Scale(type="log", base=2, nice=False))
    y = alt.Y("rate:Q", title="Samples/s", scale=alt.Scale(type="log"), axis=alt.Axis(format="~s"))
    kinds = ["forecast", "measured, used", "measured, held back", "ideal"]
    colour = alt.Color(
        "kind:N", scale=alt.Scale(domain=kinds, range=[RUNS[0], "#1C2430", RUNS[1], QUIET]), legend=LINE_KEY
    )
    band = alt.Chart(data(rows)).mark_area(opacity=0.2, color=RUNS[0]).encode(x=x, y=alt.Y("low:Q"), y2="high:Q")
    lines = alt.Chart(data([*rows, *_ideal(result)])).mark_line(strokeWidth=2).encode(
        x=x, y=y, color=colour, strokeDash=alt.StrokeDash("kind:N", legend=None)
    )  # fmt: skip
    points = (
        alt.Chart(data([*rows, *measured])).mark_point(size=70, filled=True, opacity=1).encode(x=x, y=y, color=colour)
    )
    chart = Chart(
        slug="forecast-rate",
        title="Throughput against ranks",
        caption="The band holds 90 % of the draws; both axes are logarithmic, so that the ideal is a straight line.",
        height_px=320,
        key_characters=20,
        spec=spec(alt.layer(band, lines, points)),
    )
    parts: list[Part] = [chart, _table(result)]
    if result.refused_sizes:
        refused = [f"{counted(one.ranks, 'rank')}: {one.reason}." for one in result.refused_sizes]
        parts.append(Notice(title="Not forecast", items=refused))
    return Block(title="Sizes", lead="What each size will do, beside what was measured.", parts=parts)


def _ideal(result: ForecastResult) -> list[dict[str, Any]]:
    """The rate per rank of the reference, over all ranks shown."""
    used = [one for one in result.calibration if one.ranks == result.speedup_reference and one.batch and one.step_s]
    if not used:
        return []
    assert used[0].batch is not None
    assert used[0].step_s is not None
    each = used[0].batch / used[0].step_s
    last = max(one.ranks for one in result.predictions)
    return [{"ranks": ranks, "rate": each * ranks, "kind": "ideal"} for ranks in dict.fromkeys((used[0].ranks, last))]


def _table(result: ForecastResult) -> Table:
    is_held = any(one.measured_step_s is not None for one in result.predictions)
    columns = ["Ranks", "Hosts", "Step", "90 % interval", "Samples/s", "Efficiency"]
    return Table(
        caption="Each size",
        columns=[*columns, "Measured step", "Error"] if is_held else columns,
        rows=[[*_size_row(one), *(_held(one) if is_held else ())] for one in result.predictions],
    )


def _size_row(one: ForecastSize) -> list[str]:
    return [
        f"{one.ranks:,}",
        f"{one.hosts:,}",
        show_time(one.step_s.value),
        _range(one.step_s, show_time),
        show_count(one.throughput.value),
        percent(one.efficiency.value),
    ]


def _held(one: ForecastSize) -> list[str]:
    if one.measured_step_s is None:
        return [ABSENT, ABSENT]
    return [show_time(one.measured_step_s), f"{one.step_s.value / one.measured_step_s - 1:+.1%}"]


def _terms(result: ForecastResult) -> Block | None:
    if not result.predictions:
        return None
    names = _named({str(one.ranks): (one.terms, one.step_s.value) for one in result.predictions})
    factor, unit = time_unit(max(one.step_s.value for one in result.predictions))
    colours = alt.Scale(domain=names, range=list(COLOURS[: len(names)]))
    rows = [
        {
            "ranks": f"{one.ranks:,}",
            "place": place,
            "term": name,
            "order": names.index(name),
            "time": factor * one.terms[name],
        }
        for place, one in enumerate(result.predictions)
        for name in names
        if name in one.terms
    ]
    bars = alt.Chart(data(rows)).mark_bar().encode(
        x=alt.X("time:Q", title=f"{unit} per step"),
        y=alt.Y("ranks:N", title="Ranks", sort=alt.SortField("place")),
        color=alt.Color("term:N", scale=colours, legend=alt.Legend()),
        order="order:O",
    )  # fmt: skip
    chart = Chart(
        slug="forecast-terms",
        title="Where a step goes",
        caption="Terms sum to the step. Only what no other work hides counts.",
        height_px=60 + 30 * len(result.predictions),
        key_characters=max(map(len, names), default=0),
        spec=spec(bars),
    )
    largest = result.predictions[-1]
    lead = f"At {largest.ranks:,} ranks, beside compute, {largest.bottleneck} costs most."
    simpler = [one for one in result.baselines if (one.ranks, one.hosts) == (largest.ranks, largest.hosts)]
    rivals = [f"{one.name} {show_time(one.step_s)}" for one in simpler]
    text = f"Simpler arithmetic, from the same measurements: {joined(rivals)}." if rivals else ""
    return Block(title="Terms", lead=lead, parts=[chart, *([Text(text=text, quiet=True)] if text else [])])


def _named(terms: dict[str, tuple[dict[str, float], float]]) -> list[str]:
    """The terms that can be seen in one of the bars, in their order."""
    all_names = dict.fromkeys(name for of_one, _ in terms.values() for name in of_one)
    return [
        name
        for name in all_names
        if any(abs(of_one.get(name, 0.0)) >= SMALL * whole for of_one, whole in terms.values())
    ]


def _epochs(result: ForecastResult) -> Block | None:
    known = [(one, one.epoch) for one in result.predictions if one.epoch is not None]
    if not known:
        return None
    names = _named({str(one.ranks): (epoch.terms, epoch.seconds.value) for one, epoch in known})
    rows = [
        [
            f"{one.ranks:,}",
            show_time(epoch.seconds.value),
            _range(epoch.seconds, show_time),
            f"{epoch.steps:,}",
            *(show_time(epoch.terms.get(name, 0.0)) for name in names),
        ]
        for one, epoch in known
    ]
    columns = ["Ranks", "Epoch", "90 % interval", "Steps", *(name.capitalize() for name in names)]
    table = Table(caption="An epoch, and what it consists of", columns=columns, rows=rows)
    return Block(
        title="Epochs", lead="With evaluation, checkpoint and start, as the runs recorded them.", parts=[table]
    )


def _changes(result: ForecastResult) -> Block | None:
    if not result.waterfall:
        return None
    parts: list[Part] = [_waterfall(place, one, result) for place, one in enumerate(_of_largest(result))]
    before = {(one.ranks, one.hosts): one for one in result.predictions}
    rows = [
        [
            short(one.change, NAME_CHARACTERS),
            f"{one.ranks:,}",
            show_time(one.step_s.value),
            *_gain(one, before),
            one.bottleneck,
        ]
        for one in result.waterfall
    ]
    columns = ["Change", "Ranks", "Step", "Samples/s", "Then costs most"]
    parts.append(Table(caption="Each change", columns=columns, rows=rows))
    return Block(title="What if", lead="What each change brings, term by term.", parts=parts)


def _of_largest(result: ForecastResult) -> list[WhatIf]:
    """The changes of the largest size that was forecast."""
    most = max(one.ranks for one in result.waterfall)
    return [one for one in result.waterfall if one.ranks == most]


def _gain(one: WhatIf, before: dict[tuple[int, int], ForecastSize]) -> list[str]:
    now = before.get((one.ranks, one.hosts))
    return [ABSENT if now is None else f"{one.throughput.value / now.throughput.value - 1:+.0%}"]


def _waterfall(place: int, one: WhatIf, result: ForecastResult) -> Chart:
    """Bars from the step as it is, by what each term changes, to the step after the change."""
    before = next((size for size in result.predictions if size.ranks == one.ranks), None)
    begin = one.step_s.value - sum(one.change_s.values()) if before is None else before.step_s.value
    factor, unit = time_unit(max(begin, one.step_s.value))
    rows: list[dict[str, Any]] = [{"name": "forecast", "from": 0.0, "to": factor * begin, "kind": "ends"}]
    at = begin
    for name, change_s in one.change_s.items():
        if abs(change_s) < SMALL * begin:
            continue
        kind = "less" if change_s < 0 else "more"
        rows.append({"name": name, "from": factor * at, "to": factor * (at + change_s), "kind": kind})
        at += change_s
    rows.append({"name": "after", "from": 0.0, "to": factor * one.step_s.value, "kind": "ends"})
    order = [str(row["name"]) for row in rows]
    kinds = alt.Scale(domain=["ends", "less", "more"], range=[QUIET, RUNS[2], RUNS[1]])
    bars = alt.Chart(data(rows)).mark_bar().encode(
        x=alt.X("from:Q", title=f"{unit} per step"),
        x2="to:Q",
        y=alt.Y("name:N", title=None, sort=order),
        color=alt.Color("kind:N", scale=kinds, legend=None),
    )  # fmt: skip
    return Chart(
        slug=f"what-if-{chr(ord('a') + place % 26)}",
        title=f"{short(one.change, NAME_CHARACTERS)}, on {one.ranks:,} ranks",
        caption=f"Afterwards, beside compute, {one.bottleneck} costs most.",
        height_px=30 + 28 * len(rows),
        axis_characters=14,
        spec=spec(bars),
    )


def _target(result: ForecastResult) -> Block | None:
    if not result.targets:
        return None
    first = result.targets[0]
    columns = [
        "Ranks",
        "Global batch",
        "Epochs",
        "Time",
        *(["kWh"] if first.energy_kwh else []),
        *(["Cost"] if first.cost else []),
    ]
    rows = [
        [
            f"{one.ranks:,}",
            show_count(one.global_batch),
            bounds_text(one.epochs, lambda number: f"{number:.3g}"),
            bounds_text(one.time_s, show_time),
            *(bounds_text(of, show_count) for of in (one.energy_kwh, one.cost) if of is not None),
        ]
        for one in result.targets
    ]
    notes = list(
        dict.fromkeys(note for one in result.targets for note in [*one.notes, *([one.bounded] if one.bounded else [])])
    )
    parts: list[Part] = [Table(caption=title_of(first), columns=columns, rows=rows)]
    if notes:
        parts.append(Points(items=notes))
    return Block(title="To the target", lead=f"What a training to {first.target} takes on each size.", parts=parts)


def _certainty(result: ForecastResult) -> Block:
    rows = [
        [one.name, _value(one), one.state, one.reason or "", short(one.source, NAME_CHARACTERS)]
        for one in result.parameters
    ]
    columns = ["Parameter", "Value", "State", "Why", "From"]
    parts: list[Part] = list(_next(result)) if result.predictions else []
    if rows:
        parts.append(Table(caption="What the forecast rests on", columns=columns, rows=rows, text_columns=5))
    if result.notes:
        parts.append(Points(items=result.notes))
    weak = [one.name for one in result.parameters if one.state != "measured"]
    lead = f"Not measured: {joined(weak)}." if weak else "Every parameter was measured."
    return Block(title="How certain it is", lead=lead, parts=parts)


def _next(result: ForecastResult) -> Iterator[Part]:
    if result.next_measurement is not None:
        one = result.next_measurement
        label = f"Measure next: {one.parameter}, {percent(one.share)} of the variance at the largest size"
        yield Commands(commands=[Command(label=label, line=one.command)])


def _value(one: ForecastParameter) -> str:
    if one.unit == "s":
        return f"{show_time(one.value.value)} ({_range(one.value, show_time)})"
    unit = f" {one.unit}" if one.unit else ""
    return f"{one.value.value:.3g}{unit} ({_range(one.value, lambda number: f'{number:.3g}')})"
