"""Limits of input from probes: a sweep of threads, storage on one host and on several, and cold files."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from tests.predict.test_runs import run_of, trained

from allpull.errors import BadInput
from allpull.predict import forecast as forecasts
from allpull.predict.calibration.calibrated import Calibration
from allpull.predict.calibration.fit import calibrate
from allpull.predict.calibration.input import from_probes, with_input
from allpull.predict.runs import Request, forecast_runs
from allpull.predict.what_if import parsed, what_if
from allpull.schema.base import tag
from allpull.schema.probed import LoaderPoint, LoaderResult, Spread, StoragePoint, StorageResult
from allpull.schema.probes import LoaderState

DRAWS = 100
SAMPLE = 100_000.0


def spread(rate: float) -> Spread:
    return Spread(median=rate, low=rate * 0.99, high=rate * 1.01, count=5)


def loader_point(threads: int, rate: float, state: LoaderState = "cached") -> LoaderPoint:
    return LoaderPoint(
        ranks=1,
        hosts=1,
        threads=threads,
        state=state,
        resident=None,
        samples=1000,
        samples_per_s=spread(rate),
        samples_per_cpu_s=None,
        read_bytes_per_s=rate * SAMPLE,
    )


def loader(*points: LoaderPoint) -> LoaderResult:
    return LoaderResult(
        schema=tag("loader"),
        run="loader",
        data="pack",
        kind="jpeg",
        records=10_000,
        bytes_per_sample=SAMPLE,
        size=224,
        batch=32,
        resizer=None,
        ranks=1,
        hosts=1,
        cores=8,
        shuffle=None,
        odd=0,
        points=list(points),
        knees=[],
        left_out=[],
    )


def storage(rates: dict[int, float]) -> StorageResult:
    points = [
        StoragePoint(
            ranks=hosts,
            hosts=hosts,
            threads=1,
            op="read",
            size_bytes=1 << 20,
            ops=100,
            ops_per_s=spread(rate / (1 << 20)),
            bytes_per_s=spread(rate),
            per_host_ops_per_s=1.0,
            of_alone=None,
        )
        for hosts, rate in rates.items()
    ]
    return StorageResult(
        schema=tag("storage"),
        run="storage",
        path="data",
        file_system="nfs4",
        file_bytes=1 << 30,
        way="direct",
        why="",
        ceiling_ops_per_s=1e6,
        ranks=2,
        hosts=2,
        points=points,
    )


SWEEP = loader(*(loader_point(threads, min(170.0 * threads, 800.0)) for threads in (1, 2, 4, 8, 16)))


def calibrated(shared: dict[int, float], *, is_own_loader: bool = True) -> Calibration:
    base = calibrate([run_of(trained(2))], draws=DRAWS)
    base = replace(base, job=replace(base.job, workers=8))
    return with_input(base, SWEEP, storage(shared), is_own_loader=is_own_loader)


def step(calibration: Calibration, ranks: int) -> dict[str, float]:
    job = replace(calibration.job, ranks=ranks, hosts=ranks)
    return forecasts.terms_of(forecasts.forecast(job, calibration).terms)


def test_a_sweep_of_threads_gives_the_rate_of_one_and_of_all_cores() -> None:
    limits = from_probes(SWEEP, None, DRAWS, np.random.default_rng(0))
    assert limits is not None
    assert limits.worker is not None
    assert limits.cores is not None
    assert np.median(limits.worker.rate) == pytest.approx(170, rel=0.05)
    assert np.median(limits.cores.rate) == pytest.approx(800, rel=0.05)


def test_cold_files_as_fast_as_cached_ones_are_a_lower_bound_of_storage() -> None:
    both = loader(loader_point(4, 500.0), loader_point(4, 495.0, "cold"))
    limits = from_probes(both, None, DRAWS, np.random.default_rng(0))
    assert limits is not None
    assert limits.shared is not None
    assert limits.shared.is_bound
    slow = from_probes(
        loader(loader_point(4, 500.0), loader_point(4, 50.0, "cold")), None, DRAWS, np.random.default_rng(0)
    )
    assert slow is not None
    assert slow.disk is not None
    assert np.median(slow.disk.rate) == pytest.approx(50 * SAMPLE, rel=0.02)


def test_shared_storage_limits_many_hosts_and_not_two() -> None:
    reached = calibrated({1: 1e9, 2: 1e9})
    assert step(reached, 2)["input"] < 1e-3
    at_256 = step(reached, 256)
    assert sum(at_256.values()) == pytest.approx(256 * 32 * SAMPLE / 1e9, rel=0.05)
    other = calibrated({1: 1e9, 2: 1e9}, is_own_loader=False)
    assert other.input is not None
    assert other.input.worker is None
    assert step(other, 256)["input"] == pytest.approx(at_256["input"], rel=0.05)


def test_storage_that_was_never_reached_widens_the_answer_and_names_its_measurement() -> None:
    bound = calibrated({1: 1e8, 2: 2e8})
    one = forecasts.forecast(replace(bound.job, ranks=512, hosts=512), bound)
    worst_s = 512 * 32 * SAMPLE / 2e8
    low, high = np.quantile(one.step_s, [0.05, 0.95])
    assert low < 0.3 * worst_s < 0.85 * worst_s < high < 1.2 * worst_s
    measurement = forecasts.next_measurement([one], bound)
    assert measurement is not None
    assert measurement.parameter == "rate of shared storage"
    assert "more hosts" in measurement.command


def test_what_ifs_of_input() -> None:
    calibration = calibrated({1: 1e9, 2: 1e9})
    base = forecasts.forecast(replace(calibration.job, ranks=256, hosts=256), calibration)
    cached = what_if(parsed("cache=all"), base, calibration)
    assert cached.change_s["input"] == pytest.approx(-float(np.median(base.terms["input"])), rel=0.05)
    few = what_if(
        parsed("workers=1"), forecasts.forecast(replace(calibration.job, ranks=4, hosts=4), calibration), calibration
    )
    assert few.step_s.value == pytest.approx(32 / 170, rel=0.1)
    assert few.bottleneck == "input" or few.change_s["input"] > 0
    with pytest.raises(BadInput, match="probe loader"):
        what_if(parsed("decode=x2"), base, replace(calibration, input=None))


def test_storage_alone_does_not_know_the_bytes_of_a_sample() -> None:
    with pytest.raises(BadInput, match="how many bytes a sample has"):
        forecast_runs([], [], Request(ranks=(4,), storage=storage({1: 1e9})))


def test_memory_of_hosts_serves_what_fits_into_it() -> None:
    base = replace(calibrated({1: 1e9, 2: 1e9}), input=None)  # 1 GB of files, as the loader probe counts them
    waits_s = [
        step(with_input(base, SWEEP, storage({1: 1e9, 2: 1e9}), is_own_loader=True, free_bytes=free), 256)["input"]
        for free in (0.0, 1e8, 1e10)
    ]
    assert waits_s == sorted(waits_s, reverse=True)
    assert waits_s[0] > 10 * waits_s[-1]
    assert waits_s[0] == pytest.approx(step(calibrated({1: 1e9, 2: 1e9}), 256)["input"], rel=0.05)
