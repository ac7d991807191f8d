"""Fit step times over batch sizes by a line with a floor: fixed cost, cost per sample, launch-bound knee.

time(batch) = max(floor, fixed + per_sample · batch). The floor is the shortest time of a step, however few
samples it has: the host's time to launch it on an accelerator, or too little work for all cores. Batches up to the
knee cost the same.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from allpull.analyse.probes.allreduce import FEW_FREEDOM
from allpull.analyse.probes.repetitions import spread
from allpull.analyse.statistics import student_t
from allpull.schema.base import tag
from allpull.schema.probed import BucketReady, ComputeBuckets, ComputeFit, ComputePoint, ComputeResult
from allpull.schema.probes import BucketsMeasured, ComputeAnswer, ComputeMeasured
from allpull.schema.results import Interval

Floats = NDArray[np.float64]
Part = Literal["step", "forward", "backward", "optimizer"]

RESAMPLES = 500
TAIL = 2.5  # percent on each side of a 95 % interval
RESOLUTION = 0.02  # relative: times that differ by less count as equal, however small their scatter
USUAL_MISFIT = 0.05  # two batches always fit exactly; times that follow a line do so within this
FLAT = 0.10  # relative: the largest difference between times on the floor
ON_FLOOR = 2  # batch sizes at least: a single one may lie off the line at random, or because it fits into a cache
PARTS: tuple[Part, ...] = ("step", "forward", "backward", "optimizer")


@dataclass(frozen=True, slots=True)
class Line:
    """fixed + per_sample · batch, with a floor; ``floor_s`` is None where there is none."""

    fixed_s: float
    per_sample_s: float
    floor_s: float | None

    @property
    def knee(self) -> float | None:
        """The batch size beyond which the line is above the floor."""
        return None if self.floor_s is None else (self.floor_s - self.fixed_s) / self.per_sample_s

    def at(self, batches: Floats) -> Floats:
        """Times of ``batches``, shape (n,)."""
        return np.maximum(self.floor_s or 0.0, self.fixed_s + self.per_sample_s * batches)


def computed(answer: ComputeAnswer, run: str) -> ComputeResult:
    """The compute probe's results: rates, fitted lines and buckets."""
    changed = {"schema_", "points", "buckets"}
    shared = ComputeAnswer.model_fields.keys() & ComputeResult.model_fields.keys() - changed
    cells = dict.fromkeys((one.precision, one.threads) for one in answer.points)
    fits = [
        fit
        for precision, threads in cells
        for part in PARTS
        if (
            fit := _fit_of([one for one in answer.points if (one.precision, one.threads) == (precision, threads)], part)
        )
    ]
    return ComputeResult(
        schema=tag("compute"),
        run=run,
        points=[_point(one, answer) for one in answer.points],
        fits=fits,
        buckets=[_buckets(one) for one in answer.buckets],
        **{name: getattr(answer, name) for name in shared},
    )


def fit(times_s: Mapping[int, Sequence[float]]) -> tuple[Line, float] | None:
    """The line through the medians of ``times_s`` by batch, and the largest relative distance of a median from it.

    Least squares on relative errors. The number of batches on the floor is the one with the least BIC (Schwarz 1978)
    among none, or ``ON_FLOOR`` and more that lie within ``FLAT`` of each other and leave two or more for the line; no
    residual counts as less than ``RESOLUTION``. None for fewer than two batch sizes; times that do not grow with the
    batch get a line without a slope.
    """
    batches = np.array(sorted(times_s), dtype=np.float64)
    medians = np.array([float(np.median(times_s[int(batch)])) for batch in batches])
    return _best(batches, medians) if batches.size > 1 and (medians > 0).all() else None


def _best(batches: Floats, times_s: Floats) -> tuple[Line, float]:
    candidates: list[tuple[float, Line, float]] = []
    for on_floor in (0, *range(ON_FLOOR, batches.size - 1)):
        line = _line(batches, times_s, on_floor)
        if line is None:
            continue
        errors = line.at(batches) / times_s - 1
        score = batches.size * math.log(float((errors**2).mean()) + RESOLUTION**2)
        score += (2 + (on_floor > 0)) * math.log(batches.size)
        candidates.append((score, line, float(np.abs(errors).max())))
    _, line, worst = min(candidates, key=lambda one: one[0])
    return line, worst


def _line(batches: Floats, times_s: Floats, on_floor: int) -> Line | None:
    """The line with the first ``on_floor`` batches on the floor; None where the times contradict that."""
    fixed_s, per_sample_s = _straight(batches[on_floor:], times_s[on_floor:])
    if on_floor == 0:
        return Line(fixed_s, per_sample_s, None)
    low = times_s[:on_floor]
    floor_s = float(np.median(low))
    flat = low.max() <= floor_s * (1 + FLAT) and low.min() >= floor_s * (1 - FLAT)
    if per_sample_s == 0 or not flat:
        return None
    line = Line(fixed_s, per_sample_s, floor_s)
    return line if batches[on_floor - 1] <= (line.knee or 0.0) <= batches[on_floor] else None


def _straight(batches: Floats, times_s: Floats) -> tuple[float, float]:
    """Fixed and per-sample seconds with the least relative error, both ≥ 0, by the normal equations of two unknowns."""
    ones, slopes = 1 / times_s, batches / times_s
    a, b, c, one, slope = ones @ ones, ones @ slopes, slopes @ slopes, ones.sum(), slopes.sum()
    determinant = a * c - b * b
    fixed_s, per_sample_s = (c * one - b * slope) / determinant, (a * slope - b * one) / determinant
    if fixed_s < 0:
        return 0.0, float(slope / c)
    return (float(fixed_s), float(per_sample_s)) if per_sample_s > 0 else (float(one / a), 0.0)


def _fit_of(points: Sequence[ComputeMeasured], part: Part) -> ComputeFit | None:
    """The fit of one part of the step, with intervals from the scatter of repetitions and the residuals of the line."""
    times_s: dict[int, Sequence[float]] = {one.batch: getattr(one, f"{part}_s") for one in points}
    best_fit = fit(times_s)
    if best_fit is None:
        return None
    line, worst = best_fit
    batches = np.array(sorted(times_s), dtype=np.float64)
    rng = np.random.default_rng(0)
    samples = [np.asarray(times_s[int(batch)], dtype=np.float64) for batch in batches]
    medians = np.column_stack([np.median(rng.choice(one, (RESAMPLES, one.size)), axis=1) for one in samples])
    drawn = [_best(batches, row)[0] for row in medians if (row > 0).all()]
    reach = _misfit(batches, np.array([np.median(one) for one in samples]), line)
    return ComputeFit(
        precision=points[0].precision,
        threads=points[0].threads,
        part=part,
        fixed_s=_interval(line.fixed_s, [one.fixed_s for one in drawn], reach[0]),
        per_sample_s=_interval(line.per_sample_s, [one.per_sample_s for one in drawn], reach[1]),
        floor_s=None if line.floor_s is None else _interval(line.floor_s, [one.floor_s for one in drawn]),
        knee=None if line.knee is None else _interval(line.knee, [one.knee for one in drawn]),
        worst_error=worst,
    )


def _misfit(batches: Floats, times_s: Floats, line: Line) -> tuple[float, float]:
    """The error of the line's two numbers that follows from its residuals; see ``allreduce.ring_fit``."""
    above = batches >= (line.knee or 0.0)
    columns = np.column_stack([np.ones(int(above.sum())), batches[above]]) / times_s[above, None]
    squares = float(((columns @ [line.fixed_s, line.per_sample_s] - 1) ** 2).sum())
    freedom = len(columns) - 2
    if freedom > 0:
        variance, quantile = squares / freedom, FEW_FREEDOM.get(freedom) or student_t(freedom)
    else:
        variance, quantile = max(USUAL_MISFIT**2, squares), student_t(math.inf)
    fixed_s, per_sample_s = quantile * np.sqrt(np.diag(np.linalg.inv(columns.T @ columns)) * variance)
    return float(fixed_s), float(per_sample_s)


def _interval(value: float, drawn: Sequence[float | None], reach: float = 0.0) -> Interval:
    """``value`` with its 95 % interval; no bounds where fewer than half of the resampled fits have such a number."""
    known = [one for one in drawn if one is not None]
    if len(known) < RESAMPLES / 2:
        return Interval(value=value, low=None, high=None)
    low, high = (float(one) for one in np.percentile(known, [TAIL, 100 - TAIL]))
    return Interval(value=value, low=max(0.0, min(low, value - reach)), high=max(high, value + reach))


def _point(measured: ComputeMeasured, answer: ComputeAnswer) -> ComputePoint:
    step = spread(measured.step_s)
    flop_per_s = None if answer.flop_per_sample is None else answer.flop_per_sample * measured.batch / step.median
    peak = answer.matmul_flop_per_s.get(measured.precision)
    return ComputePoint(
        batch=measured.batch,
        precision=measured.precision,
        threads=measured.threads,
        step_s=step,
        forward_s=float(np.median(measured.forward_s)),
        backward_s=float(np.median(measured.backward_s)),
        optimizer_s=float(np.median(measured.optimizer_s)),
        issue_s=None if measured.issue_s is None else float(np.median(measured.issue_s)),
        samples_per_s=measured.batch / step.median,
        flop_per_s=flop_per_s,
        peak_share=flop_per_s / peak if flop_per_s and peak else None,
    )


def _buckets(measured: BucketsMeasured) -> ComputeBuckets:
    backward = spread(measured.backward_s)
    ready = [(one.size_bytes, spread(one.ready_s)) for one in measured.buckets]
    return ComputeBuckets(
        batch=measured.batch,
        precision=measured.precision,
        threads=measured.threads,
        backward_s=backward,
        buckets=[
            BucketReady(size_bytes=size, ready_s=when, ready_share=when.median / backward.median)
            for size, when in ready
        ],
    )
