"""Targets of a forecast: epochs, samples and parts come from the runs, and what makes no sense is refused."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from rich.console import Console

from allpull.analyse.aligned import AlignedRun
from allpull.cli.target_options import NAMES, parse_failures, parse_price, target_request
from allpull.errors import BadInput
from allpull.predict.forecast import Forecast
from allpull.predict.job import Job
from allpull.predict.targets import TargetRequest, forecast_targets
from allpull.predict.terms.cost import Price
from allpull.predict.terms.periodic import Periodic
from allpull.report.terminal.targets import targets
from allpull.rundir.read.run import read_run
from allpull.schema.target import TargetForecast

KEPT = Path(__file__).resolve().parents[1] / "runs" / "v1.0"
STEP_S = np.full(400, 0.5)


@pytest.fixture(scope="module")
def run() -> AlignedRun:
    """Two epochs of 200 samples on two ranks, with a global batch of 20."""
    return AlignedRun(read_run(KEPT))


def size(ranks: int, batch: float = 10, samples: int | None = 200) -> Forecast:
    job = Job(ranks=ranks, hosts=1, batch=batch, samples_per_epoch=samples)
    return Forecast(job=job, terms={"compute": STEP_S})


def text(forecasts: list[TargetForecast]) -> str:
    console = Console(width=200, record=True, file=None)
    with console.capture() as captured:
        console.print(targets(forecasts))
    return captured.get()


def test_steps_and_what_is_once_per_epoch_make_the_epoch(run: AlignedRun) -> None:
    evaluation = Periodic(seconds=np.full(400, 4.0), ranks=2, division="sharded")
    (two, four), notes = forecast_targets(
        [size(2), size(4)], {"evaluation": evaluation}, [run], TargetRequest(epochs=3)
    )
    assert two.time_s.value == pytest.approx(3 * (10 * 0.5 + 4), rel=0.005)
    assert four.time_s.value == pytest.approx(3 * (5 * 0.5 + 2), rel=0.005)
    assert notes == []


def test_a_checkpoint_counts_once(run: AlignedRun) -> None:
    checkpoint = Periodic(seconds=np.full(400, 2.0), ranks=2, division="serial")

    def time_s(**stated: float) -> float | None:
        (one,), _ = forecast_targets([size(2)], {"checkpoint": checkpoint}, [run], TargetRequest(epochs=30, **stated))
        return one.time_s.value

    assert time_s() == pytest.approx(30 * (5 + 2), rel=0.005)  # once per epoch, as in the runs
    assert time_s(checkpoint_s=2, checkpoint_every_s=5) == pytest.approx(30 * (5 + 2), rel=0.005)
    assert time_s(checkpoint_s=2, checkpoint_every_s=10) == pytest.approx(30 * (5 + 1), rel=0.005)


def test_an_accuracy_at_the_batch_that_reached_it(run: AlignedRun) -> None:
    request = TargetRequest(accuracy=0.15, price=Price(per_hour=3600.0))
    forecasts, notes = forecast_targets([size(2), size(8)], {}, [run], request)
    same, other = forecasts
    assert same.epochs.value == pytest.approx(2, rel=0.05)
    assert other.epochs.value is None
    assert other.bounded is not None
    assert any("of their recipe alone" in note for note in notes)
    shown = text(forecasts)
    assert "≥" in shown
    assert "bounds alone on 8 ranks" in shown
    assert "cost" in shown


def test_a_published_recipe_brings_its_samples(run: AlignedRun) -> None:
    request = TargetRequest(epochs_from="mlperf-lars-75.9")
    (one,), notes = forecast_targets([size(64, 51)], {}, [run], request)
    assert one.epochs.value is not None
    assert one.time_s.value == pytest.approx(one.epochs.value * 393 * 0.5, rel=0.01)
    assert any("1,281,167" in note for note in notes)


def test_without_samples_there_is_no_time() -> None:
    forecasts, notes = forecast_targets([size(2, samples=None)], {}, [], TargetRequest(epochs=3))
    assert forecasts == []
    assert "--epoch-samples" in notes[0]
    request = TargetRequest(epochs=3, epoch_samples=200)
    (one,), notes = forecast_targets([size(2, samples=None)], {}, [], request)
    assert one.time_s.value == pytest.approx(15, rel=0.005)
    assert one.time_s.low is not None
    assert one.time_s.low < 14.95  # another day
    assert any("no epoch of a run is complete" in note for note in notes)


def test_interruptions_are_shown_where_they_matter(run: AlignedRun) -> None:
    request = TargetRequest(epochs=90, epoch_samples=1e9, checkpoint_s=30)
    (large,), notes = forecast_targets([size(16_384)], {}, [run], request)
    assert "interrupted every 3 h" in text([large])
    assert any("--failures" in note for note in notes)
    (small,), notes = forecast_targets([size(2)], {}, [run], TargetRequest(epochs=3))
    assert "interrupted" not in text([small])
    assert not any("--failures" in note for note in notes)


@pytest.mark.parametrize(
    "wrong",
    [
        {},
        {"price": "2"},
        {"epochs": 3.0, "target": 0.5},
        {"epochs": 3.0, "epochs_from": "mlperf-lars-75.9"},
        {"epochs": 3.0, "price": "two"},
        {"epochs": 3.0, "price": "-1"},
        {"epochs": 3.0, "price": "nan/host"},
        {"epochs": 3.0, "failures": "3"},
        {"epochs": 3.0, "failures": "a/b"},
        {"epochs": 3.0, "checkpoint": "0"},
        {"epochs": 3.0, "checkpoint": "soon"},
        {"epochs": 3.0, "restart": "-3"},
        {"epochs": 3.0, "epoch_samples": -2.0},
    ],
)
def test_bad_options(wrong: dict[str, object]) -> None:
    given = {**dict.fromkeys(NAMES), **wrong}
    if not wrong:
        assert target_request(given) is None
        return
    with pytest.raises(BadInput):
        target_request(given)


def test_options_are_read() -> None:
    assert parse_price("30/host") == Price(per_hour=30, per_host=True)
    assert parse_failures("3/20000").rank_hours == 20_000
    request = target_request({**dict.fromkeys(NAMES), "epochs": 90.0, "watts": 300.0, "checkpoint": "2 min"})
    assert request is not None
    assert (request.epochs, request.rank_w, request.checkpoint_s) == (90, 300, 120)
