"""Phases on an accelerator, timed by its own clock, and the time in which it had no work.

The host issues work and runs ahead, so its times of forward and backward say little. Where steps were timed on the
device, its times replace the host's, and ``busy`` is how long its compute stream had work. Then

- forward, backward and optimizer count only while the device was busy: if they are longer, the device waited inside
  them for the host to issue the next kernel, and this time is subtracted from each in proportion;
- input and copies count only as far as the device waited for them;
- ``host`` is the rest of a step in which the device was empty: the host issued work, or did other work;
- ``other`` is work of the device outside the known phases.

Where the host issues work about as slowly as the device does it, ``busy`` is not known: then ``paced``, the time in
phases while the host was still issuing, is an upper bound on what the device waited, and phases keep their length.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import numpy as np
import polars as pl
from numpy.typing import NDArray

from allpull.analyse.steps.grid import Floats
from allpull.rundir.read import buckets, reductions
from allpull.rundir.read.collectives import SCHEMA
from allpull.rundir.read.events import EventLog
from allpull.rundir.read.reductions import FIELDS
from allpull.schema.events import DeviceStep
from allpull.units import NS_PER_S

SPANS = (
    "begin_ns",
    "end_ns",
    "input_ns",
    "copy_ns",
    "forward_ns",
    "backward_ns",
    "optimizer_ns",
    "evaluation_ns",
    "checkpoint_ns",
    "collective_ns",
    "arrival_ns",
    "done_ns",
)
"""Boundaries too: the device runs its steps later than the host, which may issue ten in the time of one."""
OF_DEVICE = ("busy_ns", "exchange_ns", "paced_ns")
FURTHER = (*OF_DEVICE, "issued_ns", "fetched_ns")
"""Columns of steps on a device: how long it had work, ran collectives alone, and was paced by its host, and how long
its host issued and was in ``input``.
"""
COMPUTE = ("forward", "backward", "optimizer")
AHEAD = ("input", "copy")
"""Phases that the host may run while the device still works; then they cost less than they take."""


def on_device(records: pl.DataFrame, events: Mapping[int, EventLog]) -> pl.DataFrame:
    """``records`` (columns of ``rundir.read.steps.SCHEMA``) with the device's times where it has them, and ``FURTHER``.

    Without any such times the records are unchanged.
    """
    rows = [
        (rank, one.step, *(getattr(one, name) for name in (*SPANS, *OF_DEVICE)))
        for rank, log in events.items()
        for one in log.device_steps
    ]
    if not rows:
        return records
    names = ("rank", "step", *SPANS, *OF_DEVICE)
    device = pl.DataFrame(rows, schema=dict.fromkeys(names, pl.Int64()), orient="row")
    latest = device.unique(["rank", "step"], keep="last").rename({name: f"device_{name}" for name in SPANS})
    joined = records.join(latest, on=["rank", "step"], how="left", maintain_order="left")
    issued = pl.sum_horizontal(f"{name}_ns" for name in COMPUTE).alias("issued_ns")
    fetched = pl.col("input_ns").alias("fetched_ns")
    replaced = (pl.coalesce(f"device_{name}", name).alias(name) for name in SPANS)
    return joined.with_columns(issued, fetched, *replaced).select(*records.columns, *FURTHER)


def calls_on_device(calls: pl.DataFrame, events: Mapping[int, EventLog]) -> pl.DataFrame:
    """``calls`` (columns of ``rundir.read.collectives.SCHEMA``) with the moments of streams instead of their hosts'.

    Those of which a stream's moments are not known are left out; where none is, all are unchanged.
    """
    rows = [
        (rank, one.step, *call)
        for rank, log in events.items()
        for one in log.device_steps
        for call in one.collectives or ()
    ]
    if not rows:
        return calls
    keys = ["rank", "step", "kind", "seq"]
    device = pl.DataFrame(rows, schema=SCHEMA, orient="row").unique(keys, keep="last")
    return calls.select(keys).join(device, on=keys, how="inner", maintain_order="left").select(calls.columns)


def ready_on_device(ready: pl.DataFrame, events: Mapping[int, EventLog]) -> pl.DataFrame:
    """``ready`` (columns ``rundir.read.buckets.SCHEMA``) with the device's times where it has them."""
    rows = [(rank, one.step, one.ready_ns) for rank, log in events.items() for one in _latest(log) if one.ready_ns]
    if not rows:
        return ready
    device = pl.DataFrame(rows, schema=buckets.SCHEMA, orient="row")
    others = ready.join(device, on=["rank", "step"], how="anti")
    return pl.concat([others, device]).sort("rank", "step")


def reductions_on_device(events: Mapping[int, EventLog]) -> pl.DataFrame:
    """Reductions that steps on a device list, columns ``rundir.read.reductions.SCHEMA``."""
    rows = [
        (rank, one.step, place, *numbers[: len(FIELDS)], numbers[-1], numbers[len(FIELDS) :])
        for rank, log in events.items()
        for one in _latest(log)
        for place, numbers in enumerate(one.reductions or ())
    ]
    return pl.DataFrame(rows, schema=reductions.SCHEMA, orient="row").sort("rank", "step", "reduction")


def _latest(log: EventLog) -> Iterable[DeviceStep]:
    """The device's steps of a rank, the last record of each: one that was repeated has two."""
    return {one.step: one for one in log.device_steps}.values()


def device_bounds_s(events: Mapping[int, EventLog], steps: NDArray[np.int64]) -> list[float]:
    """How wrong the moments of each rank's device may be on its host's clock in ``steps``, s; empty: no device."""
    numbers = set(steps.tolist())
    bounds_ns = [
        [one.bound_ns or 0 for one in log.device_steps if one.step in numbers or not numbers] for log in events.values()
    ]
    return [max(of_rank) / NS_PER_S for of_rank in bounds_ns if of_rank]


def with_host(
    seconds: Mapping[str, Floats | None], *, reducing_s: Floats, called_s: Floats, busy_s: Floats, wall_s: Floats
) -> dict[str, Floats | None]:
    """Phases with ``host`` among them, where ``busy_s`` is known; all arrays have shape (steps, ranks).

    ``seconds`` holds all phases but ``host`` and ``other``. ``reducing_s`` is the time blocked in backward, and
    ``called_s`` that in other collectives: both are in ``wait`` and ``transfer``, or in no phase if these are unknown.
    """
    times_s = dict(seconds)
    known = ~np.isnan(busy_s)
    if not known.any():
        return times_s
    busy = np.nan_to_num(busy_s)
    compute = _sum(times_s, COMPUTE, wall_s)
    empty_inside = np.where(known, np.clip(compute + reducing_s - busy, 0, compute), 0)
    _shrink(times_s, COMPUTE, empty_inside)
    beyond = np.maximum(busy - compute - reducing_s, 0)
    host_phases = [name for name in times_s if name not in (*COMPUTE, "wait", "transfer")]
    empty = wall_s - compute - reducing_s - called_s - beyond - _sum(times_s, host_phases, wall_s)
    _shrink(times_s, AHEAD, np.where(known, np.maximum(-empty, 0), 0))
    times_s["host"] = np.where(known, empty_inside + np.maximum(empty, 0), 0)
    return times_s


def _sum(seconds: Mapping[str, Floats | None], names: tuple[str, ...] | list[str], like: Floats) -> Floats:
    return sum((times for name in names if (times := seconds.get(name)) is not None), start=np.zeros_like(like))


def _shrink(seconds: dict[str, Floats | None], names: tuple[str, ...], by_s: Floats) -> None:
    """Subtract ``by_s`` from these phases in proportion, down to 0."""
    total = _sum(seconds, names, by_s)
    kept = np.where(total > 0, 1 - np.minimum(by_s, total) / np.where(total > 0, total, 1), 1)
    for name in names:
        times = seconds.get(name)
        if times is not None:
            seconds[name] = times * kept
