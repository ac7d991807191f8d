"""Limit a report to what fits on a page, and say what was left out.

A study may have hundreds of runs and a damaged record thousands of gaps; a page with all of them is unusable.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TypeVar

from allpull.errors import BadInput
from allpull.report.printable import short
from allpull.report.wording import NAME_CHARACTERS
from allpull.schema.reported import ProgramTable, ScalingReport
from allpull.schema.results import Curve, RunDetail, RunMetrics
from allpull.units import counted

MAX_RANKS = 1_000_000  # as in schema.run
MAX_RUNS = 48
MAX_PROGRAMS = 40
MAX_LINES = 60  # notes, gaps and lines of a log: what is read on a page
MAX_SETTINGS = 120
MAX_HOSTS = 64
MAX_CURVES = 24
MAX_POINTS = 400  # of one curve; more than its width in pixels
MAX_STEP_TIMES = 2000

Item = TypeVar("Item")
Value = TypeVar("Value")


def bounded(report: ScalingReport) -> ScalingReport:
    """``report`` with at most ``MAX_RUNS`` runs and lists of bounded length; what was left out is among its notes.

    Raises:
        BadInput: there is no run, one with an impossible number of ranks, or the details are not of the runs.
    """
    show = report.show
    if not show.runs:
        raise BadInput("there is no run to report on", hint="give at least one run directory")
    if [detail.metrics.run for detail in report.details] != [run.run for run in show.runs]:
        raise BadInput("the details of the report are not those of its runs", hint="make the report again")
    for run in show.runs:
        if not 1 <= run.ranks <= MAX_RANKS:
            raise BadInput(f"run {short(run.run, NAME_CHARACTERS)} cannot have had {run.ranks:.3g} ranks")
    kept = evenly(len(show.runs), MAX_RUNS, keep=_reference(report))
    notes = list(show.notes[:MAX_LINES])
    if len(report.others) > MAX_PROGRAMS:
        notes.append(f"This page shows {MAX_PROGRAMS} of {counted(len(report.others), 'other program')}.")
    if len(kept) < len(show.runs):
        notes.append(f"This page shows {len(kept)} of {counted(len(show.runs), 'run')}, spread evenly over them.")
    return report.model_copy(
        update={
            "show": show.model_copy(update={"runs": [_run(show.runs[index]) for index in kept], "notes": notes}),
            "words": list(report.words[:MAX_LINES]),
            "details": [_detail(report.details[index]) for index in kept],
            "others": [_table(other) for other in report.others[:MAX_PROGRAMS]],
            "without_steps": [_detail(one) for one in report.without_steps[:MAX_LINES]],
            "damaged": _lines(report.damaged, "run"),
        }
    )


def evenly(count: int, limit: int, *, keep: Iterable[int] = ()) -> list[int]:
    """At most ``limit`` (≥ 2) of the numbers below ``count``, including the first, the last and those of ``keep``.

    >>> evenly(3, 5), evenly(10, 4)
    ([0, 1, 2], [0, 3, 6, 9])
    """
    if count <= limit:
        return list(range(count))
    kept = set(keep)
    room = max(2, limit - len(kept))
    return sorted({round(index * (count - 1) / (room - 1)) for index in range(room)} | kept)


def _reference(report: ScalingReport) -> list[int]:
    return [index for index, run in enumerate(report.show.runs) if run.run == report.show.reference][:1]


def _table(other: ProgramTable) -> ProgramTable:
    runs = [_run(run) for run in other.show.runs[:MAX_RUNS]]
    return other.model_copy(update={"show": other.show.model_copy(update={"runs": runs})})


def _run(run: RunMetrics) -> RunMetrics:
    steady = run.steady.model_copy(update={"left_out": _head(run.steady.left_out, MAX_LINES)})
    update = {"steady": steady, "phases": _head(run.phases, MAX_LINES), "gaps": _lines(run.gaps, "gap")}
    return run.model_copy(update=update)


def _detail(detail: RunDetail) -> RunDetail:
    return detail.model_copy(
        update={
            "metrics": _run(detail.metrics),
            "versions": _head(detail.versions, MAX_SETTINGS),
            "environment": _head(detail.environment, MAX_SETTINGS),
            "hosts": list(detail.hosts[:MAX_HOSTS]),
            "step_times_s": _thin(detail.step_times_s, MAX_STEP_TIMES),
            "curves": [_curve(curve) for curve in detail.curves[:MAX_CURVES]],
        }
    )


def _curve(curve: Curve) -> Curve:
    pairs = _thin(list(zip(curve.epochs, curve.values, strict=False)), MAX_POINTS)
    return curve.model_copy(update={"epochs": [epoch for epoch, _ in pairs], "values": [value for _, value in pairs]})


def _thin(items: Sequence[Item], limit: int) -> list[Item]:
    return [items[index] for index in evenly(len(items), limit)]


def _head(table: Mapping[str, Value], limit: int) -> dict[str, Value]:
    return dict(list(table.items())[:limit])


def _lines(lines: Sequence[str], noun: str) -> list[str]:
    left_out = len(lines) - MAX_LINES
    return [*lines[:MAX_LINES], *([f"and {counted(left_out, f'more {noun}')}"] if left_out > 0 else [])]
