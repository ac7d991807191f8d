"""Rates of reading and writing over the time of a run, and the energy of its epochs.

Counters are cumulative, so a rate is the growth between two samples ÷ the time between them, and rates times their
times add up to all bytes read. The HAL study plots GB/s and reads per second (IOPS) over time.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from allpull.analyse.clock.host_clocks import Alignment, Times
from allpull.rundir.read.events import EventLog
from allpull.units import NS_PER_S

Floats = NDArray[np.float64]
Curves = dict[str, list[tuple[Times, dict[str, Floats]]]]
"""By host, for ranks (or other keys) that were sampled together: the times of their samples, and each counter at them,
shape (ranks, samples), NaN for not counted.
"""

MAX_INTERVALS = 2000  # more than a page can show; longer series have longer intervals
COUNTED = ("read_bytes", "read_calls", "write_bytes", "write_calls", "storage_read_bytes", "storage_write_bytes")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class IoSeries:
    """Rates summed over all ranks, over time.

    ``begin_ns`` and ``end_ns``, int64 of shape (intervals,), are times on the clock to which samples were aligned.
    ``per_s`` maps each counter to growth per second, shape (intervals,), NaN where no rank was measured;
    ``ranks`` is their number; where it falls, the rates are those of fewer ranks. ``left_out`` are hosts whose clock
    is unknown.
    """

    begin_ns: Times
    end_ns: Times
    per_s: Mapping[str, Floats]
    ranks: Times
    left_out: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class EpochEnergy:
    """Energy of the accelerators of all hosts during one epoch; None where it was not measured throughout."""

    epoch: int
    energy_j: float | None
    gpus: int


def io_series(
    counters: pl.DataFrame, alignment: Alignment | None = None, *, counted: Sequence[str] = COUNTED, key: str = "rank"
) -> IoSeries:
    """Rates between the samples of the host that has most of them; other hosts' counters are interpolated there.

    Args:
        counters: columns of ``rundir.read.counters.COUNTERS_SCHEMA``, each host's times on its own monotonic clock.
        alignment: aligns them to one clock; None: they share one already.
        counted: the counters, cumulative ones. The first decides where a rank was measured.
        key: the column of whose counters they are, such as ``nic`` where ``counters`` are of interfaces.
    """
    curves, left_out = curves_of(counters, alignment, counted, key)
    of_hosts = [np.unique(np.concatenate([times for times, _ in ranks])) for ranks in curves.values()]
    edges = _at_most(max(of_hosts, key=len, default=np.zeros(1, dtype=np.int64)), MAX_INTERVALS)
    growth = {
        name: np.concatenate([np.empty((0, edges.size - 1)), *(rows for rows in _growths(edges, curves, name))])
        for name in counted
    }
    return IoSeries(
        begin_ns=edges[:-1],
        end_ns=edges[1:],
        per_s={name: _sum(table) / (np.diff(edges) / NS_PER_S) for name, table in growth.items()},
        ranks=(~np.isnan(growth[counted[0]])).sum(axis=0),
        left_out=left_out,
    )


def growth_within(curves: Curves, intervals: tuple[Times, Times], counted: Sequence[str]) -> dict[str, float | None]:
    """By how much each counter grew within disjoint ``intervals`` (begins and ends, on the shared clock), over ranks.

    None where a rank was not measured throughout.
    """
    edges = np.unique(np.concatenate(intervals))
    is_inside = np.isin(edges[:-1], intervals[0])
    totals = {
        name: sum(float(row.sum()) for rows in _growths(edges, curves, name) for row in rows[:, is_inside])
        for name in counted
    }
    return {name: None if np.isnan(total) else total for name, total in totals.items()}


def sampled_by_all(curves: Curves, ranks: int, counter: str) -> tuple[int, int] | None:
    """The time in which ``counter`` of every rank was sampled, on the shared clock; None where one never was."""
    known = [times[~np.isnan(values)] for of_host in curves.values() for times, of in of_host for values in of[counter]]
    times = [one for one in known if one.size]
    if len(times) < ranks:
        return None
    first_ns, last_ns = max(int(one[0]) for one in times), min(int(one[-1]) for one in times)
    return (first_ns, last_ns) if first_ns < last_ns else None


def curves_of(
    counters: pl.DataFrame, alignment: Alignment | None, counted: Sequence[str], key: str = "rank"
) -> tuple[Curves, tuple[str, ...]]:
    """The samples of each ``key`` by host, aligned; and the hosts whose clock is unknown.

    All are in the order of their first sample.
    """
    ordered = counters.sort("t_ns", maintain_order=True)
    times = ordered["t_ns"].to_numpy().copy()
    left_out = []
    if alignment is not None:
        for host, places in _places_by(ordered, "host"):
            if host in alignment:
                times[places] = alignment.aligned_ns(host, times[places])
            else:
                left_out.append(host)
    figures = {name: ordered[name].cast(pl.Float64).to_numpy() for name in counted}
    together: dict[str, list[list[Times]]] = {}
    for host, _, places in _places_by(ordered, "host", key):
        if host not in left_out:
            groups = together.setdefault(host, [])
            if groups and np.array_equal(times[groups[-1][0]], times[places]):
                groups[-1].append(places)
            else:
                groups.append([places])
    curves = {
        host: [
            (times[rows[0]], {name: values[rows] for name, values in figures.items()}) for rows in map(np.stack, groups)
        ]
        for host, groups in together.items()
    }
    return curves, tuple(left_out)


def _places_by(frame: pl.DataFrame, *keys: str) -> Iterator[tuple[Any, ...]]:
    """The values of ``keys`` of each group, in the order of its first row, and the places of its rows."""
    groups = frame.lazy().with_row_index("place").group_by(keys, maintain_order=True).agg("place").collect()
    places = groups["place"].explode().to_numpy()
    ends = np.cumsum(groups["place"].list.len().to_numpy())
    for values, begin, end in zip(groups.select(keys).iter_rows(), [0, *ends[:-1]], ends, strict=False):
        yield *values, places[begin:end]


def epoch_spans(events: Mapping[int, EventLog]) -> pl.DataFrame:
    """When each epoch began and ended on each host: columns host, epoch, begin_ns, end_ns, times of the host's clock.

    From the first of its ranks to begin it until the last one begins the next, or ends. An epoch without a recorded end
    is left out.
    """
    rows: list[tuple[str, int, int, int]] = []
    for log in events.values():
        rows += [(log.header.host, mark.epoch, mark.t_ns, later.t_ns) for mark, later in pairwise(log.epochs)]
        if log.epochs and log.end is not None:
            rows.append((log.header.host, log.epochs[-1].epoch, log.epochs[-1].t_ns, log.end.t_ns))
    schema = {"host": pl.String(), "epoch": pl.Int64(), "begin_ns": pl.Int64(), "end_ns": pl.Int64()}
    spans = pl.DataFrame(rows, schema=schema, orient="row")
    return spans.group_by("host", "epoch").agg(pl.col("begin_ns").min(), pl.col("end_ns").max()).sort("host", "epoch")


def energy_of_epochs(gpus: pl.DataFrame, epochs: pl.DataFrame) -> list[EpochEnergy]:
    """The energy of each epoch, in order, of all accelerators that the hosts recorded.

    From each device's own energy counter, else from its power, interpolated linearly between samples.

    Args:
        gpus: columns of ``rundir.read.counters.GPUS_SCHEMA``.
        epochs: as ``epoch_spans`` gives them.
    """
    used_of_epoch: dict[int, list[float]] = {}
    devices = gpus.partition_by("host", as_dict=True, maintain_order=True)
    for key, spans in epochs.sort("epoch").group_by("host", maintain_order=True):
        if key not in devices:
            continue
        for (_,), samples in devices[key].sort("t_ns").group_by("gpu", maintain_order=True):
            times, used_j = _energy_curve(samples)
            for epoch, begin_ns, end_ns in spans.select("epoch", "begin_ns", "end_ns").rows():
                edges = np.array([begin_ns, end_ns], dtype=np.int64)
                used_of_epoch.setdefault(epoch, []).append(float(_growth(edges, times, used_j[None])[0, 0]))
    return [
        EpochEnergy(epoch=epoch, energy_j=None if np.isnan(parts).any() else sum(parts), gpus=len(parts))
        for epoch, parts in sorted(used_of_epoch.items())
    ]


def _energy_curve(samples: pl.DataFrame) -> tuple[Times, Floats]:
    """The energy of one device up to each of its samples, in J from an arbitrary origin."""
    times = samples["t_ns"].to_numpy()
    counted = samples["energy_j"].to_numpy()
    if not np.isnan(counted).all():
        return times, counted
    power_w = samples["power_w"].to_numpy()
    energy_j = (power_w[1:] + power_w[:-1]) / 2 * np.diff(times) / NS_PER_S
    return times, np.concatenate([[0.0], np.cumsum(energy_j)]) if times.size else energy_j


def _growths(edges_ns: Times, curves: Curves, counter: str) -> Iterator[Floats]:
    """``_growth`` of a counter, for the ranks of each host in turn."""
    return (_growth(edges_ns, times, of[counter]) for ranks in curves.values() for times, of in ranks)


def _growth(edges_ns: Times, times_ns: Times, values: Floats) -> Floats:
    """By how much a counter of several ranks grew between every two edges; NaN where they reach beyond its samples.

    ``values`` (ranks, samples); a counter that falls was reset; this counts as no growth.
    """
    known = ~np.isnan(values)
    start = times_ns[0]  # floats hold times since the start to the nanosecond
    at, since = (edges_ns - start).astype(np.float64), (times_ns - start).astype(np.float64)
    if known.all():
        amounts = _interpolated(at, since, values)
    else:
        amounts = np.array(
            [_interpolated(at, since[own], row[None, own])[0] for own, row in zip(known, values, strict=True)]
        )
    growth: Floats = np.maximum(np.diff(amounts, axis=1), 0)
    return growth


def _interpolated(at: Floats, known_at: Floats, values: Floats) -> Floats:
    """Each row of ``values`` (rows, moments) at other moments, as ``np.interp`` has it for one; NaN outside."""
    if not known_at.size:
        return np.full((values.shape[0], at.size), np.nan)
    if known_at.size == 1:
        return np.where(at == known_at, values, np.nan)
    place = np.searchsorted(known_at, at, side="right") - 1
    left = np.clip(place, 0, known_at.size - 2)
    apart = known_at[left + 1] - known_at[left]
    with np.errstate(divide="ignore", invalid="ignore"):  # of two samples at one moment the later one counts
        slope = (values[:, left + 1] - values[:, left]) / apart
        between = slope * (at - known_at[left]) + values[:, left]
    exact = np.where(known_at[np.maximum(place, 0)] == at, values[:, np.maximum(place, 0)], between)
    inside: Floats = np.where((at >= known_at[0]) & (at <= known_at[-1]), exact, np.nan)
    return inside


def _sum(table: Floats) -> Floats:
    """The sum over rows of what is known, NaN where nothing is."""
    total: Floats = np.where(np.isnan(table).all(axis=0), np.nan, np.nansum(table, axis=0))
    return total


def _at_most(edges_ns: Times, intervals: int) -> Times:
    """Edges thinned evenly, so that at most ``intervals`` intervals remain; the ends are kept."""
    if edges_ns.size <= intervals + 1:
        return edges_ns
    return edges_ns[np.unique(np.linspace(0, edges_ns.size - 1, intervals + 1).round().astype(np.int64))]
