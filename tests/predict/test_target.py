"""Time to a target: products that can be checked by hand, bounds where epochs have only bounds, bad input."""

from __future__ import annotations

import numpy as np
import pytest

from allpull.errors import BadInput, UnknownName
from allpull.predict.job import Job
from allpull.predict.target import Checkpoints, Operation, Target, forecast_target, published_target, stated_epochs
from allpull.predict.terms.cost import Price
from allpull.predict.terms.energy import Power
from allpull.predict.terms.failures import FailureRate
from allpull.schema.target import Bounds, TargetForecast

JOB = Job(ranks=8, hosts=2, batch=32)


def forecast(
    target: Target, job: Job = JOB, operation: Operation | None = None, epoch_s: float | np.ndarray = 100.0
) -> TargetForecast:
    draws = np.broadcast_to(np.asarray(epoch_s, dtype=float), (400,))
    return forecast_target(draws, job, target, operation or Operation(), np.random.default_rng(3))


def test_ninety_epochs() -> None:
    operation = Operation(power=Power(rank_w=300.0, host_w=500.0), power_from="stated", price=Price(per_hour=2.0))
    answer = forecast(stated_epochs(90), operation=operation)
    assert answer.time_s == Bounds(value=9000, low=9000, high=9000)
    assert answer.energy_kwh is not None
    assert answer.energy_kwh.value == pytest.approx(2.5 * (8 * 0.3 + 2 * 0.5))
    assert answer.cost is not None
    assert answer.cost.value == pytest.approx(2.5 * 8 * 2)
    assert (answer.interruptions.source, answer.interruptions.useful_share) == ("published", None)


def test_a_host_is_paid_once() -> None:
    answer = forecast(stated_epochs(36), operation=Operation(price=Price(per_hour=10, per_host=True)))
    assert answer.cost is not None
    assert answer.cost.value == pytest.approx(20)


def test_published_recipe_at_its_own_batches() -> None:
    answer = forecast(published_target("mlperf-lars-75.9"), Job(ranks=64, hosts=8, batch=51))
    assert (answer.recipe, answer.epochs_from, answer.bounded) == ("mlperf-lars-75.9", "published", None)
    assert answer.epochs.value == pytest.approx(37.1, rel=0.02)
    assert answer.epochs.low is not None
    assert answer.epochs.high is not None
    assert answer.epochs.low < 35.2 < answer.epochs.high
    assert answer.time_s.value == pytest.approx(100 * answer.epochs.value)
    assert any("of no other recipe" in note for note in answer.notes)


def test_bounds_stay_bounds() -> None:
    price = Operation(price=Price(per_hour=1.0))
    answer = forecast(published_target("mlperf-lars-75.9"), Job(ranks=4096, hosts=512, batch=64), price)
    assert answer.bounded is not None
    assert answer.epochs.value is answer.epochs.high is answer.time_s.value is answer.time_s.high is None
    assert answer.epochs.low is not None
    assert answer.time_s.low == pytest.approx(100 * answer.epochs.low)
    assert answer.cost is not None
    assert answer.cost.low == pytest.approx(answer.time_s.low / 3600 * 4096)


def test_interruptions_of_a_large_job() -> None:
    checkpoints = Checkpoints(write_s=30.0, restart_s=300.0)
    answer = forecast(stated_epochs(600), Job(ranks=16_384, hosts=2048, batch=1), Operation(checkpoints=checkpoints))
    assert answer.interruptions.mean_between_s.value == pytest.approx(3.09 * 3600, rel=0.02)
    interval, useful = answer.interruptions.checkpoint_interval_s, answer.interruptions.useful_share
    assert interval is not None
    assert useful is not None
    assert interval.value == pytest.approx(np.sqrt(2 * 30 * 3.09 * 3600), rel=0.04)  # Young
    assert useful.value == pytest.approx(1 - 30 / 817 - (817 / 2 + 300) / (3.09 * 3600), rel=0.01)  # first order
    assert answer.time_s.value == pytest.approx(60_000 / useful.value, rel=1e-6)


def test_a_job_that_never_ends_has_no_time() -> None:
    checkpoints = Checkpoints(interval_s=1e6)
    rate = FailureRate(interruptions=100, rank_hours=100)
    answer = forecast(stated_epochs(1e5), operation=Operation(checkpoints=checkpoints, failure_rate=rate))
    assert answer.time_s == Bounds(value=None, low=None, high=None)
    assert answer.model_dump_json()


def test_one_source_of_uncertainty_at_a_time() -> None:
    epoch_s = np.exp(np.random.default_rng(0).normal(0, 0.1, 400))
    answer = forecast(stated_epochs(10), epoch_s=epoch_s)
    low, high = 10 * np.quantile(epoch_s, (0.05, 0.95))
    assert (answer.time_s.low, answer.time_s.high) == (pytest.approx(low, rel=0.01), pytest.approx(high, rel=0.01))


@pytest.mark.parametrize("epochs", [0, -1, float("nan"), float("inf")])
def test_no_number_of_epochs(epochs: float) -> None:
    with pytest.raises(BadInput):
        stated_epochs(epochs)


def test_no_such_recipe() -> None:
    with pytest.raises(UnknownName, match="mlperf"):
        published_target("mlperf-sgd")


@pytest.mark.parametrize("price", [-1.0, float("nan"), float("inf")])
def test_no_price(price: float) -> None:
    with pytest.raises(BadInput):
        Price(per_hour=price)


def test_no_power() -> None:
    with pytest.raises(BadInput):
        Power(rank_w=-5.0)


@pytest.mark.parametrize("epoch_s", [0.0, -1.0, float("nan")])
def test_no_epoch(epoch_s: float) -> None:
    with pytest.raises(BadInput):
        forecast(stated_epochs(1), epoch_s=epoch_s)
