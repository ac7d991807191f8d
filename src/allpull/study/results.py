"""A study as measured so far: its runs by point, combined over repeats, with speed-ups within each series."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, stdev
from typing import TypeAlias

from allpull.analyse.scaling import ratio
from allpull.analyse.student_t import quantile
from allpull.errors import RunDirError
from allpull.published.series import published_series
from allpull.schema.base import tag
from allpull.schema.results import Interval
from allpull.schema.run import UNENDED, RunRecord
from allpull.schema.studied import (
    Attempt,
    Parameters,
    PointRun,
    PointState,
    RecordedPoint,
    SeriesRatio,
    StudyPoint,
    StudyRecord,
    StudyResult,
    Value,
)
from allpull.study.directory import RUNS, read_attempts, read_study_record, runs_by_point
from allpull.study.epochs import same_epochs
from allpull.study.run_metrics import StudyMetrics
from allpull.units import counted

EXACT_OR_OFF = ("fp32", "float32", "off")
"""Values that others are compared with, where they are among those of a parameter."""

WIDE = 0.5  # half the width of an interval over its value: two runs have one degree of freedom, and t is 12.7
SOFTWARE = ("allpull", "python", "torch")  # whose version moves rates
DONE: PointState = "completed"
VIRTUAL_LAUNCHER = "rehearse:"  # and the cluster file whose hosts it starts ranks on
CONFIDENCE = 0.975  # the quantile of a two-sided interval of 95 %


_Runs: TypeAlias = Mapping[tuple[str, int], list[tuple[str, RunRecord]]]
"""Names and records of runs by (point, repeat), as ``runs_by_point``."""


def read_study(directory: Path) -> StudyResult:
    """The study in ``directory`` as measured so far.

    Raises:
        RunDirError: it is no study, or cannot be read.
    """
    record = read_study_record(directory)
    attempts = {(one.point, one.repeat): one for one in read_attempts(directory)}
    runs, metrics = runs_by_point(directory), StudyMetrics(directory)
    points = [_point(point, record, runs, attempts, metrics) for point in record.points]
    metrics.keep()
    points = _with_speedups(points)
    return StudyResult(
        schema=tag("study"),
        name=record.name,
        title=record.title,
        directory=str(directory),
        scaling=record.scaling,
        points=points,
        published=published_series(record.published),
        changed=record.changed,
        notes=[*record.notes, *_notes(record, points, runs)],
        ratios=[*series_ratios(points), *_label_ratios(points)],
        rehearsed=_count(points, runs, lambda one: one.kind == "rehearse"),
        virtual_network=_count(
            points, runs, lambda one: one.kind != "rehearse" and one.launcher.startswith(VIRTUAL_LAUNCHER)
        ),
    )


def _count(
    points: Sequence[StudyPoint],
    runs: _Runs,
    fits: Callable[[RunRecord], bool],
) -> int:
    """Measured points of which a completed run ``fits``."""
    measured = {point.id for point in points if point.throughput is not None}
    records = [(id_, one) for (id_, _), listed in runs.items() for _, one in listed if one.status == "completed"]
    return len({id_ for id_, one in records if id_ in measured and fits(one)})


def over_repeats(values: Sequence[Interval]) -> Interval | None:
    """One quantity over the repeats of a point, with its 95 % interval.

    A single run has its own interval. Of several it is that of their geometric mean, by Student's t on logarithms:
    what varies between runs is included, which no interval of a single run knows.

    >>> mean = over_repeats([Interval(value=value, low=None, high=None) for value in (90, 100, 110)])
    >>> round(mean.value, 2), round(mean.low, 2), round(mean.high, 2)
    (99.67, 77.67, 127.89)
    """
    if len(values) < 2 or not all(one.value > 0 for one in values):
        return values[0] if values else None
    logarithms = [math.log(one.value) for one in values]
    middle = fmean(logarithms)
    half = quantile(CONFIDENCE, len(values) - 1) * stdev(logarithms) / math.sqrt(len(values))
    return Interval(value=math.exp(middle), low=math.exp(middle - half), high=math.exp(middle + half))


def _over_values(values: Sequence[float]) -> Interval | None:
    """As ``over_repeats``, of times that no single run has an interval for."""
    return over_repeats([Interval(value=value, low=None, high=None) for value in values])


def half_width(interval: Interval | None) -> float | None:
    """Half the width of an interval over its value; None where it is not known."""
    if interval is None or interval.low is None or interval.high is None or not interval.value:
        return None
    return (interval.high - interval.low) / 2 / interval.value


def run_state(record: RunRecord) -> PointState:
    """How a run counts: one that was interrupted is missing, and is run again."""
    if record.status == "completed":
        return "completed"
    return "failed" if record.status == "failed" else "missing"


@dataclass(frozen=True, slots=True)
class _Sources:
    """What is known of a repeat: its runs, oldest first, and its last attempt."""

    runs: Sequence[tuple[str, RunRecord]]
    attempt: Attempt | None

    @property
    def last(self) -> tuple[str, RunRecord | None]:
        """The last run and its record, or no name and None."""
        return self.runs[-1] if self.runs else ("", None)


def _point(
    point: RecordedPoint,
    study: StudyRecord,
    runs: _Runs,
    attempts: Mapping[tuple[str, int], Attempt],
    metrics: StudyMetrics,
) -> StudyPoint:
    repeats = sorted({repeat for known in (runs, attempts) for id_, repeat in known if id_ == point.id})
    first = range(1 if study.half_width else study.repeats)  # by confidence, how many are needed is not known before
    measured = [
        _repeat(repeat, _Sources(runs.get((point.id, repeat), ()), attempts.get((point.id, repeat))), metrics)
        for repeat in sorted({*repeats, *first})
    ]
    completed = [one.metrics for one in measured if one.metrics is not None]
    return StudyPoint(
        id=point.id,
        parameters=point.parameters,
        series=point.series,
        ranks=point.ranks,
        hosts=point.hosts,
        labels=point.labels,
        runs=measured,
        throughput=over_repeats([one.throughput for one in completed if one.throughput is not None]),
        speedup=None,
        efficiency=None,
        epoch_s=_over_values([one.epoch_s.total for one in completed if one.epoch_s is not None]),
        time_to_solution_s=_over_values(
            [one.time_to_solution_s for one in completed if one.time_to_solution_s is not None]
        ),
    )


def _repeat(repeat: int, sources: _Sources, metrics: StudyMetrics) -> PointRun:
    """One repeat: its completed run if there is one, else how it last ended."""
    attempt = sources.attempt
    for run, known in reversed(sources.runs):
        if known.status == "completed":
            seconds = attempt.seconds if attempt is not None and attempt.run == run else None
            return _measured(metrics, repeat, run, seconds)
    name, record = sources.last
    if attempt is not None and attempt.run in {None, name} and attempt.state != "completed":
        return _not_measured(repeat, attempt.state, attempt.run, attempt.reason, attempt.seconds)
    if record is None:
        gone = attempt is not None and attempt.state == "completed"
        return _not_measured(repeat, "missing", None, "its run directory is gone" if gone else None)
    reason = "interrupted" if record.status in UNENDED else record.exit.describe() if record.exit else record.status
    return _not_measured(repeat, run_state(record), name, reason)


def _not_measured(
    repeat: int, state: PointState, name: str | None, reason: str | None, seconds: float | None = None
) -> PointRun:
    return PointRun(repeat=repeat, state=state, run=_relative(name), seconds=seconds, reason=reason, metrics=None)


def _measured(metrics: StudyMetrics, repeat: int, name: str, seconds: float | None) -> PointRun:
    try:
        measured = metrics.of(name)
    except RunDirError as error:
        return _not_measured(repeat, "failed", name, f"its records cannot be read: {error.message}", seconds)
    return PointRun(
        repeat=repeat, state="completed", run=_relative(name), seconds=seconds, reason=None, metrics=measured
    )


def _relative(name: str | None) -> str | None:
    return None if not name else f"{RUNS}/{name}"


def by_series(points: Sequence[StudyPoint]) -> list[list[StudyPoint]]:
    """``points`` by series, in the order of the study; each series by ranks and hosts."""
    groups: dict[str, list[StudyPoint]] = {}
    for point in points:
        groups.setdefault(repr(sorted(point.series.items())), []).append(point)
    return [sorted(members, key=lambda point: (point.ranks, point.hosts)) for members in groups.values()]


def _with_speedups(points: Sequence[StudyPoint]) -> list[StudyPoint]:
    """``points`` in their order, each against the smallest one of its series that was measured."""
    scaled: dict[str, StudyPoint] = {}
    for series in by_series(points):
        by_rate = next((point for point in series if point.throughput is not None), None)
        by_epoch = next((point for point in series if point.epoch_s is not None and same_epochs(series)), None)
        for point in series:
            update: dict[str, Interval | None] = {}
            if by_rate is not None:
                update["speedup"] = speedup = _over(point is by_rate, point.throughput, by_rate.throughput)
                update["efficiency"] = speedup and speedup.scaled(by_rate.ranks / point.ranks)
            if by_epoch is not None:
                update["epoch_speedup"] = _over(point is by_epoch, by_epoch.epoch_s, point.epoch_s)
            scaled[point.id] = point.model_copy(update=update)
    return [scaled[point.id] for point in points]


def _over(is_base: bool, top: Interval | None, bottom: Interval | None) -> Interval | None:
    """``top`` ÷ ``bottom``; of the base against itself 1, by definition."""
    if top is None or bottom is None:
        return None
    return Interval(value=1.0, low=1.0, high=1.0) if is_base else ratio(top, bottom)


def base_value(values: Sequence[Value]) -> Value:
    """The value that the others of a parameter are compared with: exact or switched off, else the first."""
    return next((value for value in values if value is False or value in EXACT_OR_OFF), values[0])


def series_ratios(points: Sequence[StudyPoint]) -> Iterator[SeriesRatio]:
    """Each series over the one with the base value of a single parameter, at each size that both measured."""
    for name in dict.fromkeys(name for point in points for name in point.series):
        groups: dict[str, list[StudyPoint]] = {}
        for point in points:
            if name in point.series and point.throughput is not None:
                common = sorted(_common(point, name).items())
                place = repr((common, point.ranks, point.hosts, point.parameters.get("launcher")))
                groups.setdefault(place, []).append(point)
        for group in groups.values():
            chosen = base_value([point.series[name] for point in group])
            base = next(point for point in group if point.series[name] == chosen)
            for point in group:
                if point.series[name] != chosen:
                    yield from _over_base(point, base, (name, point.series[name], chosen), _common(point, name))


def _common(point: StudyPoint, name: str) -> Parameters:
    """What the series of ``point`` has beside the parameter ``name``."""
    return {key: value for key, value in point.series.items() if key != name}


def _label_ratios(points: Sequence[StudyPoint]) -> Iterator[SeriesRatio]:
    """Each labelled series over the first one, where they differ in more: FP16 with batch 128 over FP32 with 64."""
    labelled = [(label, series) for series in by_series(points) if (label := series_label(series)) and len(series) > 1]
    for label, series in labelled[1:]:
        base_label, base_series = labelled[0]
        own, other = series[0].series, base_series[0].series
        common = {name: value for name, value in own.items() if other.get(name) == value}
        if label == base_label or len({*own, *other}) - len(common) == 1:
            continue
        sizes = {(point.ranks, point.hosts): point for point in base_series}
        for point in series:
            base = sizes.get((point.ranks, point.hosts))
            if base is not None:
                yield from _over_base(point, base, ("label", label, base_label), common)


def _over_base(
    point: StudyPoint, base: StudyPoint, compared: tuple[str, Value, Value], common: Parameters
) -> Iterator[SeriesRatio]:
    """``throughput_ratio`` of both, where it is known; ``compared``: parameter, value, base."""
    measured = throughput_ratio(point, base)
    if measured is not None:
        parameter, value, of_base = compared
        yield SeriesRatio(
            parameter=parameter,
            value=value,
            base=of_base,
            series=common,
            ranks=point.ranks,
            hosts=point.hosts,
            ratio=measured,
        )


def throughput_ratio(point: StudyPoint | None, base: StudyPoint | None) -> Interval | None:
    """The throughput of ``point`` over that of ``base``; None unless both have one."""
    if point is None or base is None or point.throughput is None or base.throughput is None:
        return None
    return ratio(point.throughput, base.throughput)


def series_label(series: Sequence[StudyPoint]) -> str:
    """The labels that all points of ``series`` have; empty if there is none."""
    return ", ".join(label for label in series[0].labels if all(label in point.labels for point in series))


def _notes(record: StudyRecord, points: Sequence[StudyPoint], runs: _Runs) -> Iterator[str]:
    states = [run.state for point in points for run in point.runs]
    unfinished = sum(any(run.state != "completed" for run in point.runs) for point in points)
    if unfinished:
        parts = [f"{counted(states.count(state), 'run')} {name}" for state, name in _STATES.items() if state in states]
        yield f"{unfinished} of {counted(len(points), 'point')} are not complete: {', '.join(parts)}"
    wide = [point for point in points if _runs(point) == 2 and (half_width(point.throughput) or 0.0) > WIDE]
    if wide:
        yield f"{counted(len(wide), 'point')} with 2 runs known to no better than ± {100 * WIDE:g} %: repeats = 3 helps"
    if record.half_width:
        yield from _too_wide(record.half_width, points)
    if record.run_half_width:
        yield from _ended_before(record.run_half_width, points)
    strange = {id_ for id_, _ in runs} - {point.id for point in points}
    if strange:
        yield f"runs of {counted(len(strange), 'point')} that an older version of the study had are left out"
    yield from _mixed(record, runs)
    if record.changed:
        settings = [f"{one.what} = {one.here} (full: {one.full})" for one in record.changed]
        yield f"changed to fit here: {'; '.join(settings)}"


def _mixed(record: StudyRecord, runs: _Runs) -> Iterator[str]:
    """What changed between the completed runs of the study and is no parameter of it."""
    own = {point.id for point in record.points}
    completed = [one for (id_, _), listed in runs.items() if id_ in own for _, one in listed if run_state(one) == DONE]
    scripts = {one.script_sha256 for one in completed} - {None}
    if len(scripts) > 1:
        yield (
            f"the script changed while the study went on: its runs are of {len(scripts)} versions of it; "
            "measure them again under another study.name, or compare with care"
        )
    for name in SOFTWARE:
        versions = sorted({version for one in completed if (version := one.versions.get(name)) is not None})
        if len(versions) > 1:
            yield f"runs are of several versions of {name}: {', '.join(versions)}"


def _too_wide(wanted: float, points: Sequence[StudyPoint]) -> Iterator[str]:
    """How many points are not known as well as the study wants, and the widest of them."""
    measured = [point for point in points if any(run.state == "completed" for run in point.runs)]
    widths = {point.id: _width_between_runs(point) for point in measured}
    wide = [point for point in measured if (width := widths[point.id]) is None or width > wanted]
    if wide:
        widest = max((width for point in wide if (width := widths[point.id]) is not None), default=None)
        most = f", the widest to ± {100 * widest:.3g} %" if widest is not None else ""
        yield f"{counted(len(wide), 'point')} not yet known to ± {100 * wanted:g} %{most}: raise study.repeats"


def _ended_before(wanted: float, points: Sequence[StudyPoint]) -> Iterator[str]:
    """How many runs ended before their throughput was known as well as the study wants."""
    rates = [run.metrics.throughput for point in points for run in point.runs if run.metrics is not None]
    short = sum((width := half_width(rate)) is None or width > wanted for rate in rates)
    if short:
        yield f"{counted(short, 'run')} ended with a throughput not known to ± {100 * wanted:g} %: raise study.steps"


def _width_between_runs(point: StudyPoint) -> float | None:
    """Half the width of its interval over runs; None for a single run, which does not know what varies between them."""
    return half_width(point.throughput) if _runs(point) > 1 else None


def _runs(point: StudyPoint) -> int:
    """How many of its repeats have metrics."""
    return sum(run.metrics is not None for run in point.runs)


_STATES: Mapping[PointState, str] = {
    "missing": "missing",
    "failed": "failed",
    "timeout": "timed out",
    "skipped": "skipped",
}
