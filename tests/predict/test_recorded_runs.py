"""Forecasts from recorded runs of the independent simulator, which know when the last bucket ended, not each bucket."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest
from tests.oracle.records import Recording, write
from tests.oracle.simulator import simulate
from tests.oracle.training import Training, Wire, even, spread

from allpull.analyse.aligned import AlignedRun
from allpull.predict.calibration.calibrated import Probe
from allpull.predict.calibration.fit import calibrate
from allpull.predict.calibration.input import free_bytes
from allpull.predict.calibration.measured import measure
from allpull.predict.runs import Request, forecast_runs
from allpull.rundir.read.run import read_run
from allpull.schema.base import tag
from allpull.schema.probes import AllreduceAnswer

STEPS = 40
BYTES_PER_S = 50e6


def trained(ranks: int, hop_s: float = 200e-6, gradients: int = 4 << 20) -> Training:
    """A ring over hosts of one rank each, busy from the first bucket to the last: one rank exchanges nothing."""
    wire = Wire(latency_s=2 * (ranks - 1) * hop_s, bytes_per_s=BYTES_PER_S * ranks / max(2 * (ranks - 1), 1e-9))
    cut = spread(total=gradients, count=5)
    made = even(ranks=ranks, hosts=ranks, steps=STEPS, wire=wire, buckets=cut, seed=ranks)
    return dataclasses.replace(made, wire_factor=np.ones_like(made.wire_factor))


def recorded(folder: Path, *trainings: Training, backend: str = "gloo") -> list[AlignedRun]:
    return [
        AlignedRun(read_run(write(simulate(one), folder / str(one.ranks), Recording(backend=backend))))
        for one in trainings
    ]


@pytest.mark.parametrize("hop_s", [20e-6, 200e-6])
def test_a_latency_that_no_run_shows_is_within_the_interval(tmp_path: Path, hop_s: float) -> None:
    runs = recorded(tmp_path, trained(1, hop_s), trained(2, hop_s))
    latency = calibrate([measure(run) for run in runs]).parameters.by_name["network latency"]
    low, high = np.quantile(latency.draws, [0.05, 0.95])
    assert low < hop_s < high
    assert latency.state == "weakly identified"
    size = forecast_runs(runs, (), Request(ranks=(16,))).predictions[0]
    assert size.step_s.includes(simulate(trained(16, hop_s)).seconds(5) / (STEPS - 5))


def test_a_second_number_of_ranks_narrows_the_latency(tmp_path: Path) -> None:
    runs = [measure(run) for run in recorded(tmp_path, *(trained(ranks) for ranks in (2, 4)))]
    two, both = (calibrate(some).parameters["network latency"] for some in (runs[:1], runs))
    assert np.median(both) == pytest.approx(200e-6, rel=0.5)
    assert np.subtract(*np.quantile(both, [0.95, 0.05])) < np.subtract(*np.quantile(two, [0.95, 0.05]))


def test_runs_of_several_models_or_back_ends_are_refused(tmp_path: Path) -> None:
    two = recorded(tmp_path, trained(2))
    models = [*two, *recorded(tmp_path, trained(4, gradients=16 << 20))]
    assert "several models" in (forecast_runs(models, (), Request(ranks=(8,))).refused or "")
    backends = [*two, *recorded(tmp_path, trained(4), backend="nccl")]
    assert "gloo and nccl" in (forecast_runs(backends, (), Request(ranks=(8,))).refused or "")
    answer = AllreduceAnswer(schema=tag("allreduce"), ranks=2, backend="nccl", device="cuda", results=[])
    probe = Probe(run="probe", answer=answer, hosts=2)
    assert "probe probed nccl" in (forecast_runs(two, [probe], Request(ranks=(8,))).refused or "")


def test_runs_that_no_model_explains_are_refused(tmp_path: Path) -> None:
    slow = dataclasses.replace(trained(4), wire=Wire(latency_s=0.0, bytes_per_s=BYTES_PER_S / 10))
    refused = forecast_runs(recorded(tmp_path, trained(2), slow), (), Request(ranks=(8,))).refused
    assert refused is not None
    assert "contradict" in refused


def test_a_group_without_a_named_back_end_reduces_by_that_of_its_device(tmp_path: Path) -> None:
    for named in ("undefined", "cpu:gloo,cuda:nccl"):
        run = measure(recorded(tmp_path, trained(2), backend=named)[0])
        assert run.backend == "gloo", named


def test_a_batch_that_was_not_measured_asks_for_a_run_of_it(tmp_path: Path) -> None:
    result = forecast_runs(recorded(tmp_path, trained(2)), (), Request(ranks=(8,), batch=64))
    assert result.refused is not None
    assert result.next_measurement is not None
    assert "batch" in result.next_measurement.command


def test_two_levels_within_hosts_that_were_not_measured_are_a_bracket(tmp_path: Path) -> None:
    runs = recorded(tmp_path, trained(1), trained(2))
    flat, two_level = (
        forecast_runs(runs, (), Request(ranks=(8,), hosts=(2,), what_if=(f"algorithm={name}",))).waterfall[0].step_s
        for name in ("ring", "hierarchical")
    )
    assert two_level.low < flat.value < two_level.high


def test_free_memory_is_that_of_a_host_less_its_ranks(tmp_path: Path) -> None:
    usage = Recording(backend="gloo", usage=lambda rank, at: {"processes": 1, "memory_bytes": (rank + 1) << 30})
    run = AlignedRun(read_run(write(simulate(trained(2)), tmp_path, usage)))
    assert free_bytes([run]) == (1 << 38) - (2 << 30)  # one rank per host; the oracle's hosts have 256 GiB
