"""What a run used over its time: seconds per step, CPUs, memory, network, reading, and accelerators.

Of steps the records of ranks tell, of all else the sidecars' samples. Nothing here decides anything: it is for charts.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import polars as pl

from allpull.analyse.aligned import AlignedRun
from allpull.analyse.clock.host_clocks import Alignment, Times
from allpull.analyse.io.over_time import Floats, io_series
from allpull.analyse.statistics import evenly
from allpull.schema.results import UsageSeries
from allpull.units import NS_PER_S

MOST_POINTS = 300  # of one series; half the pixels of its chart


def usage(run: AlignedRun) -> list[UsageSeries]:
    """Every quantity that was recorded, the time from the first step; [] where there was no step, or no common clock.

    Rates and memory are sums over ranks or devices, the busy share of accelerators is their mean.
    """
    if run.steps.is_empty() or not run.clock.compares:
        return []
    begin_ns, data, alignment = int(run.steps["begin_ns"].min()), run.data, run.clock.alignment  # type: ignore[arg-type]  # not empty
    series = [
        *_steps(run.steps, begin_ns),
        *_rate(data.counters, alignment, begin_ns, "rank", "cpu_ns"),
        *_level(data.counters, alignment, begin_ns, "memory_bytes"),
        *_rate(data.counters, alignment, begin_ns, "rank", "read_bytes"),
        *_rate(data.counters, alignment, begin_ns, "rank", "storage_read_bytes"),
        *_rate(data.counters, alignment, begin_ns, "rank", "read_calls"),
        *_rate(data.nics, alignment, begin_ns, "nic", "sent_bytes"),
        *_level(data.gpus, alignment, begin_ns, "busy_share"),
        *_level(data.gpus, alignment, begin_ns, "memory_used_bytes"),
    ]
    return [one for one in series if len(one.times_s) > 1]


def _steps(records: pl.DataFrame, begin_ns: int) -> Iterator[UsageSeries]:
    """The wall time of steps, the mean over ranks: where there are many, median and slowest of neighbouring ones."""
    wall = (pl.col("end_ns") - pl.col("begin_ns")).mean() / NS_PER_S
    steps = records.group_by("step").agg(wall.alias("wall_s"), pl.col("end_ns").max()).sort("end_ns")
    ends_s, walls_s = (steps["end_ns"].to_numpy() - begin_ns) / NS_PER_S, steps["wall_s"].to_numpy()
    groups = np.array_split(np.arange(walls_s.size), min(walls_s.size, MOST_POINTS))
    moments = [float(ends_s[group[-1]]) for group in groups]
    yield _series("step", "s", moments, [float(np.median(walls_s[group])) for group in groups])
    if walls_s.size > MOST_POINTS:
        yield _series("slowest step", "s", moments, [float(walls_s[group].max()) for group in groups])


RATES = {
    "cpu_ns": ("cpus", "CPUs", NS_PER_S),
    "read_bytes": ("read", "bytes/s", 1),
    "storage_read_bytes": ("storage read", "bytes/s", 1),
    "read_calls": ("reads", "reads/s", 1),
    "sent_bytes": ("network sent", "bytes/s", 1),
}
"""Cumulative counter → name and unit of its rate, and what that is divided by."""
LEVELS = {
    "memory_bytes": ("memory", "bytes"),
    "busy_share": ("gpu busy", "share"),
    "memory_used_bytes": ("gpu memory", "bytes"),
}
"""Sampled level → its name and unit."""


def _rate(
    samples: pl.DataFrame, alignment: Alignment | None, begin_ns: int, key: str, counter: str
) -> Iterator[UsageSeries]:
    name, unit, divisor = RATES[counter]
    rates = io_series(samples, alignment, counted=[counter], key=key)
    values = rates.per_s[counter] / divisor
    if np.isnan(values).all():
        return
    groups = np.array_split(np.arange(values.size), min(values.size, MOST_POINTS))
    moments = [float((rates.end_ns[group[-1]] - begin_ns) / NS_PER_S) for group in groups]
    yield _series(name, unit, moments, [float(values[group].mean()) for group in groups])


def _level(samples: pl.DataFrame, alignment: Alignment | None, begin_ns: int, column: str) -> Iterator[UsageSeries]:
    """The sum over ranks and hosts, or the mean where it is a share, at the samples of the host that has most."""
    name, unit = LEVELS[column]
    of_hosts: list[tuple[Times, Floats]] = []
    together = pl.col(column).mean() if unit == "share" else pl.col(column).sum()
    for (host,), of_host in samples.drop_nulls(column).group_by("host", maintain_order=True):
        if alignment is not None and host not in alignment:
            continue
        levels = of_host.group_by("t_ns").agg(together).sort("t_ns")
        times = levels["t_ns"].to_numpy()
        times = times if alignment is None else alignment.aligned_ns(str(host), times)
        of_hosts.append((times, levels[column].cast(pl.Float64).to_numpy()))
    if not of_hosts:
        return
    longest = max((times for times, _ in of_hosts), key=len)
    kept = longest[evenly(range(longest.size), MOST_POINTS)]
    table = np.array(
        [np.interp((kept - begin_ns).astype(float), (times - begin_ns).astype(float), of) for times, of in of_hosts]
    )
    values = table.mean(axis=0) if unit == "share" else table.sum(axis=0)
    yield _series(name, unit, ((kept - begin_ns) / NS_PER_S).tolist(), values.tolist())


def _series(name: str, unit: str, times_s: Sequence[float], values: Sequence[float]) -> UsageSeries:
    known = [None if np.isnan(value) else float(f"{value:.5g}") for value in values]
    return UsageSeries.model_validate(
        {"name": name, "unit": unit, "times_s": [round(time_s, 4) for time_s in times_s], "values": known}
    )
