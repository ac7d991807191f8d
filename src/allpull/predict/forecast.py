"""Forecast jobs from a calibration: their steps with intervals, and what they consist of."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from allpull.predict.calibration.calibrated import Calibration
from allpull.predict.calibration.crowding import GROWTH
from allpull.predict.calibration.links import LOCAL, NETWORK
from allpull.predict.calibration.measured import MeasuredRun
from allpull.predict.calibration.parameters import HIGH, LOW, Floats, Parameter, State
from allpull.predict.calibration.step import COMPUTE, INPUT, buckets_s, step_terms
from allpull.predict.job import Job
from allpull.predict.terms import periodic
from allpull.schema.forecast import (
    Baseline,
    CalibrationRun,
    EpochForecast,
    ForecastParameter,
    ForecastSize,
    NextMeasurement,
    RefusedForecast,
)
from allpull.schema.interval import Interval

SLOWER, FASTER = 0.0132, 0.0064
"""By how much the rate of another day lies below or above its forecast, in 90 % of published series without a loss.

What ``table.series_errors`` learns from series calibrated on two sizes: its floor, times its quantiles. The part of an
error that grows with the loss of ranks is not in it, since terms model that loss.
"""

LEAST_WIDTH_S = 1e-12
LEAST_SHARE = 0.05  # of the variance of a step: a parameter with less would not narrow its interval


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Forecast:
    """A job with the ``terms`` of its step, in s, (draws,) each; what is ``measured`` of it was held back.

    ``epoch_terms``: of an epoch of ``epoch_steps`` steps; None: its samples are not known.
    """

    job: Job
    terms: dict[str, Floats]
    epoch_terms: dict[str, Floats] | None = None
    epoch_steps: int = 0
    measured: MeasuredRun | None = None

    @property
    def step_s(self) -> Floats:
        """Seconds of a step, (draws,)."""
        total: Floats = np.sum(list(self.terms.values()), axis=0)
        return total

    @property
    def bottleneck(self) -> str:
        """The term that costs most, beside compute."""
        others = {name: float(np.median(seconds)) for name, seconds in self.terms.items() if name != COMPUTE}
        name = max(others, key=others.__getitem__)
        return name if others[name] > 0 else COMPUTE


def refusal(job: Job, calibration: Calibration) -> str | None:
    """Why ``job`` cannot be forecast; None: it can."""
    if job.hosts > job.ranks:
        return f"{job.hosts:,} hosts are more than {job.ranks:,} ranks"
    reason = calibration.compute.refusal(job.batch)
    if reason is not None or job.ranks == 1:
        return reason
    if not job.bucket_bytes:
        return "the bytes of the gradients were not recorded: what ranks exchange is unknown"
    if job.hosts > 1 and NETWORK not in calibration.known_links:
        here = "; for one host give --hosts 1 for each of --ranks" if LOCAL in calibration.known_links else ""
        return f"nothing was measured between hosts, and no --link is stated{here}"
    if job.hosts == 1 and LOCAL not in calibration.known_links:
        return "nothing was measured between ranks of one host"
    return None


def forecast(job: Job, calibration: Calibration, held_back: Iterable[MeasuredRun] = ()) -> Forecast:
    """The forecast of ``job``, which is not refused."""
    same = [run for run in held_back if run.place == (job.ranks, job.hosts) and run.batch == job.batch]
    terms = step_terms(job, calibration)
    made = Forecast(job=job, terms=terms, measured=same[0] if same else None)
    if job.samples_per_epoch is None:
        return made
    steps = math.ceil(job.samples_per_epoch / job.global_batch)
    return replace(
        made, epoch_terms=periodic.epoch(terms, steps, dict(calibration.events), job.ranks), epoch_steps=steps
    )


def interval(draws: Floats) -> Interval:
    """The median of ``draws`` and the bounds of 90 % of them."""
    low, middle, high = (float(one) for one in np.quantile(draws, [LOW, 0.5, HIGH]))
    return Interval(value=middle, low=low, high=high)


def of_seconds(draws: Floats) -> Interval:
    """The interval of a time on another day: that of ``draws``, widened by how far published series are off."""
    return _widened(interval(draws), FASTER, SLOWER)


def of_rate(draws: Floats) -> Interval:
    """The same of a rate."""
    return _widened(interval(draws), SLOWER, FASTER)


def _widened(bounds: Interval, below: float, above: float) -> Interval:
    assert bounds.low is not None
    assert bounds.high is not None
    return Interval(value=bounds.value, low=bounds.low * math.exp(-below), high=bounds.high * math.exp(above))


def terms_of(terms: dict[str, Floats]) -> dict[str, float]:
    """Each term, so that they sum to the median of their sum.

    A term has its median; what medians of skewed terms lack of that of the sum is shared out by how wide terms are.
    """
    medians = np.array([float(np.median(seconds)) for seconds in terms.values()])
    widths = np.array([float(np.subtract(*np.quantile(seconds, [HIGH, LOW]))) for seconds in terms.values()])
    total = float(np.median(np.sum(list(terms.values()), axis=0)))
    shared = medians + (total - medians.sum()) * widths / max(widths.sum(), LEAST_WIDTH_S)
    if shared.min() < 0 or not math.isclose(shared.sum(), total, rel_tol=1e-9):
        shared = medians * total / medians.sum()
    return dict(zip(terms, shared.tolist(), strict=True))


def epoch(one: Forecast) -> EpochForecast | None:
    """The record of an epoch; None: its samples are not known."""
    if one.epoch_terms is None:
        return None
    seconds: Floats = np.sum(list(one.epoch_terms.values()), axis=0)
    return EpochForecast(steps=one.epoch_steps, seconds=of_seconds(seconds), terms=terms_of(one.epoch_terms))


def reference(calibration: Calibration) -> MeasuredRun:
    """The run that speed-ups refer to: of the fewest ranks."""
    return min((run for run in calibration.runs if run.batch is not None), key=lambda run: run.ranks)


def size(one: Forecast, calibration: Calibration) -> ForecastSize:
    """The record of a forecast."""
    base = reference(calibration)
    assert base.batch is not None
    throughput = one.job.global_batch / one.step_s
    speedup = of_rate(throughput / (base.ranks * base.batch / base.step_s))
    return ForecastSize(
        ranks=one.job.ranks,
        hosts=one.job.hosts,
        batch=one.job.batch,
        step_s=of_seconds(one.step_s),
        throughput=of_rate(throughput),
        speedup=speedup,
        efficiency=speedup.scaled(base.ranks / one.job.ranks),
        terms=terms_of(one.terms),
        epoch=epoch(one),
        extrapolation=one.job.ranks / calibration.largest.ranks,
        bottleneck=one.bottleneck,
        measured_step_s=None if one.measured is None else one.measured.step_s,
    )


def refused(job: Job, reason: str) -> RefusedForecast:
    """The record of a job that cannot be forecast."""
    return RefusedForecast(ranks=job.ranks, hosts=job.hosts, reason=reason)


def baselines(one: Forecast, calibration: Calibration) -> Iterable[Baseline]:
    """What simpler arithmetic gives for the step of ``one``, from the same measurements."""
    alone = step_terms(replace(one.job, ranks=1, hosts=1), calibration)
    work_s = float(np.median(alone[COMPUTE] + alone[INPUT]))
    steps = {"linear scaling": work_s}
    if one.job.ranks > 1:
        exchange_s = float(np.median(buckets_s(one.job, calibration).sum(axis=1)))
        exchange_s *= max(calibration.largest.per_step, 1)
        steps |= {"no overlap": work_s + exchange_s, "perfect overlap": max(work_s, exchange_s)}
    for name, seconds in steps.items():
        yield Baseline(name=name, ranks=one.job.ranks, hosts=one.job.hosts, step_s=seconds)


def parameter_records(calibration: Calibration, jobs: Sequence[Job]) -> list[ForecastParameter]:
    """The records of all parameters that ``jobs`` need, compute first."""
    unused = _unused(jobs, calibration)
    fit = calibration.compute
    names = ", ".join(run.run for run in calibration.runs)
    if len(fit.batches) == 1:
        own = [Parameter(name="compute", unit="s", draws=fit.seconds(fit.batches[0]), state="measured", source=names)]
    else:
        weak = len(fit.batches) == 2
        reason = "two batches do not test the line through them" if weak else None
        state: State = "weakly identified" if weak else "measured"
        own = [
            Parameter(name=name, unit="s", draws=draws, state=state, source=names, reason=reason)
            for name, draws in (("compute per step", fit.fixed_s), ("compute per sample", fit.s_per_sample))
        ]
    return [
        ForecastParameter(
            name=one.name,
            unit=one.unit,
            value=interval(one.draws),
            state=one.state,
            reason=one.reason,
            source=one.source,
        )
        for one in [*own, *calibration.parameters.by_name.values()]
        if one.name not in unused
    ]


def _unused(jobs: Sequence[Job], calibration: Calibration) -> tuple[str, ...]:
    """The parameters that none of ``jobs`` uses: of links, and beyond the ranks per host that were measured."""
    links = () if any(job.ranks > job.hosts for job in jobs) else (f"{LOCAL} latency", f"{LOCAL} time per byte")
    fullest = max(calibration.crowding, default=0)
    return links if any(job.ranks_per_host > fullest for job in jobs) else (*links, GROWTH)


def runs_used(calibration: Calibration) -> list[CalibrationRun]:
    """The runs and probes of ``calibration``."""
    runs = [
        CalibrationRun(
            run=run.run,
            kind="run",
            ranks=run.ranks,
            hosts=run.hosts,
            batch=run.batch,
            steps=run.steps,
            step_s=run.step_s,
        )
        for run in calibration.runs
    ]
    probes = [
        CalibrationRun(
            run=one.run,
            kind="probe",
            ranks=one.answer.ranks,
            hosts=one.hosts,
            batch=None,
            steps=sum(len(size.times_s) for size in one.answer.results),
            step_s=None,
        )
        for one in calibration.probes
    ]
    return [*runs, *probes]


def _ranked(draws: Floats) -> Floats:
    """The place of each draw in their order: a correlation of places is not ruled by the largest draw."""
    return np.argsort(np.argsort(draws)).astype(np.float64)


def next_measurement(forecasts: Sequence[Forecast], calibration: Calibration) -> NextMeasurement | None:
    """The parameter whose uncertainty explains most of that of the largest forecast, and how to measure it.

    None: what remains is noise of the runs themselves.
    """
    if not forecasts:
        return None
    step_s = forecasts[-1].step_s
    unused = _unused([forecasts[-1].job], calibration)
    shares: dict[str, float] = {}
    for one in calibration.parameters.by_name.values():
        if one.name in unused:
            continue
        if one.measure is not None and one.draws.ndim == 1 and one.draws.std() > 0 and step_s.std() > 0:
            shares[one.name] = float(np.corrcoef(_ranked(one.draws), _ranked(step_s))[0, 1] ** 2)
    if not shares or max(shares.values()) < LEAST_SHARE:
        return None
    name = max(shares, key=shares.__getitem__)
    command = calibration.parameters.by_name[name].measure
    assert command is not None
    return NextMeasurement(parameter=name, command=command, share=shares[name])
