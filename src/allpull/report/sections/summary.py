"""The answer on the first screen: the effect of scaling, what makes it doubtful, and the large numbers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from allpull.report.html.block import Block, Log, Notice, Part, Tile, Tiles
from allpull.report.html.largest_run import explained, factor_of
from allpull.report.printable import short
from allpull.report.sections.findings import indicative
from allpull.report.wording import (
    NAME_CHARACTERS,
    labels,
    largest,
    percent,
    rank_counts,
    spread,
    spread_parts,
    times,
)
from allpull.schema.explained import ExplainResult
from allpull.schema.reported import ScalingReport
from allpull.schema.results import Interval, RunDetail, RunMetrics
from allpull.units import counted, show_time

LOG_LINES = 20


def block(report: ScalingReport) -> Block:
    """The effect of scaling, or the throughput of a single run, with all that makes it doubtful beside it."""
    show = report.show
    detail = explained(report)
    widest = largest(show.runs)
    alone = _is_one_size(show.runs)
    tiles = list(_tiles(widest, _useful(detail.result, widest, alone=alone) if detail else None, alone=alone))
    doubts = [*report.caveats, *([indicative(detail.result)] if detail else [])]
    parts: list[Part] = [*_failures(report)]
    parts += [Notice(title="Read with care", items=[one for one in doubts if one])] if any(doubts) else []
    parts += [Tiles(tiles=tiles)] if tiles else []
    return Block(title="What it means", lead=_lead(report), parts=parts)


def remaining_sentences(report: ScalingReport) -> list[str]:
    """The sentences of ``report`` that its first screen does not show."""
    runs = report.show.runs
    is_said = len(runs) == 1 and runs[0].throughput is not None  # by the headline and the tiles
    return [line for line in report.words[is_said:] if line != _lead(report) and line not in report.caveats]


def _lead(report: ScalingReport) -> str:
    runs, detail = report.show.runs, explained(report)
    widest, alone = largest(runs), _is_one_size(runs)
    useful = _useful(detail.result, widest, alone=alone) if detail else None
    if alone and len(runs) > 1 and widest.throughput is not None:
        newest = f"the newest of {counted(len(runs), 'run')} on {counted(widest.ranks, 'rank')}"
        return f"{_alone(widest, useful).removesuffix('.')}, in {newest}."
    if useful is not None or (len(runs) == 1 and widest.throughput is None and widest.step_s is not None):
        return _alone(widest, useful)
    return report.words[0] if report.words else f"{counted(len(runs), 'run')} on {rank_counts(runs)}."


def _is_one_size(runs: Sequence[RunMetrics]) -> bool:
    """Whether no run can have a speed-up by more ranks."""
    return len({run.ranks for run in runs}) == 1


def _useful(result: ExplainResult, run: RunMetrics, *, alone: bool) -> Interval | None:
    """The useful share of the ranks' time, for a run that is ``alone`` or without a speed-up; None: unknown."""
    if (run.efficiency is not None and not alone) or result.run != run.run or result.efficiency is None:
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


def _tiles(run: RunMetrics, useful: Interval | None, *, alone: bool) -> Iterator[Tile]:
    ranks = counted(run.ranks, "rank")
    if run.speedup is not None and not alone:
        detail = _range(run.speedup_interval, times)
        if run.speedup_interval is not None and run.speedup_interval.includes(1.0):
            yield Tile(value="none shown", label=f"speed-up on {ranks}", detail=f"{times(run.speedup)}, {detail}")
        else:
            yield Tile(value=times(run.speedup), label=f"speed-up on {ranks}", detail=detail)
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
