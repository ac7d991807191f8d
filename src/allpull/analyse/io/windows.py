"""Reading over the time of a run, and its means over named windows: bytes/s, reads/s, and both per sample.

A window begins and ends with samples of the counters: a second that begins before the first step has what the start of
the program reads, too. Within it counters are taken to grow evenly between two samples, and a step to train on its
samples evenly, so that pauses may cut it anywhere.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import polars as pl
from numpy.typing import NDArray

from allpull.analyse.aligned import AlignedRun
from allpull.analyse.clock.host_clocks import Times
from allpull.analyse.epochs.parts import Epochs
from allpull.analyse.io.over_time import Curves, Floats, curves_of, growth_within, io_series, sampled_by_all
from allpull.analyse.steps.grid import of_steps
from allpull.analyse.steps.pauses import union
from allpull.schema.reading import Io, IoOverTime, IoWindow
from allpull.units import NS_PER_S

COUNTED = ("read_bytes", "read_calls", "storage_read_bytes")
MOST_POINTS = 300  # of the series; half the pixels of its chart
BLOCK = 1 << 16  # moments that are looked up together: small enough for the caches of a CPU
LEAST_SHARE = 0.5  # of a window that must have been sampled for a mean over it

Intervals = tuple[Times, Times]


def with_windows(io: Io, run: AlignedRun, epochs: Epochs) -> Io:
    """``io`` with the means over named windows, and what was read per sample; as it is where clocks do not compare."""
    if run.data.counters.is_empty() or run.steps.is_empty() or not run.clock.compares:
        return io
    curves, _ = curves_of(run.data.counters, run.clock.alignment, COUNTED)
    sampled = sampled_by_all(curves, run.data.record.ranks, COUNTED[0])
    if sampled is None:
        return io
    windows = []
    for name, intervals in _named(run, epochs):
        inside = _clipped(intervals, _at_samples(curves, _clipped(intervals, sampled)))
        length_ns = int((inside[1] - inside[0]).sum())
        if length_ns < LEAST_SHARE * int((intervals[1] - intervals[0]).sum()) or not length_ns:
            continue
        growth = growth_within(curves, inside, COUNTED)
        windows.append(_window(name, length_ns, growth, _samples(run.steps, inside)))
    best = next((one for one in reversed(windows) if one.name != "steady steps" and one.samples), None)
    return io.model_copy(
        update={
            "windows": windows,
            "read_bytes_per_sample": _per_sample(best, "read_bytes"),
            "reads_per_sample": _per_sample(best, "reads"),
        }
    )


def over_time(run: AlignedRun) -> IoOverTime | None:
    """Reading over time from the first step; None where nothing was counted, or clocks do not compare."""
    if run.data.counters.is_empty() or run.steps.is_empty() or not run.clock.compares:
        return None
    begin_ns = int(run.steps["begin_ns"].min())  # type: ignore[arg-type]  # not empty
    series = io_series(run.data.counters, run.clock.alignment, counted=COUNTED)
    places = np.flatnonzero(series.end_ns > begin_ns)
    groups = np.array_split(places, max(1, min(places.size, MOST_POINTS)))
    groups = [group for group in groups if group.size]
    if not groups or np.isnan(series.per_s[COUNTED[0]]).all():
        return None
    lengths = (series.end_ns - series.begin_ns).astype(np.float64)
    rates = {
        name: [_known(np.average(series.per_s[name][group], weights=lengths[group])) for group in groups]
        for name in COUNTED
    }
    return IoOverTime(
        begin_s=[round(max(0, int(series.begin_ns[group[0]]) - begin_ns) / NS_PER_S, 4) for group in groups],
        end_s=[round((int(series.end_ns[group[-1]]) - begin_ns) / NS_PER_S, 4) for group in groups],
        read_bytes_per_s=rates["read_bytes"],
        reads_per_s=rates["read_calls"],
        storage_read_bytes_per_s=rates["storage_read_bytes"],
        ranks=[int(series.ranks[group].min()) for group in groups],
    )


def _named(run: AlignedRun, epochs: Epochs) -> Iterator[tuple[str, Intervals]]:
    """The windows of a run by name, each as disjoint intervals on the shared clock."""
    begin_ns, end_ns = (run.steps[name] for name in ("begin_ns", "end_ns"))
    yield "all steps", _one(int(begin_ns.min()), int(end_ns.max()))  # type: ignore[arg-type]  # not empty
    steady = run.steady.steps[run.steady.used]
    inside = of_steps(run.steps.select("step", "begin_ns", "end_ns"), steady)
    if not inside.is_empty():
        yield "steady steps", _one(int(inside["begin_ns"].min()), int(inside["end_ns"].max()))  # type: ignore[arg-type]  # not empty
    if epochs.averaged:
        whole = [(epoch.begin_ns, epoch.last_step_ns) for epoch in epochs.averaged]
        yield "training", _without(_intervals(whole), epochs.pauses_ns)


def _one(begin_ns: int, end_ns: int) -> Intervals:
    return _intervals([(begin_ns, end_ns)])


def _intervals(pairs: Sequence[tuple[int, int]]) -> Intervals:
    begins, ends = np.array(pairs, dtype=np.int64).reshape(-1, 2).T
    return begins, ends


def _without(whole: Intervals, pauses: Intervals) -> Intervals:
    """The parts of the disjoint intervals ``whole`` that none of ``pauses`` covers."""
    cuts = np.unique(np.concatenate([*whole, *pauses]))
    begins, ends = cuts[:-1], cuts[1:]
    kept = _is_inside(begins, whole) & ~_is_inside(begins, pauses)
    rows = pl.DataFrame({"begin_ns": begins[kept], "end_ns": ends[kept]})
    return union(rows)


def _is_inside(moments: Times, intervals: Intervals) -> NDArray[np.bool_]:
    begins, ends = intervals
    place = np.searchsorted(begins, moments, side="right") - 1
    if not begins.size:
        return np.zeros(moments.size, dtype=np.bool_)
    inside: NDArray[np.bool_] = (place >= 0) & (moments < ends[np.maximum(place, 0)])
    return inside


def _clipped(intervals: Intervals, to: tuple[int, int]) -> Intervals:
    begins, ends = np.maximum(intervals[0], to[0]), np.minimum(intervals[1], to[1])
    kept = ends > begins
    return begins[kept], ends[kept]


def _at_samples(curves: Curves, intervals: Intervals) -> tuple[int, int]:
    """From the first to the last moment within ``intervals`` that have a sample of each rank's host, or (0, 0)."""
    if not intervals[0].size:
        return 0, 0
    begin_ns, end_ns = int(intervals[0][0]), int(intervals[1][-1])
    sampled = [times for of_host in curves.values() for times, _ in of_host]
    inside = [times[(times >= begin_ns) & (times <= end_ns)] for times in sampled]
    if not all(times.size for times in inside):
        return 0, 0
    return max(int(times[0]) for times in inside), min(int(times[-1]) for times in inside)


def _samples(steps: pl.DataFrame, intervals: Intervals) -> int | None:
    """Samples trained within ``intervals``, of all ranks; None where a step's are not known."""
    if steps["samples"].null_count():
        return None
    begins, ends = steps["begin_ns"].to_numpy(), steps["end_ns"].to_numpy()
    length = np.maximum(ends - begins, 1)
    return round(
        float((steps["samples"].to_numpy() * ((_until(ends, *intervals) - _until(begins, *intervals)) / length)).sum())
    )


def _until(moments: Times, begins: Times, ends: Times) -> Floats:
    """How much of the intervals has passed at each moment, in ns."""
    done = np.concatenate([[0], np.cumsum(ends - begins)])
    passed = np.empty(moments.size)
    for first in range(0, moments.size, BLOCK):
        of_block = moments[first : first + BLOCK]
        place = np.searchsorted(begins, of_block, side="right")
        last = np.maximum(place - 1, 0)
        inside = np.clip(of_block - begins[last], 0, ends[last] - begins[last])
        passed[first : first + BLOCK] = np.where(place == 0, 0, done[last] + inside)
    return passed


def _window(name: str, length_ns: int, growth: dict[str, float | None], samples: int | None) -> IoWindow:
    seconds = length_ns / NS_PER_S
    read, calls, stored = (growth[counter] for counter in COUNTED)
    return IoWindow.model_validate(
        {
            "name": name,
            "seconds": seconds,
            "read_bytes_per_s": None if read is None else read / seconds,
            "reads_per_s": None if calls is None else calls / seconds,
            "storage_read_bytes_per_s": None if stored is None else stored / seconds,
            "read_bytes": read,
            "reads": calls,
            "samples": samples,
        }
    )


def _per_sample(window: IoWindow | None, counter: str) -> float | None:
    amount = None if window is None else getattr(window, counter)
    return None if window is None or amount is None or not window.samples else amount / window.samples


def _known(value: float) -> float | None:
    return None if np.isnan(value) else float(f"{value:.5g}")
