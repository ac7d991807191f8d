"""Forecast larger sizes from runs: what is requested, what is refused, and the result."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from allpull.analyse.aligned import AlignedRun
from allpull.analyse.programs import by_program, has_steps, program, titles
from allpull.errors import BadInput
from allpull.predict import forecast as forecasts
from allpull.predict.calibration.calibrated import Calibration, Probe, Stated
from allpull.predict.calibration.fit import calibrate
from allpull.predict.calibration.input import free_bytes, with_input
from allpull.predict.calibration.measured import CannotCalibrate, MeasuredRun, measure
from allpull.predict.calibration.mixed import difference
from allpull.predict.calibration.step import INPUT
from allpull.predict.job import Job
from allpull.predict.targets import TargetRequest, forecast_targets
from allpull.predict.terms.input import WAITED
from allpull.predict.what_if import parsed, waterfall
from allpull.schema.base import tag
from allpull.schema.forecast import ForecastResult, NextMeasurement
from allpull.schema.probed import LoaderResult, StorageResult
from allpull.schema.target import TargetForecast
from allpull.units import counted, percent, show_time

MOST_RANKS = 10_000_000
FEW_HOSTS = 16  # that one switch serves in most clusters
NOTED_ERROR = 0.03  # of a step: the error that a forecast of a rehearsed cluster may have


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """What is to be forecast.

    ``ranks``: the sizes. ``hosts``: of each size, None: as many as ``ranks_per_host`` needs, by default that of
    the largest run. ``batch``: samples per rank and step, None: as measured; or ``global_batch`` of all ranks together.
    ``calibrate``: how many of the smallest sizes to calibrate with, None: all. ``what_if``: changes, KEY=VALUE each.
    ``loader``, ``storage``: what probes of them measured.
    ``target``: what a training ends at.
    """

    ranks: tuple[int, ...]
    hosts: tuple[int, ...] | None = None
    ranks_per_host: int | None = None
    batch: float | None = None
    global_batch: float | None = None
    calibrate: int | None = None
    stated: Stated | None = None
    target: TargetRequest | None = None
    what_if: tuple[str, ...] = ()
    loader: LoaderResult | None = None
    storage: StorageResult | None = None


def forecast_runs(runs: Sequence[AlignedRun], probes: Sequence[Probe], request: Request) -> ForecastResult:
    """Forecast ``request`` from ``runs``.

    Raises:
        BadInput: the request contradicts itself, or there is no run of a training.
    """
    _check(request)
    trained = [run for run in runs if has_steps(run.data)]
    if not trained:
        raise BadInput("no run of a training was given", hint="give run directories of allpull run or train")
    name = program(trained[0].data.record).name
    groups = by_program(trained)
    if len(groups) > 1:
        mixed = " and ".join(titles([program(group[0].data.record) for group in groups]))
        return _refusal(name, f"the runs are of several programs: {mixed}")
    try:
        measured = _one_batch([measure(run) for run in trained], request)
        several = difference(trained, measured, probes)
        if several is not None:
            return _refusal(name, several)
        used, held_back = _split(measured, request.calibrate)
        calibration = calibrate(used, probes, request.stated)
        is_own = trained[0].data.record.kind == "train"
        calibration = with_input(
            calibration, request.loader, request.storage, is_own_loader=is_own, free_bytes=free_bytes(trained)
        )
    except CannotCalibrate as error:
        return _refusal(name, error.message)
    kept = {run.run for run in used}
    return _result(name, calibration, held_back, request, [run for run in trained if run.data.record.id in kept])


def _check(request: Request) -> None:
    """Whether a request makes sense.

    Raises:
        BadInput: it does not.
    """
    if not request.ranks:
        raise BadInput("no size to forecast", hint="such as --ranks 8,16,64")
    if not all(1 <= one <= MOST_RANKS for one in request.ranks):
        raise BadInput(f"--ranks: a number of ranks is 1 to {MOST_RANKS:,}", hint="such as --ranks 8,16,64")
    if request.hosts is not None and len(request.hosts) != len(request.ranks):
        raise BadInput("--hosts needs as many numbers as --ranks", hint="such as --ranks 8,16 --hosts 2,4")
    if request.hosts is not None and request.ranks_per_host is not None:
        raise BadInput("--hosts and --ranks-per-host say the same twice", hint="give one of them")
    for ranks, hosts in zip(request.ranks, request.hosts or (), strict=False):
        if not 1 <= hosts <= ranks:
            raise BadInput(f"--hosts: {ranks:,} ranks are on 1 to {ranks:,} hosts, not {hosts:,}")
    if request.batch is not None and request.global_batch is not None:
        raise BadInput("--batch and --global-batch say the same twice", hint="give one of them")
    for name, value in (("batch", request.batch), ("global-batch", request.global_batch)):
        if value is not None and not 0 < value < math.inf:
            raise BadInput(f"--{name}: a batch has at least one sample")
    if request.storage is not None and request.loader is None:
        raise BadInput(
            "--probe: a storage probe does not say how many bytes a sample has",
            hint="add a run of allpull probe loader on the same data",
        )
    for text in request.what_if:
        parsed(text)
    if request.calibrate is not None and request.calibrate < 1:
        raise BadInput("--calibrate: at least one size is needed")


def _one_batch(measured: list[MeasuredRun], request: Request) -> list[MeasuredRun]:
    """``measured``, whose batches may differ if the request names one.

    Raises:
        CannotCalibrate: they differ and it does not.
    """
    batches = sorted({run.batch for run in measured if run.batch is not None})
    if len(batches) > 1 and request.batch is None and request.global_batch is None:
        listed = ", ".join(f"{one:g}" for one in batches)
        raise CannotCalibrate(
            f"the runs have {listed} samples per rank and step: name the batch of the forecast, "
            "--batch per rank or --global-batch of all ranks"
        )
    return measured


def _split(measured: list[MeasuredRun], count: int | None) -> tuple[list[MeasuredRun], list[MeasuredRun]]:
    """The runs of the ``count`` smallest sizes, and those held back."""
    sizes = sorted({run.ranks for run in measured})
    kept = set(sizes if count is None else sizes[:count])
    return [run for run in measured if run.ranks in kept], [run for run in measured if run.ranks not in kept]


def _jobs(calibration: Calibration, held_back: Sequence[MeasuredRun], request: Request) -> Iterator[Job]:
    """The jobs of a request and those held back, by their ranks."""
    usual = calibration.job.ranks_per_host if request.ranks_per_host is None else request.ranks_per_host
    places = {ranks: -(-ranks // min(usual, ranks)) for ranks in request.ranks}
    if request.hosts is not None:
        places |= dict(zip(request.ranks, request.hosts, strict=True))
    places = {**{run.ranks: run.hosts for run in held_back}, **places}
    for ranks, hosts in sorted(places.items()):
        batch = calibration.job.batch if request.batch is None else request.batch
        if request.global_batch is not None:
            batch = request.global_batch / ranks
        samples = calibration.samples_per_epoch(ranks)
        yield replace(calibration.job, ranks=ranks, hosts=hosts, batch=batch, samples_per_epoch=samples)


def _result(
    name: str,
    calibration: Calibration,
    held_back: Sequence[MeasuredRun],
    request: Request,
    runs: Sequence[AlignedRun] = (),
) -> ForecastResult:
    made, refused, missing = [], [], None
    for job in _jobs(calibration, held_back, request):
        reason = forecasts.refusal(job, calibration)
        if reason is None:
            made.append(forecasts.forecast(job, calibration, held_back))
        else:
            refused.append(forecasts.refused(job, reason))
            missing = _missing(job, calibration)
    nothing = "; ".join(dict.fromkeys(one.reason for one in refused))
    measurement = forecasts.next_measurement(made, calibration) or missing
    targets: list[TargetForecast] = []
    notes = [*_notes(calibration), *_beyond(made, calibration)]
    if made and request.target is not None:
        targets, of_target = forecast_targets(made, calibration.events, runs, request.target)
        notes += of_target
    return ForecastResult(
        schema=tag("forecast"),
        program=name,
        calibration=forecasts.runs_used(calibration),
        speedup_reference=forecasts.reference(calibration).ranks if made else None,
        parameters=forecasts.parameter_records(calibration, [one.job for one in made]),
        predictions=[forecasts.size(one, calibration) for one in made],
        baselines=[base for one in made for base in forecasts.baselines(one, calibration)],
        waterfall=waterfall(request.what_if, made, calibration),
        refused=None if made else nothing,
        refused_sizes=refused,
        next_measurement=measurement,
        notes=notes,
        targets=targets,
    )


def _missing(job: Job, calibration: Calibration) -> NextMeasurement:
    """What would answer a refused ``job``: a run of its batch, or one that exchanges gradients where it would."""
    if calibration.compute.refusal(job.batch) is not None:
        return NextMeasurement(parameter="compute", command="the same training with that batch per rank", share=1.0)
    if not calibration.job.bucket_bytes:
        return NextMeasurement(parameter="exchange", command="the same training on 2 ranks", share=1.0)
    where = "2 hosts" if job.hosts > 1 else "2 ranks of one host"
    return NextMeasurement(parameter="exchange", command=f"the same training on {where}", share=1.0)


def _beyond(made: Sequence[forecasts.Forecast], calibration: Calibration) -> Iterator[str]:
    """The limits of input that sizes go beyond, and that no probe reached."""
    yield from _unseen_network(made, calibration)
    fullest = max(run.ranks_per_host for run in calibration.runs)
    most = max((one.job.ranks_per_host for one in made), default=0)
    if most > fullest:
        yield (
            f"{counted(most, 'rank')} per host share its CPUs, memory and links to accelerators more than the "
            f"{fullest:,} that were measured: compute may take longer"
        )
    limits = calibration.input
    for one in made if limits is not None else ():
        assert limits is not None
        job = one.job
        workers = None if job.workers is None else float(job.workers * job.ranks_per_host)
        busy_s = sum((seconds for name, seconds in one.terms.items() if name != INPUT), start=np.zeros(1))
        demand = job.batch * job.ranks_per_host / float(np.median(busy_s))
        for name in limits.unmeasured(demand, job.hosts, workers):
            yield (f"{counted(job.ranks, 'rank')} demand more of {name} than was ever measured, which may be the limit")
        first, later = (
            float(np.median(limits.seconds(job.batch * job.ranks_per_host, job.hosts, workers, first_epoch=first)))
            for first in (True, False)
        )
        longer_s = first - max(later, float(np.median(busy_s)))
        if longer_s > WAITED * float(np.median(one.step_s)):
            yield (
                f"{counted(job.ranks, 'rank')} read their first epoch from storage: its steps take "
                f"{show_time(longer_s)} longer than those of later epochs, which the page cache serves"
            )


def _unseen_network(made: Sequence[forecasts.Forecast], calibration: Calibration) -> Iterator[str]:
    """Where a forecast leaves the hosts whose network was used: upper tiers of switches may be slower."""
    used = max([run.hosts for run in calibration.runs] + [one.hosts for one in calibration.probes])
    most = max((one.job.hosts for one in made), default=0)
    if most > max(used, 1) and most > FEW_HOSTS:
        unseen = f"which {used:,} hosts do not show" if used > 1 else "which no run used"
        yield f"{most:,} hosts keep their link rate here: a slower upper tier of the network, {unseen}, is not in it"


def _notes(calibration: Calibration) -> Iterator[str]:
    yield from calibration.notes
    yield from (f"lateness: {reason}" for reason in calibration.lateness.reasons)
    if calibration.error > NOTED_ERROR:
        by = percent(calibration.error, 1)
        yield f"the model misses the runs that it was fitted to by {by}: intervals include it"
    yield from _notes_on_epochs(calibration)
    evaluation = calibration.events.get("evaluation")
    if evaluation is not None and not evaluation.is_certain:
        yield (
            f"evaluation: how ranks divide it is not seen on {counted(evaluation.ranks, 'rank')}, and it counts as "
            f"{evaluation.division}; --what-if evaluation=parallel or serial gives the other"
        )
    if len({run.ranks for run in calibration.runs}) == 1:
        yield "one number of ranks does not show how anything grows: the growth is that of the model"
    if not calibration.largest.complete:
        yield f"{calibration.largest.run}: not all ranks were recorded; others may have been later"
    if calibration.largest.ranks > 1 and not calibration.largest.is_whole_lane:
        yield (
            f"{calibration.largest.run}: when buckets were ready was not recorded: the exposed part of the exchange "
            "counts as all of it, so that larger sizes may be slower"
        )


def _notes_on_epochs(calibration: Calibration) -> Iterator[str]:
    if calibration.steps_are_equal and calibration.are_whole:
        yield (
            "each rank passes over all of the data: an epoch has as many steps on any number of ranks "
            "(DistributedSampler gives each rank a part)"
        )
    elif calibration.steps_are_equal:
        yield (
            "how many steps an epoch has is not known: each run has one epoch, of as many steps on any number of "
            "ranks, and may have left its loader early (runs of two epochs show it, --epoch-samples states it)"
        )
    elif calibration.job.samples_per_epoch is not None and not calibration.are_whole:
        yield (
            "an epoch is as long as the only one of each run: one that left its loader early has not seen all samples "
            "(runs of two epochs show it, --epoch-samples states it)"
        )


def _refusal(name: str, reason: str) -> ForecastResult:
    return ForecastResult(
        schema=tag("forecast"),
        program=name,
        calibration=[],
        speedup_reference=None,
        parameters=[],
        predictions=[],
        baselines=[],
        waterfall=[],
        refused=reason,
        refused_sizes=[],
        next_measurement=None,
        notes=[],
    )
