"""What a kept run shows of its training, and planted power that must come back."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from allpull.analyse.aligned import AlignedRun
from allpull.errors import BadInput
from allpull.predict.calibration.training import checkpoint_s, measured_power, reached_accuracy
from allpull.rundir.read.counters import GPUS_SCHEMA
from allpull.rundir.read.run import RunData, read_run

KEPT = Path(__file__).resolve().parents[2] / "runs" / "v1.0"


@pytest.fixture(scope="module")
def data() -> RunData:
    """Two epochs of 200 samples on two ranks, top-1 0.108 and 0.2, with a global batch of 20."""
    return read_run(KEPT)


def with_spec(data: RunData, **train: object) -> AlignedRun:
    spec = {**data.record.spec, "train": {**data.record.spec["train"], **train}}
    return AlignedRun(replace(data, record=data.record.model_copy(update={"spec": spec})))


def test_epochs_to_an_accuracy(data: RunData) -> None:
    target = reached_accuracy([AlignedRun(data)], 0.15)
    assert (target.points, target.name) == (((20.0, 2.0),), "0.15 of test_top1")
    assert reached_accuracy([AlignedRun(data)], 0.1).points == ((20.0, 1.0),)


def test_an_accuracy_that_no_run_reached(data: RunData) -> None:
    with pytest.raises(BadInput, match=r"best is 0\.2"):
        reached_accuracy([AlignedRun(data)], 0.5)


@pytest.mark.parametrize("accuracy", [0, 1, 75.9, -0.1, float("nan")])
def test_no_accuracy(data: RunData, accuracy: float) -> None:
    with pytest.raises(BadInput, match="no fraction"):
        reached_accuracy([AlignedRun(data)], accuracy)


def test_recipes_are_not_mixed(data: RunData) -> None:
    with pytest.raises(BadInput, match=r"train\.optimizer"):
        reached_accuracy([AlignedRun(data), with_spec(data, optimizer="lars")], 0.15)
    other_rate = with_spec(data, lr=0.7, warmup_epochs=3)
    assert len(reached_accuracy([AlignedRun(data), other_rate], 0.15).points) == 2


def gpus(data: RunData, watts: list[float], *, counters: bool) -> pl.DataFrame:
    """Accelerators of constant power on the host of the run, sampled from before its first step to after its last."""
    begin, end = data.steps["begin_ns"].min(), data.steps["end_ns"].max()
    host = next(iter(data.headers.values())).host
    rows = []
    for gpu, watt in enumerate(watts):
        for t_ns in range(begin - 10**8, end + 2 * 10**8, 10**8):
            energy = watt * (t_ns - begin) / 1e9 + 5000 if counters else None
            rows.append({"host": host, "t_ns": t_ns, "gpu": str(gpu), "power_w": watt, "energy_j": energy})
    return pl.DataFrame([{name: row.get(name) for name in GPUS_SCHEMA} for row in rows], schema=GPUS_SCHEMA)


@pytest.mark.parametrize("counters", [True, False])
def test_planted_power_comes_back(data: RunData, counters: bool) -> None:
    run = AlignedRun(replace(data, gpus=gpus(data, [300.0, 200.0], counters=counters)))
    power = measured_power([run], np.random.default_rng(0), 50)
    assert power is not None
    assert power == pytest.approx(np.full(50, 250.0), rel=1e-6)


def test_no_power_is_none(data: RunData) -> None:
    assert measured_power([AlignedRun(data)], np.random.default_rng(0), 50) is None
    short = gpus(data, [300.0], counters=True).filter(pl.col("t_ns") < data.steps["end_ns"].max() - 10**8)
    assert measured_power([AlignedRun(replace(data, gpus=short))], np.random.default_rng(0), 50) is None


def test_checkpoints_of_the_run(data: RunData) -> None:
    written = checkpoint_s([AlignedRun(data)])
    assert written is not None
    assert 0 < written < 10
