"""The answer on the first screen: the effect of scaling, what to change first, large numbers and one table."""

from __future__ import annotations

from collections.abc import Iterator

from allpull.report.html.block import Block, Callout, Log, Notice, Part, Points, Table, Text, Tile, Tiles
from allpull.report.html.largest_run import explained, factor_of, first_finding
from allpull.report.printable import short
from allpull.report.sections.findings import price
from allpull.report.wording import (
    ABSENT,
    NAME_CHARACTERS,
    SCALING_WORDS,
    labels,
    listed_gaps,
    percent,
    rank_counts,
    spread,
    spread_parts,
    times,
)
from allpull.schema.explained import ExplainResult
from allpull.schema.reported import ScalingReport
from allpull.schema.results import Interval, RunDetail, RunMetrics, ShowResult
from allpull.units import counted, show_time

LOG_LINES = 20
MOST_GAPS = 4  # on the first screen; all are listed at the end of the page
STATUS_CHARACTERS = 20
LEGEND = (
    "A rank is one copy of the program; all ranks train the same model together, each on its share of the data. "
    "Speed-up compares samples per second with the reference run, and efficiency is the speed-up divided by what "
    f"perfect scaling would give. {ABSENT} means not measured; ± is half of a 95 % confidence interval."
)


def block(report: ScalingReport) -> Block:
    """The effect of scaling, what to change first and its gain, then the numbers; missing data comes last."""
    show = report.show
    widest = max(show.runs, key=lambda run: run.ranks)
    detail = explained(report)
    useful = _useful(detail.result, widest) if detail else None
    tiles = list(_tiles(widest, useful, alone=len(show.runs) == 1))
    sentences = report.words
    lead = sentences[0] if sentences else f"{counted(len(show.runs), 'run')} on {rank_counts(show.runs)}."
    if useful is not None or (len(show.runs) == 1 and widest.throughput is None and widest.step_s is not None):
        lead = _alone(widest, useful)
    else:
        sentences = sentences[1:]
    parts: list[Part] = [*([_first(detail.result)] if detail and _has_first(detail.result) else [])]
    parts += [Tiles(tiles=tiles)] if tiles else []
    parts += [Points(items=sentences)] if sentences else []
    parts += [table(show), Text(text=LEGEND, quiet=True), *_failures(report), *_cautions(show)]
    return Block(title="What it means", lead=lead, parts=parts)


def _useful(result: ExplainResult, run: RunMetrics) -> Interval | None:
    """The useful share of the ranks' time, for a run without a speed-up; None: unknown."""
    if run.efficiency is not None or result.run != run.run or result.efficiency is None:
        return None
    return factor_of(result.efficiency, "parallel")


def _alone(run: RunMetrics, useful: Interval | None) -> str:
    """The result of a single run, if there is nothing to compare it with."""
    measured = [f"{spread(run.throughput)} samples/s"] if run.throughput is not None else []
    if run.step_s is not None and not measured:
        measured = [f"a step of {show_time(run.step_s.median)}"]
    if useful is not None:
        whose = "its" if run.ranks == 1 else "the ranks'"
        measured.append(f"{percent(useful.value)} of {whose} time is useful work")
    name = short(run.name, NAME_CHARACTERS)
    return f"{name} on {counted(run.ranks, 'rank')}: {', and '.join(measured)}."


def _has_first(result: ExplainResult) -> bool:
    return first_finding(result) is not None or result.healthy is not None


def _first(result: ExplainResult) -> Callout:
    """The most costly finding, or a statement that there is none."""
    first = first_finding(result)
    if first is None:
        return Callout(label="What to change first", title=result.healthy or "")
    more = len(result.findings) - 1
    return Callout(
        label="What to change first",
        title=first.title,
        price=price(first),
        remedy=first.remedy,
        more="What that rests on" + (f", and {counted(more, 'more finding')}" if more else ""),
    )


def _tiles(run: RunMetrics, useful: Interval | None, *, alone: bool) -> Iterator[Tile]:
    ranks = counted(run.ranks, "rank")
    if run.speedup is not None and not alone:
        yield Tile(value=times(run.speedup), label=f"speed-up on {ranks}", detail=_range(run.speedup_interval, times))
    if run.efficiency is not None and not alone:
        yield Tile(
            value=percent(run.efficiency), label="scaling efficiency", detail=_range(run.efficiency_interval, percent)
        )
    if useful is not None:
        yield Tile(value=percent(useful.value), label="useful work", detail="of the ranks' time: parallel efficiency")
    if run.throughput is not None:
        value, half_width = spread_parts(run.throughput)
        detail = (f"± {half_width} over " if half_width else "over ") + counted(run.steady.used, "steady step")
        yield Tile(value=value, label="samples per second", detail=detail)
    if run.step_s is not None:
        detail = f"95 % of steps within {show_time(run.step_s.p95)}"
        yield Tile(value=show_time(run.step_s.median), label="median step", detail=detail)
    if run.accuracy is not None:
        top5 = "" if run.accuracy_top5 is None else f"top-5: {percent(run.accuracy_top5)}"
        yield Tile(value=percent(run.accuracy), label="test accuracy", detail=top5)


def _range(interval: Interval | None, show: object) -> str:
    if interval is None or interval.low is None or interval.high is None or not callable(show):
        return ""
    return f"95 % interval {show(interval.low)} to {show(interval.high)}"


def table(show: ShowResult, *, caption: str = "") -> Table:
    """One row per run, ``caption`` before the kind of scaling."""
    rows = [
        (
            label + _state(run, show),
            spread(run.throughput),
            show_time(run.step_s.median) if run.step_s else ABSENT,
            times(run.speedup),
            percent(run.efficiency),
            percent(run.accuracy),
        )
        for label, run in zip(labels(show.runs), show.runs, strict=True)
    ]
    runs = SCALING_WORDS[show.scaling] if show.scaling else "The runs" if len(rows) > 1 else "The run"
    return Table(
        caption=f"{caption}: {runs[0].lower()}{runs[1:]}" if caption else runs,
        columns=("Run", "Samples/s", "Step (median)", "Speed-up", "Efficiency", "Test accuracy"),
        rows=rows,
        marked=frozenset(index for index, run in enumerate(show.runs) if run.run == show.reference),
    )


def _state(run: RunMetrics, show: ShowResult) -> str:
    states = ["reference"] if run.run == show.reference else []
    states += [] if run.status == "completed" else [short(run.status, STATUS_CHARACTERS)]
    return f" ({', '.join(states)})" if states else ""


def _failures(report: ScalingReport) -> Iterator[Part]:
    named = list(zip(labels(report.show.runs), report.details, strict=True))
    ended_badly = [(label, detail) for label, detail in named if detail.exit is not None and detail.exit.code != 0]
    if ended_badly:
        items = [f"{label}: {_failure(detail)}" for label, detail in ended_badly]
        yield Notice(title="Not every run ended well", items=items, bad=True)
    for label, detail in ended_badly:
        if detail.exit is not None and detail.exit.log_tail:
            yield Log(title=f"{label}: the last lines of its log", lines=detail.exit.log_tail[-LOG_LINES:])


def _failure(detail: RunDetail) -> str:
    end = detail.exit
    if end is None:
        return ""
    who = "the job" if end.rank is None else f"rank {end.rank}{f' on {end.host}' if end.host else ''}"
    how = f"was ended by {end.signal}" if end.signal else f"ended with exit code {end.code}"
    why = end.exception or end.reason
    hint = f" (hint: {end.hint})" if end.hint else ""
    return f"{who} {how}{f': {why}' if why else ''}{hint}"


def _cautions(show: ShowResult) -> Iterator[Notice]:
    gaps = listed_gaps(show)
    if len(gaps) > MOST_GAPS:
        gaps = [*gaps[: MOST_GAPS - 1], f"and {len(gaps) - MOST_GAPS + 1:,} more gaps, listed at the end of this page"]
    if show.notes or gaps:
        yield Notice(title="Keep in mind", items=[*show.notes, *gaps])
