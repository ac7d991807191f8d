"""From the time of an epoch to that of a training: time to the target, interruptions, energy and cost."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
import numpy.typing as npt

from allpull.errors import BadInput
from allpull.predict.calibration.parameters import HIGH, LOW
from allpull.predict.job import Job
from allpull.predict.terms import failures
from allpull.predict.terms.convergence import EpochsToTarget, epochs_to_target
from allpull.predict.terms.cost import Price
from allpull.predict.terms.energy import JOULES_PER_KWH, Power
from allpull.predict.terms.failures import FailureRate
from allpull.published.convergence import published_recipe, reference_points
from allpull.schema.target import Bounds, Interruptions, TargetForecast

Floats = npt.NDArray[np.float64]
Number = float | Floats


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """What a training ends at, and how many epochs that takes.

    ``points`` are (global batch, epochs) of trainings of one recipe that reached it; ``stated`` is a number of epochs
    instead, whatever the batch.
    """

    name: str
    source: Literal["stated", "runs", "published"]
    points: tuple[tuple[float, float], ...] = ()
    stated: float | None = None
    recipe: str | None = None
    notes: tuple[str, ...] = ()

    def epochs(self, global_batch: float, rng: np.random.Generator, draws: int) -> EpochsToTarget:
        """Epochs that it takes at ``global_batch``."""
        if self.stated is not None:
            return EpochsToTarget(draws=np.full(draws, self.stated))
        resolution = 1.0 if self.source == "runs" else 0.0  # a training is evaluated after whole epochs
        return epochs_to_target(self.points, global_batch, rng, draws, resolution=resolution)


def stated_epochs(epochs: float) -> Target:
    """A training of ``epochs`` epochs.

    Raises:
        BadInput: it is no positive number.
    """
    if not 0 < epochs < float("inf"):
        raise BadInput(f"{epochs:g} epochs: a training has more than none", hint="such as --epochs 90")
    return Target(name=f"{epochs:g} epochs", source="stated", stated=float(epochs))


def published_target(name: str) -> Target:
    """The target of the published recipe called ``name``.

    Raises:
        UnknownName: there is no such recipe.
    """
    recipe = published_recipe(name)
    points = tuple((float(one.global_batch), one.mean_epochs) for one in reference_points())
    note = f"the epochs are those of {recipe.network} with {recipe.optimizer}, to {recipe.target}: of no other recipe"
    return Target(name=recipe.target, source="published", points=points, recipe=name, notes=(note,))


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Checkpoints:
    """How a job survives an interruption.

    ``write_s``: what writing a checkpoint takes, None where it is not known; ``in_epoch``: the job writes them once per
    epoch, and the time of an epoch has it already. ``interval_s``: work between two otherwise, None for the best;
    ``restart_s``: from an interruption to the first step.
    """

    write_s: Number | None = None
    interval_s: Number | None = None
    restart_s: Number = 0.0
    in_epoch: bool = False


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Operation:
    """How the machine runs a job besides its steps; a ``failure_rate`` of None is the published anchor."""

    checkpoints: Checkpoints = field(default_factory=Checkpoints)
    failure_rate: FailureRate | None = None
    power: Power | None = None
    power_from: Literal["measured", "stated"] | None = None
    price: Price | None = None


def forecast_target(
    epoch_s: Floats, job: Job, target: Target, operation: Operation, rng: np.random.Generator
) -> TargetForecast:
    """What ``target`` takes on ``job``, an epoch of which takes ``epoch_s``, of shape (draws,).

    Where the epochs have only bounds, so have time, energy and cost.

    Raises:
        BadInput: ranks, hosts or an epoch's time are no positive numbers, or a rate, power or price makes no sense.
    """
    if min(job.ranks, job.hosts) < 1 or not (np.isfinite(epoch_s).all() and (epoch_s > 0).all()):
        raise BadInput("ranks, hosts and the time of an epoch are positive", hint="such as --ranks 64 --hosts 8")
    epochs = target.epochs(job.global_batch, rng, epoch_s.size)
    rate = operation.failure_rate or FailureRate()
    between_s = failures.mean_between_s(job.ranks, rate.per_rank_s(rng, epoch_s.size))
    training = _Training(epoch_s=epoch_s, job=job, operation=operation, between_s=between_s)
    return TargetForecast(
        ranks=job.ranks,
        hosts=job.hosts,
        global_batch=job.global_batch,
        target=target.name,
        epochs_from=target.source,
        recipe=target.recipe,
        epochs=_over(np.asarray, epochs),
        bounded=epochs.reason,
        time_s=_over(training.time_s, epochs),
        interruptions=_interruptions(training, epochs),
        energy_kwh=None if operation.power is None else _over(training.energy_kwh, epochs),
        power_from=None if operation.power is None else operation.power_from,
        cost=None if operation.price is None else _over(training.cost, epochs),
        notes=list(target.notes),
    )


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Training:
    """A training of some epochs; its methods have draws of a quantity that grows with their number."""

    epoch_s: Floats
    job: Job
    operation: Operation
    between_s: Floats

    @property
    def interval_s(self) -> Number | None:
        """Work between two checkpoints; None where neither that nor the time of writing one is known."""
        checkpoints = self.operation.checkpoints
        if checkpoints.in_epoch:
            return self.epoch_s
        if checkpoints.interval_s is not None or checkpoints.write_s is None:
            return checkpoints.interval_s
        return failures.optimal_interval_s(checkpoints.write_s, self.between_s)

    def work_s(self, epochs: Number) -> Floats:
        return np.asarray(np.asarray(epochs) * self.epoch_s)

    def time_s(self, epochs: Number) -> Floats:
        checkpoints, interval_s = self.operation.checkpoints, self.interval_s
        if interval_s is None:
            return self.work_s(epochs)
        return failures.expected_s(
            self.work_s(epochs),
            self.between_s,
            interval_s=interval_s,
            write_s=0.0 if checkpoints.in_epoch or checkpoints.write_s is None else checkpoints.write_s,
            restart_s=checkpoints.restart_s,
        )

    def chance(self, epochs: Number) -> Floats:
        return failures.chance(self.work_s(epochs), self.between_s)

    def slowdown(self, epochs: Number) -> Floats:
        return self.time_s(epochs) / self.work_s(epochs)

    def energy_kwh(self, epochs: Number) -> Floats:
        assert self.operation.power is not None
        energy_j = self.operation.power.energy_j(self.time_s(epochs), ranks=self.job.ranks, hosts=self.job.hosts)
        return energy_j / JOULES_PER_KWH

    def cost(self, epochs: Number) -> Floats:
        assert self.operation.price is not None
        return self.operation.price.cost(self.time_s(epochs), ranks=self.job.ranks, hosts=self.job.hosts)


def _interruptions(training: _Training, epochs: EpochsToTarget) -> Interruptions:
    interval_s = training.interval_s
    return Interruptions(
        source="published" if training.operation.failure_rate is None else "stated",
        mean_between_s=bounds(training.between_s),
        chance=_over(training.chance, epochs),
        checkpoint_interval_s=None if interval_s is None else bounds(interval_s),
        useful_share=None if interval_s is None else _turned(_over(training.slowdown, epochs)),
    )


def bounds(draws: Number) -> Bounds:
    """The quantiles of ``draws``; a training that never ends has none."""
    low, value, high = (_finite(draws, share) for share in (LOW, 0.5, HIGH))
    return Bounds(value=value, low=low, high=high)


def _finite(draws: Number, share: float) -> float | None:
    quantile = float(np.quantile(draws, share, method="higher"))  # between a number and inf there is no mean
    return quantile if np.isfinite(quantile) else None


def _over(quantity: Callable[[Number], Number], epochs: EpochsToTarget) -> Bounds:
    """A ``quantity`` that grows with the epochs, over their draws, or from their lower to their upper bound."""
    if epochs.draws is not None:
        return bounds(quantity(epochs.draws))
    return Bounds(
        value=None,
        low=None if epochs.low is None else _finite(quantity(epochs.low), LOW),
        high=None if epochs.high is None else _finite(quantity(epochs.high), HIGH),
    )


def _turned(of: Bounds) -> Bounds:
    """The bounds of 1 ÷ a quantity."""
    value, low, high = (None if one is None else 1 / one for one in (of.value, of.high, of.low))
    return Bounds(value=value, low=low, high=high)
