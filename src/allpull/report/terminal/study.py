"""A study on a terminal: its plan, and what was measured in each series beside what was published."""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

from rich.box import SIMPLE_HEAD
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from allpull.analyse.published_scaling import relative
from allpull.report.printable import printable
from allpull.report.terminal.table import bullets
from allpull.report.wording import ABSENT, percent, ranged, spread, times, virtual_points
from allpull.schema.results import Interval
from allpull.schema.studied import (
    Changed,
    PlannedPoint,
    PublishedPoint,
    PublishedSeries,
    SeriesRatio,
    StudyPlan,
    StudyPoint,
    StudyResult,
)
from allpull.study.points import show_parameters
from allpull.study.results import by_series, series_label
from allpull.units import counted, show_count, show_time

SHOWN_BASES = 4  # of costs
SHOWN_COMMANDS = 1  # of a plan: the others differ in their parameters


def planned(plan: StudyPlan) -> RenderableType:
    """The points of a plan with what they cost, and what is published."""
    runs = sum(max(0, point.repeats - point.done) for point in plan.points)
    cost = "cost not known yet" if plan.cost_s is None else f"about {show_time(plan.cost_s)}"
    hours = "" if plan.rank_hours is None else f", {show_count(plan.rank_hours)} rank-hours"
    head = f"{plan.name}: {counted(len(plan.points), 'point')}, {counted(runs, 'run')} to do; {cost}{hours}"
    parts: list[RenderableType] = [Text(printable(head), style="bold")]
    parts += [Text(printable(plan.title))] if plan.title else []
    rows = [_planned_row(point) for point in plan.points]
    parts.append(_table(["id", "parameters", "ranks", "hosts", "network", "done", "cost"], rows, left=2))
    parts += [Text(f"such as: {printable(shlex.join(point.command))}") for point in plan.points[:SHOWN_COMMANDS]]
    parts += [Text(_published_line(one)) for one in plan.published]
    bases = Counter(point.cost_from for point in plan.points if point.cost_from is not None)
    costs = [f"cost of {counted(points, 'point')}: by {basis}" for basis, points in bases.most_common(SHOWN_BASES)]
    parts.append(bullets([*costs, *_changes(plan.changed), *plan.notes]))
    return Group(*parts)


def measured(result: StudyResult) -> RenderableType:
    """A table for each series, ratios between series, published points, and what is missing."""
    parts: list[RenderableType] = [Text(printable(f"{result.name}: {result.title or 'study'}"), style="bold")]
    for series in by_series(result.points):
        if series[0].series or series[0].labels:
            parts += [Text(), Text(printable(_series_title(series)), style="bold")]
        parts.append(_table(COLUMNS, [_point_row(point) for point in series], left=0))
    if result.ratios:
        parts += [Text(), Text("One series over another", style="bold")]
        rows = [_ratio_row(one) for one in result.ratios]
        parts.append(_table(["compared", "otherwise", "ranks", "hosts", "ratio (95 % interval)"], rows, left=2))
    for published in result.published:
        parts += [Text(), Text(printable(f"published: {_published_line(published)}"), style="bold")]
        parts.append(_without_empty(PUBLISHED_COLUMNS, list(_published_rows(published))))
    not_done = list(_not_done(result.points))
    if not_done:
        parts += [Text(), Text("Not measured", style="bold"), bullets(not_done)]
    notes = [*virtual_points(result), *result.notes]
    if notes:
        parts += [Text(), bullets(notes)]
    return Group(*parts)


COLUMNS = ("ranks", "hosts", "runs", "samples/s", "speed-up", "efficiency", "epoch", "epoch speed-up", "to solution")
PUBLISHED_COLUMNS = (
    *("ranks", "hosts", "batch", "workers", "images/s", "speed-up", "efficiency", "stated speed-up"),
    *("stated efficiency", "epoch", "training"),
    *("POP parallel", "POP load balance", "POP communication"),
)


def _series_title(series: Sequence[StudyPoint]) -> str:
    """What the points of a series have in common: labels, then parameters."""
    return ": ".join(
        filter(None, [series_label(series), show_parameters(series[0].series) if series[0].series else ""])
    )


def _planned_row(point: PlannedPoint) -> list[str]:
    return [
        point.id,
        ": ".join(filter(None, [", ".join(point.labels), show_parameters(point.parameters)])),
        str(point.ranks),
        str(point.hosts),
        ABSENT if point.trainable_parameters is None else f"{point.trainable_parameters:,}",
        f"{point.done}/{point.repeats}",
        ABSENT if point.cost_s is None else show_time(point.cost_s),
    ]


def _point_row(point: StudyPoint) -> list[str]:
    done = sum(run.state == "completed" for run in point.runs)
    return [
        str(point.ranks),
        str(point.hosts),
        f"{done}/{len(point.runs)}",
        spread(point.throughput),
        times(point.speedup.value if point.speedup else None),
        percent(point.efficiency.value if point.efficiency else None),
        _seconds(point.epoch_s),
        times(point.epoch_speedup.value if point.epoch_speedup else None),
        _seconds(point.time_to_solution_s),
    ]


def _ratio_row(one: SeriesRatio) -> list[str]:
    compared = f"{show_parameters({one.parameter: one.value})} over {show_parameters({one.parameter: one.base})}"
    common = show_parameters(one.series) if one.series else ABSENT
    return [compared, common, str(one.ranks), str(one.hosts), ranged(one.ratio)]


def _published_rows(series: PublishedSeries) -> Iterator[list[str]]:
    """Published points in the units of ours, relative to the smallest size as ours are; and what was stated."""
    by_point = {id(one.point): one for one in relative(series)}
    for point in series.points:
        own = by_point.get(id(point))
        yield [
            str(point.ranks),
            ABSENT if point.nodes is None else str(point.nodes),
            ABSENT if point.batch_per_rank is None else str(point.batch_per_rank),
            ABSENT if point.workers is None else str(point.workers),
            ABSENT if point.images_per_s is None else show_count(point.images_per_s),
            times(None if own is None else own.speedup),
            percent(None if own is None else own.efficiency),
            ABSENT if point.speedup is None else f"{point.speedup:g}×{_over(point)}",
            ABSENT if point.efficiency is None else f"{100 * point.efficiency:g} %",
            ABSENT if point.epoch_time_s is None else show_time(point.epoch_time_s),
            ABSENT if point.train_time_s is None else show_time(point.train_time_s),
            *(_stated(one) for one in (point.parallel_efficiency, point.load_balance, point.communication_efficiency)),
        ]


def _over(point: PublishedPoint) -> str:
    """What a stated speed-up is over, where its source says that."""
    return f" over {printable(point.speedup_base)}" if point.speedup_base else ""


def _stated(efficiency: float | None) -> str:
    """An efficiency with the digits in which it was published."""
    return ABSENT if efficiency is None else f"{efficiency:.2f}"


def _without_empty(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> Table:
    """A table of numbers without the columns of which nothing is known."""
    kept = [place for place in range(len(columns)) if any(row[place] != ABSENT for row in rows)]
    return _table([columns[place] for place in kept], [[row[place] for place in kept] for row in rows], left=0)


def _not_done(points: Iterable[StudyPoint]) -> Iterator[str]:
    """A line per run that did not complete; skipped repeats only where no failed one explains them."""
    for point in points:
        has_reason = any(run.state in {"failed", "timeout"} for run in point.runs)
        for run in point.runs:
            if run.state != "completed" and not (has_reason and run.state == "skipped"):
                why = f": {run.reason}" if run.reason else ""
                yield f"{show_parameters(point.parameters)}, repeat {run.repeat + 1}: {run.state}{why}"


def _published_line(series: PublishedSeries) -> str:
    return printable(f"{series.series}, {series.model}, {series.framework} ({counted(len(series.points), 'point')})")


def _changes(changed: Sequence[Changed]) -> list[str]:
    return [f"changed to fit here: {one.what} = {one.here} (full: {one.full})" for one in changed]


def _seconds(interval: Interval | None) -> str:
    return ABSENT if interval is None else show_time(interval.value)


def _table(columns: Sequence[str], rows: Iterable[Sequence[str]], *, left: int) -> Table:
    """A table whose first ``left`` columns hold text, the others numbers."""
    table = Table(box=SIMPLE_HEAD, pad_edge=False)
    for place, column in enumerate(columns):
        table.add_column(column, justify="left" if place < left else "right")
    for row in rows:
        table.add_row(*(Text(printable(cell)) for cell in row))
    return table
