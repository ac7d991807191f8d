"""Time to a target of every size of a forecast: what is requested, and what the runs add to it."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from allpull.analyse.aligned import AlignedRun
from allpull.errors import BadInput
from allpull.predict.calibration.parameters import DRAWS, Floats
from allpull.predict.calibration.training import checkpoint_s, measured_power, reached_accuracy
from allpull.predict.forecast import FASTER, SLOWER, Forecast
from allpull.predict.target import (
    Checkpoints,
    Operation,
    Target,
    forecast_target,
    published_target,
    stated_epochs,
)
from allpull.predict.terms.cost import Price
from allpull.predict.terms.energy import Power
from allpull.predict.terms.failures import FailureRate
from allpull.predict.terms.periodic import Periodic, epoch
from allpull.published.convergence import RECIPES
from allpull.schema.target import NOTED_CHANCE, TargetForecast

SEED = 0
NORMAL_95 = 1.645  # quantile of the normal distribution


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetRequest:
    """To what a training is forecast, and facts that are stated; None where they are not.

    One of ``accuracy`` (a fraction, reached by some of the runs), ``epochs`` and ``epochs_from`` (a published recipe).
    ``epoch_samples``: of all ranks. ``rank_w``, ``host_w``: mean power. ``checkpoint_s``: what writing one takes,
    ``checkpoint_every_s`` the work between two, ``restart_s`` the time from an interruption to the first step.
    """

    accuracy: float | None = None
    epochs: float | None = None
    epochs_from: str | None = None
    epoch_samples: float | None = None
    price: Price | None = None
    rank_w: float | None = None
    host_w: float = 0.0
    checkpoint_s: float | None = None
    checkpoint_every_s: float | None = None
    restart_s: float = 0.0
    failure_rate: FailureRate | None = None

    def __post_init__(self) -> None:
        """Raises BadInput where not exactly one target is named, or a number makes no sense."""
        targets = {"--target": self.accuracy, "--epochs": self.epochs, "--epochs-from": self.epochs_from}
        named = [name for name, value in targets.items() if value is not None]
        if len(named) != 1:
            reason = " and ".join(named) + " name several targets" if named else "no target is named"
            raise BadInput(reason, hint="give one of --epochs 90, --target 0.759 and --epochs-from mlperf-lars-75.9")
        positive = {
            "--epoch-samples": self.epoch_samples,
            "--checkpoint": self.checkpoint_s,
            "--checkpoint-every": self.checkpoint_every_s,
        }
        wrong = [name for name, value in positive.items() if value is not None and not 0 < value < math.inf]
        if wrong or not 0 <= self.restart_s < math.inf:
            raise BadInput(f"{(wrong or ['--restart'])[0]}: it is no positive number")


def forecast_targets(
    made: Sequence[Forecast], events: Mapping[str, Periodic], runs: Sequence[AlignedRun], request: TargetRequest
) -> tuple[list[TargetForecast], list[str]]:
    """What the target takes on each size of ``made``, and notes of all of them; ``events`` happen once per epoch.

    Raises:
        BadInput: no run reached the accuracy, or a statement makes no sense.
    """
    target = _target(runs, request)
    samples, notes = _samples(target, made, request)
    if samples is None:
        return [], notes
    operation = _operation(runs, events, request)
    in_epoch = dict(events)
    if not operation.checkpoints.in_epoch:
        in_epoch.pop("checkpoint", None)  # it would count beside those of the interval
    forecasts = []
    for one, of_epoch in zip(made, samples, strict=True):
        rng = np.random.default_rng(SEED)  # the same recipe, and day, in every draw of every size
        steps = math.ceil(of_epoch / one.job.global_batch)
        epoch_s = np.sum(list(epoch(one.terms, steps, in_epoch, one.job.ranks).values()), axis=0)
        forecasts.append(forecast_target(_another_day(epoch_s, rng), one.job, target, operation, rng))
    is_risky = any((one.interruptions.chance.high or 0) >= NOTED_CHANCE for one in forecasts)
    notes += [*target.notes, *_notes(events, operation), *(_risks(operation) if is_risky else ())]
    return [one.model_copy(update={"notes": []}) for one in forecasts], notes


def _operation(runs: Sequence[AlignedRun], events: Mapping[str, Periodic], request: TargetRequest) -> Operation:
    """The machine, and checkpoints once per epoch as the runs wrote them, unless others are stated."""
    is_stated = request.checkpoint_s is not None or request.checkpoint_every_s is not None
    operation = Operation(
        checkpoints=Checkpoints(
            write_s=checkpoint_s(runs) if request.checkpoint_s is None else request.checkpoint_s,
            interval_s=request.checkpoint_every_s,
            restart_s=request.restart_s,
            in_epoch="checkpoint" in events and not is_stated,
        ),
        failure_rate=request.failure_rate,
        price=request.price,
    )
    if request.rank_w is not None:
        return replace(operation, power=Power(rank_w=request.rank_w, host_w=request.host_w), power_from="stated")
    power_w = measured_power(runs, np.random.default_rng(SEED), DRAWS)
    if power_w is None:
        return operation
    return replace(operation, power=Power(rank_w=power_w, host_w=request.host_w), power_from="measured")


def _another_day(seconds: Floats, rng: np.random.Generator) -> Floats:
    """``seconds`` as another day may have them: 90 % within the bounds by which a forecast's intervals are widened."""
    day = rng.standard_normal(seconds.size)
    return seconds * np.exp(np.where(day > 0, SLOWER, FASTER) * day / NORMAL_95)


def _target(runs: Sequence[AlignedRun], request: TargetRequest) -> Target:
    if request.accuracy is not None:
        reached = reached_accuracy(runs, request.accuracy)
        return Target(name=reached.name, source="runs", points=reached.points, notes=reached.notes)
    if request.epochs is not None:
        return stated_epochs(request.epochs)
    assert request.epochs_from is not None
    return published_target(request.epochs_from)


def _samples(
    target: Target, made: Sequence[Forecast], request: TargetRequest
) -> tuple[Sequence[float] | None, list[str]]:
    """Samples of an epoch of each of ``made``, and what to know about them; None where nothing shows them."""
    if request.epoch_samples is not None:
        return [request.epoch_samples] * len(made), []
    if target.recipe is not None:
        samples = RECIPES[target.recipe].samples
        return [samples] * len(made), [f"an epoch has the {samples:,} samples of the published recipe"]
    known = [one.job.samples_per_epoch for one in made if one.job.samples_per_epoch is not None]
    if made and len(known) == len(made):
        return known, []
    return None, ["no time to the target: no epoch of a run is complete; state the samples of one, --epoch-samples"]


def _notes(events: Mapping[str, Periodic], operation: Operation) -> Iterator[str]:
    if not events:
        yield "evaluations and checkpoints are not in the time to the target: no epoch of a run is complete"
    if operation.power_from == "measured":
        yield "power is that of the accelerators of the largest run with it; ranks that wait more take less"


def _risks(operation: Operation) -> Iterator[str]:
    if operation.checkpoints.in_epoch:
        yield "checkpoints are written once per epoch, as in the runs; --checkpoint-every states another interval"
    if operation.failure_rate is None:
        yield "interruptions: the published rate of 16,384 H100 (Llama Team 2024); state that of your site, --failures"
    if operation.checkpoints.write_s is None and operation.checkpoints.interval_s is None:
        yield "interruptions cost no time here: what writing a checkpoint takes is not known; state --checkpoint"
