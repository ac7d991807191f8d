"""The metrics that runs are compared by, and their values in one run with the error within the run."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from statistics import NormalDist
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from allpull.analyse import learning, statistics
from allpull.analyse.aligned import AlignedRun
from allpull.analyse.effect import Measured
from allpull.analyse.epochs import times
from allpull.analyse.epochs.parts import PARTS, Epochs, epochs_of, wanted_accuracy
from allpull.analyse.steps import phases, throughput
from allpull.analyse.steps.grid import Floats, arrange
from allpull.replay.recording.chosen_steps import ChosenSteps
from allpull.replay.recording.step_choice import NoWindow, choose_steps
from allpull.schema.compared import Scale
from allpull.schema.explained import Efficiency, ExplainResult
from allpull.schema.results import Interval
from allpull.units import NS_PER_S

PAUSES = ("evaluation", "checkpoint")


@dataclass(frozen=True, slots=True, kw_only=True)
class Metric:
    """One metric. A share is a fraction of 1; ``more_is`` is the meaning of an increase.

    ``by_seed``: another seed gives another value, by more than machines vary; an accuracy is exact for one seed.
    """

    name: str
    unit: Literal["samples/s", "s", "share"]
    scale: Scale
    more_is: Literal["faster", "slower", "better", "worse"]
    by_seed: bool = False


FACTORS = tuple(field.alias or name for name, field in Efficiency.model_fields.items())
"""Factors of the efficiency tree, as `allpull explain` names them."""

METRICS: Mapping[str, Metric] = {
    metric.name: metric
    for metric in (
        Metric(name="throughput", unit="samples/s", scale="ratio", more_is="faster"),
        Metric(name="throughput_with_pauses", unit="samples/s", scale="ratio", more_is="faster"),
        Metric(name="step_s", unit="s", scale="ratio", more_is="slower"),
        Metric(name="epoch_s", unit="s", scale="ratio", more_is="slower"),
        *(Metric(name=f"epoch_{name}_s", unit="s", scale="difference", more_is="worse") for name in PARTS),
        Metric(name="time_to_solution_s", unit="s", scale="ratio", more_is="slower"),
        Metric(name="time_to_accuracy_s", unit="s", scale="ratio", more_is="slower", by_seed=True),
        Metric(name="training_samples_per_s", unit="samples/s", scale="ratio", more_is="faster"),
        Metric(name="overall_samples_per_s", unit="samples/s", scale="ratio", more_is="faster"),
        *(Metric(name=f"phases.{name}", unit="s", scale="difference", more_is="worse") for name in phases.NAMES),
        *(Metric(name=f"efficiency.{name}", unit="share", scale="difference", more_is="better") for name in FACTORS),
        *(
            Metric(name=name, unit="share", scale="difference", more_is="better", by_seed=True)
            for name in learning.SHARES
        ),
    )
}
"""All metrics by name, in the order of the result."""

EPOCH_TIMES = ("epoch_s", *(f"epoch_{name}_s" for name in PARTS), "time_to_solution_s", "time_to_accuracy_s")
"""Those that two sides can only have in common where an epoch is the same work."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Measures:
    """Metrics of one run, each on its scale of comparison, with its steady steps and throughput (samples/s).

    ``epoch_samples``: the mean of its complete epochs but the first; None: not recorded.
    """

    values: Mapping[str, Measured]
    steps: int
    throughput: Interval | None
    epoch_samples: float | None = None


def measures(aligned: AlignedRun, explained: ExplainResult | None = None, accuracy: float | None = None) -> Measures:
    """The metrics that one run recorded; the efficiency factors come from ``explained``.

    ``accuracy``: the one whose time is compared; None: that at which each training was to stop.
    """
    ranks = aligned.data.record.ranks
    numbers = aligned.steady.steps[aligned.steady.used]
    window = choose_steps(aligned)
    grid = arrange(aligned.steps, numbers, ranks, aligned.reductions)
    times_s = throughput.step_times_s(grid) if grid.steps else np.empty(0)
    by_metric: dict[str, Measured | None] = {
        "throughput": rate(grid.samples.sum(axis=1), times_s),
        "throughput_with_pauses": _with_pauses(window, aligned, ranks),
        "step_s": rate(times_s, np.ones_like(times_s)),
    }
    for name, seconds in aligned.phases(grid, numbers).seconds.items():
        by_metric[f"phases.{name}"] = None if seconds is None else _mean(seconds.mean(axis=1))
    epochs = epochs_of(aligned)
    by_metric |= _epochs(epochs)
    by_metric["time_to_solution_s"] = _once(times.time_to_solution_s(epochs))
    wanted = accuracy if accuracy is not None else wanted_accuracy(aligned)
    reached = None if wanted is None else times.time_to_accuracy(aligned, epochs, wanted)
    by_metric["time_to_accuracy_s"] = None if reached is None else _once(reached.time_s)
    by_metric |= _pauses(window, aligned, ranks)
    by_metric |= _factors(explained)
    for name in learning.SHARES:
        value = learning.last_value(aligned.data.events, name)
        by_metric[name] = None if value is None else Measured(value=value, error=0.0)
    return Measures(
        values={name: value for name, value in by_metric.items() if value is not None},
        steps=grid.steps,
        throughput=throughput.throughput(grid),
        epoch_samples=_epoch_samples(epochs),
    )


def _epochs(epochs: Epochs) -> Iterator[tuple[str, Measured | None]]:
    """Mean times of an epoch and of its parts, and samples/s while training and over whole epochs.

    The epochs are those of ``allpull show``: complete, and not the first where there are others.
    """
    if not epochs.averaged:
        return
    ones = np.ones(len(epochs.averaged))
    totals_s = np.array([one.total_ns / NS_PER_S for one in epochs.averaged])
    parts_s = {name: np.array([one.parts_ns[name] / NS_PER_S for one in epochs.averaged]) for name in PARTS}
    samples = np.array([math.nan if one.samples is None else float(one.samples) for one in epochs.averaged])
    yield "epoch_s", rate(totals_s, ones)
    for name in PARTS:
        yield f"epoch_{name}_s", _mean(parts_s[name])
    yield "training_samples_per_s", rate(samples, parts_s["training"])
    yield "overall_samples_per_s", rate(samples, totals_s)


def _epoch_samples(epochs: Epochs) -> float | None:
    samples = [one.samples for one in epochs.averaged]
    known = [one for one in samples if one is not None]
    return sum(known) / len(known) if known and len(known) == len(samples) else None


def _once(seconds: float | None) -> Measured | None:
    """A time that a run has once, and that thus has no error within it."""
    return None if seconds is None or seconds <= 0 else Measured(value=math.log(seconds))


def rate(numerator: Floats, denominator: Floats) -> Measured | None:
    """log(Σ numerator ÷ Σ denominator) over steps, both of shape (steps,); None where that is not a number."""
    if not numerator.size or np.isnan(numerator).any() or not (numerator.sum() > 0 and denominator.sum() > 0):
        return None
    value = float(numerator.sum() / denominator.sum())
    return _logarithm(value, statistics.ratio_error(numerator, denominator))


def _mean(series: Floats) -> Measured:
    error, freedom = statistics.ratio_error(series, np.ones_like(series)) or (None, math.inf)
    return Measured(value=float(series.mean()), error=error, freedom=freedom)


def _logarithm(value: float, error_and_freedom: tuple[float, float] | None) -> Measured:
    error, freedom = error_and_freedom or (None, math.inf)
    return Measured(value=math.log(value), error=None if error is None else error / value, freedom=freedom)


def _with_pauses(window: ChosenSteps | NoWindow, aligned: AlignedRun, ranks: int) -> Measured | None:
    """Samples per second over the window of `allpull explain`, evaluations and checkpoints included.

    Steps are contiguous, but for those of several profiler windows, so their times include everything between them.
    Regular steps vary as one series; steps with a pause are periodic, so they count as they occurred and vary among
    themselves.
    """
    if isinstance(window, NoWindow):
        return None
    grid = arrange(aligned.steps, window.numbers, ranks, aligned.reductions)
    samples, times_s = grid.samples.sum(axis=1), throughput.step_times_s(grid)
    if np.isnan(samples).any() or not (samples.sum() > 0 and times_s.sum() > 0):
        return None
    value = float(samples.sum() / times_s.sum())
    return _logarithm(value, _error_with_pauses(samples, times_s, window.kinds > 0, value))


def _pauses(window: ChosenSteps | NoWindow, aligned: AlignedRun, ranks: int) -> Iterator[tuple[str, Measured]]:
    """Evaluation and checkpoint time per step of that window: steady steps have none; too few for an error."""
    if isinstance(window, NoWindow):
        return
    grid = arrange(aligned.steps, window.numbers, ranks, aligned.reductions)
    for name in PAUSES:
        if not np.isnan(grid.spans_s[name]).all():
            yield f"phases.{name}", Measured(value=float(np.nan_to_num(grid.spans_s[name]).mean()))


def _error_with_pauses(
    samples: Floats, times_s: Floats, paused: NDArray[np.bool_], value: float
) -> tuple[float, float] | None:
    """Standard error of Σ samples ÷ Σ times by the delta method, from each step's samples − value · time."""
    residuals = samples - value * times_s
    regular = residuals[~paused]
    if regular.size < statistics.MIN_POINTS:
        return None
    regular_error = statistics.ratio_error(regular, np.ones_like(regular))
    if regular_error is None:
        return None
    error, freedom = regular_error
    regular_variance = (error * regular.size) ** 2
    paused_variance = float(residuals[paused].var(ddof=1) * paused.sum()) if paused.sum() > 1 else 0.0
    return math.sqrt(regular_variance + paused_variance) / float(times_s.sum()), freedom


def _factors(explained: ExplainResult | None) -> Iterator[tuple[str, Measured]]:
    """The efficiency factors, with standard errors from their 95 % intervals."""
    if explained is None or explained.efficiency is None:
        return
    for name, interval in explained.efficiency.model_dump(by_alias=True).items():
        if interval is not None:
            yield f"efficiency.{name}", _of_interval(Interval.model_validate(interval))


def _of_interval(interval: Interval) -> Measured:
    if interval.low is None or interval.high is None:
        return Measured(value=interval.value)
    width = 2 * NormalDist().inv_cdf((1 + statistics.CONFIDENCE) / 2)
    return Measured(value=interval.value, error=(interval.high - interval.low) / width)
