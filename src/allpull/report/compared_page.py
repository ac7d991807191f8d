"""A comparison as one page: the decision and the promises on top, then each metric, and the charts side by side."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import altair as alt

from allpull.report.atomic_file import place
from allpull.report.colours import QUIET, RUNS
from allpull.report.html.block import Block, Chart, Command, Commands, Notice, Part, Points, Table, Text, Tile, Tiles
from allpull.report.html.chart import data, spec
from allpull.report.html.copied import copied
from allpull.report.page import Page, render_page
from allpull.report.printable import short
from allpull.report.sections import learning, phases, steps
from allpull.report.terminal.compare import AGREEMENT, STATES, change, headline, shown_metrics, value
from allpull.report.wording import ABSENT, LABEL_CHARACTERS, NAME_CHARACTERS, ranged, spread
from allpull.schema.compared import Change, ComparedRun, CompareResult, RemedyFollowUp
from allpull.schema.reported import ScalingReport
from allpull.units import counted, show_time

VALUE_CHARACTERS = 200  # of one differing fact
MOST_DIFFERENCES = 40
BAR_PX, FRAME_PX = 26, 70
PROMISES = {"kept": "kept", "more": "more than promised", "less": "not kept", "not decidable": "cannot tell"}


def write(result: CompareResult, runs: ScalingReport, path: Path) -> Path:
    """Write the page of ``result`` to ``path``; ``runs`` has all its runs, those before first. Returns ``path``.

    Raises:
        BadInput: ``path`` cannot be written.
    """
    names = [short(side[0].name, NAME_CHARACTERS) for side in (result.before, result.after)]
    days = " and ".join(sorted({max(run.created_utc[:10] for run in side) for side in (result.before, result.after)}))
    page = Page(
        kicker="Comparison",
        subject=names[0] if names[0] == names[1] else f"{names[0]} → {names[1]}",
        facts=f"{counted(len(result.before), 'run')} before, {len(result.after)} after · {days}",
        blocks=blocks(result, runs),
    )
    return place(path, render_page(page, path.parent).encode("utf-8"))


def blocks(result: CompareResult, runs: ScalingReport) -> dict[str, Block]:
    """The sections of the page, by name, in order; those without content are left out."""
    sided = _by_side(result, runs)
    promises, appeared = ("promises", _promises(result)), ("appeared", _appeared(result))
    made = {
        "answer": _answer(result),
        **dict((appeared, promises) if result.is_worse else (promises, appeared)),
        "metrics": _metrics(result),
        "phases": phases.block(sided),
        "steps": steps.block(sided),
        "learning": learning.block(sided),
        "runs": _runs(result),
    }
    return {name: block for name, block in made.items() if block is not None}


def _answer(result: CompareResult) -> Block:
    parts: list[Part] = []
    failed = [f"{one.outcome}: {one.gate}: {one.words}" for one in result.gates if one.outcome != "passed"]
    if failed:
        parts.append(Notice(title="Gates", items=failed, bad=any(one.outcome == "failed" for one in result.gates)))
    if result.notes:
        notes = [f"{note[:1].upper()}{note[1:]}." for note in result.notes]
        parts.append(Notice(title="Read with care", items=notes))
    primary = next((one for one in result.metrics if one.metric == result.metric), None)
    if primary is not None:
        parts.append(Tiles(tiles=list(_tiles(result, primary))))
    passed = [f"gate passed: {one.gate}" for one in result.gates if one.outcome == "passed"]
    parts += [Points(items=passed)] if passed else []
    lead = headline(result).plain
    return Block(title="What it means", lead=f"{lead[0].upper()}{lead[1:]}", parts=parts)


def _tiles(result: CompareResult, primary: Change) -> Iterator[Tile]:
    shown, _, bounds = change(primary).partition(" (")
    level = f"{100 * result.confidence:g} % interval {bounds.removesuffix(')')}" if bounds else "interval not known"
    yield Tile(value=shown, label=f"change of {primary.metric}", detail=level)
    unit = primary.unit if primary.unit not in {"s", "share"} else ""
    yield Tile(value=value(primary, primary.before), label="before", detail=unit)
    yield Tile(value=value(primary, primary.after), label="after", detail=unit)
    if len(result.promised) == 1:
        one = result.promised[0]
        yield Tile(value=PROMISES[one.kept], label="promise", detail=f"{ranged(one.promised)} by {one.rule}")


def _promises(result: CompareResult) -> Block | None:
    """What explain promised of the runs before, and what came of it."""
    if not result.promised:
        return None
    rows = [(one.title, *_promise(one)) for one in result.promised]
    columns = ("Finding before", "Promise", "Promised", "Measured, all changes together", "The finding now", "Changed")
    lead = "What explain promised of the runs before, and what came of it."
    decided = [PROMISES[one.kept] for one in result.promised if one.kept in AGREEMENT]
    if decided:
        lead = f"The promise of explain: {decided[0]}."
    table = Table(caption="Promises of explain", columns=columns, rows=rows, text_columns=len(columns))
    return Block(title="Promised and measured", lead=lead, parts=[table, *_still_to_do(result)])


def _appeared(result: CompareResult) -> Block | None:
    """What explain finds in the runs after alone."""
    rows = [(one.title, show_time(one.loss_s), ranged(one.gain), one.remedy) for one in result.appeared]
    columns = ("Finding", "Per step", "Speed-up without it", "What to do")
    table = Table(caption="Findings that are new", columns=columns, rows=rows, text_columns=len(columns))
    lead = "What explain finds in the runs after, and not in those before."
    return Block(title="What is new", lead=lead, parts=[table]) if rows else None


def _still_to_do(result: CompareResult) -> Iterator[Part]:
    """The remedies of the findings that are not gone, to copy."""
    left = [one for one in result.promised if one.state != "gone" and one.lines]
    if not left:
        return
    yield Text(text="What explain advised against the findings that are not gone:")
    commands = ((one.title, command) for one in left for command in copied(one.lines or ()))
    yield Commands(commands=[Command(label=f"{title}. {one.label}", line=one.line) for title, one in commands])


def _promise(one: RemedyFollowUp) -> tuple[str, ...]:
    state = STATES[one.state].removeprefix("it is ")
    return PROMISES[one.kept], ranged(one.promised), ranged(one.came), state, ", ".join(one.changed) or ABSENT


def _metrics(result: CompareResult) -> Block:
    rows = [
        (one.metric, value(one, one.before), value(one, one.after), change(one), one.decision)
        for one in shown_metrics(result)
    ]
    columns = ("Metric", "Before", "After", f"Change ({100 * result.confidence:g} %)", "")
    parts: list[Part] = [chart] if (chart := _chart(result)) is not None else []
    return Block(
        title="Each metric",
        lead="Changes that the data show, and how sure they are.",
        parts=[*parts, Table(caption="Before and after", columns=columns, rows=rows)],
    )


def _chart(result: CompareResult) -> Chart | None:
    """The change of each ratio with its interval; None where none has one."""
    rows: list[dict[str, Any]] = [
        {
            "metric": short(one.metric, LABEL_CHARACTERS),
            "value": 100 * (one.change.value - 1),
            "low": 100 * (one.change.low - 1),
            "high": 100 * (one.change.high - 1),
            "shown": change(one),
        }
        for one in result.metrics
        if one.scale == "ratio"
        and one.change is not None
        and one.change.low is not None
        and one.change.high is not None
    ]
    if not rows:
        return None
    y = alt.Y("metric:N", sort=None, title=None)
    x = alt.X("low:Q", title="Change (%)", axis=alt.Axis(tickCount=7))
    base = alt.Chart(data(rows))
    none = alt.Chart(data([{"at": 0.0}])).mark_rule(color=QUIET, strokeDash=[4, 3]).encode(x="at:Q")
    tooltip = [alt.Tooltip("metric:N", title=" "), alt.Tooltip("shown:N", title="change")]
    return Chart(
        slug="changes",
        title="Change of each metric",
        caption=f"A point is the change, a bar its {100 * result.confidence:g} % interval. If a bar crosses the dashed "
        "line, the data show no difference.",
        height_px=FRAME_PX + BAR_PX * len(rows),
        axis_characters=max(len(row["metric"]) for row in rows),
        spec=spec(
            alt.layer(
                none,
                base.mark_rule(color=RUNS[0], strokeWidth=2).encode(x=x, x2="high:Q", y=y),
                base.mark_point(color=RUNS[0], filled=True, size=80, opacity=1).encode(
                    x="value:Q", y=y, tooltip=tooltip
                ),
            )
        ),
    )


def _by_side(result: CompareResult, runs: ScalingReport) -> ScalingReport:
    """``runs`` under the names of their sides, so that charts tell them apart."""
    sides = [*_names("before", result.before), *_names("after", result.after)]
    shown = [run.model_copy(update={"name": name}) for run, name in zip(runs.show.runs, sides, strict=True)]
    return runs.model_copy(update={"show": runs.show.model_copy(update={"runs": shown})})


def _names(side: str, runs: Sequence[ComparedRun]) -> list[str]:
    return [side] if len(runs) == 1 else [f"{side} {number}" for number in range(1, len(runs) + 1)]


def _runs(result: CompareResult) -> Block:
    rows = [
        (side, short(run.name, NAME_CHARACTERS), run.run, f"{run.ranks:,}", f"{run.steps:,}", spread(run.throughput))
        for side, of_side in (("before", result.before), ("after", result.after))
        for run in of_side
    ]
    columns = ("Side", "Name", "Run", "Ranks", "Steady steps", "Samples/s")
    parts: list[Part] = [Table(caption="The runs of both sides", columns=columns, rows=rows, text_columns=3)]
    if result.differences:
        facts = [
            tuple(short(text, VALUE_CHARACTERS) for text in (one.fact, one.before, one.after))
            for one in result.differences[:MOST_DIFFERENCES]
        ]
        marked = frozenset(place for place, one in enumerate(result.differences[:MOST_DIFFERENCES]) if one.key)
        caption = "Both sides differ in" + (" (marked: it must agree for a fair comparison)" if marked else "")
        parts.append(
            Table(caption=caption, columns=("Fact", "Before", "After"), rows=facts, text_columns=3, marked=marked)
        )
    return Block(title="The runs", lead="What was compared, and what else differs.", parts=parts)
