"""What limits the input of a host, from probes of the loader and of the storage."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace

import numpy as np
import polars as pl

from allpull.analyse.aligned import AlignedRun
from allpull.predict.calibration.calibrated import Calibration
from allpull.predict.calibration.parameters import Floats, Parameter, Parameters
from allpull.predict.terms import input as terms
from allpull.predict.terms.input import Input, Limit
from allpull.rundir.read.run import RunData
from allpull.schema.probed import LoaderPoint, LoaderResult, Spread, StorageResult

FROM_MEMORY = ("cached", "memory")
"""States of the files in which storage is no limit."""
SIDES = 3.29  # standard deviations between the 5 % and the 95 % quantile of a Normal distribution
LEAST_CACHE = 0.5  # of the memory that ranks leave free: other jobs and limits of a container take up to as much
FORM = 0.5  # of the draws: samples are dealt anew in each epoch, or shards stay with their host

SEED = 18
MORE_HOSTS = "allpull probe storage DIR on more hosts at once"
MORE_THREADS = "allpull probe loader with more --threads"


def with_input(
    calibration: Calibration,
    loader: LoaderResult | None,
    storage: StorageResult | None,
    *,
    is_own_loader: bool,
    free_bytes: float | None = None,
) -> Calibration:
    """``calibration`` with the limits that probes show; ``is_own_loader``: the training loads as the loader probe does.

    Another program decodes in its own way: then storage alone is taken from the probes. ``free_bytes``: of a host's
    memory, None: not known, and nothing counts as cached.
    """
    rng = np.random.default_rng(SEED)
    limits = from_probes(loader, storage, calibration.algorithm.size, rng)
    if limits is None or loader is None:
        return calibration
    if not is_own_loader:
        limits = replace(limits, worker=None, cores=None)
    samples = calibration.job.samples_per_epoch
    if samples is not None:
        limits = replace(limits, dataset_bytes=samples * limits.bytes_per_sample)
    if free_bytes is not None:
        draws = limits.sharpness.size
        cache_bytes = free_bytes * rng.uniform(LEAST_CACHE, 1, draws)
        limits = replace(limits, cache_bytes=cache_bytes, is_dealt=rng.random(draws) < FORM)
    source = ", ".join(one.run for one in (loader, storage) if one is not None)
    named = {one.name: one for one in _parameters(limits, source)}
    parameters = Parameters(by_name={**calibration.parameters.by_name, **named})
    return replace(calibration, input=limits, parameters=parameters)


def free_bytes(runs: Iterable[AlignedRun]) -> float | None:
    """The least memory of a host that the resident sets of its ranks leave free; None: not recorded."""
    free = [each for run in runs for each in _free_bytes(run.data)]
    return max(min(free), 0.0) if free else None


def _free_bytes(run: RunData) -> Iterator[float]:
    largest = run.counters.group_by("host", "rank").agg(pl.col("memory_bytes").max())
    resident = dict(largest.group_by("host").agg(pl.col("memory_bytes").sum()).iter_rows())
    for host in run.hosts:
        if host.memory_bytes is not None:
            yield float(host.memory_bytes - (resident.get(host.host) or 0))


def _parameters(limits: Input, source: str) -> Iterator[Parameter]:
    known = (
        ("rate of a loader thread", "samples/s", limits.worker, None),
        ("rate of a host's cores", "samples/s", limits.cores, MORE_THREADS),
        ("rate of shared storage", "byte/s", limits.shared, MORE_HOSTS),
        ("rate of storage on one host", "byte/s", limits.disk, None),
    )
    for name, unit, limit, measure in known:
        if limit is not None:
            yield Parameter(
                name=name,
                unit=unit,
                draws=limit.rate,
                state="weakly identified" if limit.is_bound else "measured",
                reason="never reached: what was measured is a demand, and a lower bound" if limit.is_bound else None,
                source=source,
                measure=measure if limit.is_bound else None,
            )
    if isinstance(limits.cache_bytes, np.ndarray) and (limits.shared is not None or limits.disk is not None):
        yield Parameter(
            name="page cache of a host",
            unit="byte",
            draws=limits.cache_bytes,
            state="assumed",
            reason="how much of the free memory caches files, and whether hosts keep their shards, was not recorded",
            source="memory of the hosts that their ranks leave free",
        )


def from_probes(
    loader: LoaderResult | None, storage: StorageResult | None, draws: int, rng: np.random.Generator
) -> Input | None:
    """The limits that probes show; None without a loader probe, which alone knows the size of a sample.

    Storage is measured by its own probe, or else by cold files of the loader probe where these are slower than cached.
    """
    if loader is None:
        return None
    worker, cores, sharpness = _workers(loader, draws, rng)
    shared, disk = _storage(storage, draws, rng) if storage is not None else _cold(loader, draws, rng)
    return Input(
        sharpness=sharpness,
        bytes_per_sample=loader.bytes_per_sample,
        worker=worker,
        cores=cores,
        shared=shared,
        disk=disk,
        dataset_bytes=loader.records * loader.bytes_per_sample,
    )


def _workers(loader: LoaderResult, draws: int, rng: np.random.Generator) -> tuple[Limit | None, Limit | None, Floats]:
    """Of one worker and of all cores of a host, from the points of one host that did not read from storage."""
    best: dict[int, LoaderPoint] = {}
    for point in loader.points:
        workers = point.ranks * point.threads
        usual = best.get(workers)
        if point.hosts == 1 and point.state in FROM_MEMORY:
            is_better = usual is None or point.samples_per_s.median > usual.samples_per_s.median
            best[workers] = point if is_better or usual is None else usual
    if not best:
        return None, None, terms.drawn_sharpness(draws, rng)
    workers_of = np.array(sorted(best), dtype=np.float64)
    rates = np.column_stack([_drawn(best[int(one)].samples_per_s, draws, rng) for one in workers_of])
    return terms.fitted_workers(workers_of, rates, rng)


def _storage(storage: StorageResult, draws: int, rng: np.random.Generator) -> tuple[Limit | None, Limit | None]:
    """Of the storage that all hosts share, and of one host, from sequential reads; None: the page cache served them."""
    if storage.way == "cached":
        return None, None
    reads = [(one.hosts, one.bytes_per_s) for one in storage.points if one.op == "read" and one.bytes_per_s is not None]
    return _of_hosts(reads, draws, rng)


def _cold(loader: LoaderResult, draws: int, rng: np.random.Generator) -> tuple[Limit | None, Limit | None]:
    """As ``_storage``, from cold files: where decoding is the limit, storage is at least that fast."""
    cold = [one for one in loader.points if one.state == "cold"]
    cached = {(one.ranks, one.threads): one.samples_per_s.median for one in loader.points if one.state in FROM_MEMORY}
    if not any(one.hosts == 1 for one in cold):
        return None, None
    slower = [
        one for one in cold if one.samples_per_s.median < terms.SATURATED * cached.get((one.ranks, one.threads), 0)
    ]
    if not slower:
        most = max(one.read_bytes_per_s for one in cold)
        return terms.at_least(most, draws, rng), None
    rates = [(one.hosts, one.samples_per_s) for one in slower]
    if not any(hosts == 1 for hosts, _ in rates):
        return None, None
    shared, disk = _of_hosts(rates, draws, rng)
    size = loader.bytes_per_sample
    return None if shared is None else shared.times(size), None if disk is None else disk.times(size)


def _of_hosts(
    rates: Iterable[tuple[int, Spread]], draws: int, rng: np.random.Generator
) -> tuple[Limit | None, Limit | None]:
    """The limit that all hosts share and that of one, by the highest rate of each number of hosts."""
    best: dict[int, Spread] = {}
    for hosts, rate in rates:
        if hosts not in best or rate.median > best[hosts].median:
            best[hosts] = rate
    if 1 not in best:
        return None, None
    drawn: Mapping[int, Floats] = {hosts: _drawn(rate, draws, rng) for hosts, rate in best.items()}
    alone, shared = terms.of_hosts(dict(drawn), rng)
    return shared, alone


def _drawn(rate: Spread, draws: int, rng: np.random.Generator) -> Floats:
    """The median of repetitions with its standard error, (draws,)."""
    deviation = math.log(rate.high / rate.low) / SIDES if rate.low > 0 else 0.0
    drawn: Floats = rate.median * np.exp(rng.normal(0, deviation / rate.count**0.5, draws))
    return drawn
