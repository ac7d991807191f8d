"""Forecasts of the sizes of a study that were not run, from those of the same series that were."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean

from allpull.analyse.aligned import AlignedRun
from allpull.errors import AllpullError, BadInput
from allpull.predict.calibration.calibrated import Probe
from allpull.predict.runs import Request, forecast_runs
from allpull.rundir.read.run import read_run
from allpull.schema.forecast import ForecastResult
from allpull.schema.studied import Attempt, Parameters, RecordedPoint
from allpull.study.costs import Cost
from allpull.study.directory import RUNS, read_attempts, read_study_record, runs_by_point
from allpull.study.points import show_parameters
from allpull.units import counted, show_time


@dataclass(frozen=True, slots=True, kw_only=True)
class Series:
    """Points that differ in their size alone; ``runs`` are the directories of completed runs by point."""

    parameters: Parameters
    points: Sequence[RecordedPoint]
    runs: Mapping[str, Sequence[Path]]

    @property
    def measured(self) -> list[RecordedPoint]:
        """The points that have a completed run."""
        return [point for point in self.points if self.runs.get(point.id)]

    @property
    def missing(self) -> list[RecordedPoint]:
        """The points that have none."""
        return [point for point in self.points if not self.runs.get(point.id)]

    def opened(self) -> list[AlignedRun]:
        """The last completed run of each measured point.

        Raises:
            RunDirError: one cannot be read.
        """
        return [AlignedRun(read_run(self.runs[point.id][-1], skip_damaged=True)) for point in self.measured]


def series_of(directory: Path, points: Iterable[RecordedPoint]) -> list[Series]:
    """The series of ``points``, in their order, with the runs in ``directory`` that completed."""
    completed: dict[str, list[Path]] = {}
    for (point, _), runs in runs_by_point(directory).items():
        completed.setdefault(point, []).extend(
            directory / RUNS / name for name, of_run in runs if of_run.status == "completed"
        )
    groups: dict[str, list[RecordedPoint]] = {}
    for one in points:
        groups.setdefault(repr(sorted(one.series.items())), []).append(one)
    return [Series(parameters=group[0].series, points=group, runs=completed) for group in groups.values()]


def forecast_study(directory: Path, request: Request, probes: Sequence[Probe] = ()) -> ForecastResult:
    """Forecast the series of ``directory`` with most sizes measured; without ranks in ``request``, its missing sizes.

    Raises:
        RunDirError: it is no study, or a run cannot be read.
        BadInput: nothing of it was measured, or nothing is missing and no ranks are requested.
    """
    record = read_study_record(directory)
    every = series_of(directory, record.points)
    series = max(every, key=lambda one: len(one.measured))
    if not series.measured:
        raise BadInput(f"no run of the study {record.name} has completed", hint="allpull study run it first")
    if not request.ranks:
        places = sorted({(point.ranks, point.hosts) for point in series.missing})
        if not places:
            raise BadInput("every size of this study was measured", hint="name others: --ranks 64,128")
        request = replace(request, ranks=tuple(one for one, _ in places), hosts=tuple(hosts for _, hosts in places))
    result = forecast_runs(series.opened(), probes, _of_scaling(request, record.scaling, series))
    if len(every) == 1:
        return result
    note = f"of the series {show_parameters(series.parameters)}, of {len(every):,} of this study"
    return result.model_copy(update={"notes": [note, *result.notes]})


def _of_scaling(request: Request, scaling: str | None, series: Series) -> Request:
    """``request`` for one batch on all ranks together, where the study has that."""
    if scaling != "strong" or request.batch is not None or request.global_batch is not None:
        return request
    batches = {run.data.record.global_batch for run in series.opened()} - {None}
    return replace(request, global_batch=batches.pop()) if len(batches) == 1 else request


def forecast_costs(
    directory: Path, points: Iterable[RecordedPoint], *, scaling: str, fixed_steps: bool
) -> dict[str, Cost]:
    """What one run of each of ``points`` costs that has not completed in ``directory``, where its series tells.

    The points are those of the study as it is now: ``directory`` may be of an older version, whose runs of points that
    are still in it tell as much. ``fixed_steps``: every run has as many steps; otherwise as many samples.
    """
    attempts = read_attempts(directory)
    costs: dict[str, Cost] = {}
    for series in series_of(directory, points):
        if series.measured and series.missing:
            costs.update(_costs(series, scaling, attempts, fixed_steps=fixed_steps))
    return costs


def _costs(
    series: Series, scaling: str, attempts: Sequence[Attempt], *, fixed_steps: bool
) -> Iterator[tuple[str, Cost]]:
    """A run takes what the largest measured one took beside its steps, and its steps, each as long as forecast."""
    largest = max(series.measured, key=lambda point: point.ranks)
    taken = [one.seconds for one in attempts if one.point == largest.id and one.state == "completed"]
    places = sorted({(point.ranks, point.hosts) for point in series.missing})
    request = Request(ranks=tuple(one for one, _ in places), hosts=tuple(hosts for _, hosts in places))
    try:
        runs = series.opened()
        result = forecast_runs(runs, (), _of_scaling(request, scaling, series))
    except AllpullError:
        return  # what cannot be forecast keeps the cost that the study's own rule gives it
    run = next((one for one in runs if one.data.record.ranks == largest.ranks), None)
    used = next((one for one in result.calibration if run is not None and one.run == run.data.record.id), None)
    if not taken or run is None or used is None or used.step_s is None or used.batch is None:
        return
    steps_then = run.data.steps.height / largest.ranks
    beside_s = max(0.0, fmean(taken) - steps_then * used.step_s)
    for size in result.predictions:
        steps = steps_then if fixed_steps else steps_then * used.batch * used.ranks / (size.batch * size.ranks)
        low, high = (beside_s + steps * (bound or 0.0) for bound in (size.step_s.low, size.step_s.high))
        basis = f"forecast from {counted(len(series.measured), 'size')}, {show_time(low)} to {show_time(high)}"
        cost = Cost(seconds=beside_s + steps * size.step_s.value, basis=basis)
        for point in series.missing:
            if (point.ranks, point.hosts) == (size.ranks, size.hosts):
                yield point.id, cost
