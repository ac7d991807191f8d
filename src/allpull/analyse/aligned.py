"""One run on one clock: the records of all ranks aligned, their collectives matched, its profiler traces read.

Phases, tables, explanations, comparisons and timelines are computed from this: make one per run and pass it on.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import polars as pl
from numpy.typing import NDArray

from allpull.analyse.clock.shared_clock import SharedClock, shared_clock
from allpull.analyse.collectives.exchange import NoExchange, no_exchange
from allpull.analyse.collectives.local_exchange import hook_names, locally_exchanged
from allpull.analyse.collectives.matching import Matched, match
from allpull.analyse.collectives.reductions import MOMENTS, every_reduction
from allpull.analyse.collectives.traced_buckets import BucketWindows, bucket_windows
from allpull.analyse.iterable_samples import IterableSamples, iterable_samples
from allpull.analyse.same_samples import SameSamples, same_samples
from allpull.analyse.steps.device import (
    calls_on_device,
    device_bounds_s,
    on_device,
    ready_on_device,
    reductions_on_device,
)
from allpull.analyse.steps.grid import Floats, Grid, placed
from allpull.analyse.steps.phases import Called, Phases, split
from allpull.analyse.steps.steady import SteadySteps, steady_steps
from allpull.rundir.read.run import RunData
from allpull.schema.gap import Gap
from allpull.units import counted

STEP_MOMENTS = ("begin_ns", "end_ns", "arrival_ns", "done_ns")
CALL_MOMENTS = ("begin_ns", "end_ns")
SPLIT = ("last_ns", "wait_ns", "transfer_ns")


@dataclass(frozen=True, eq=False)  # no slots: they have no room for what is computed on first use
class AlignedRun:
    """``data`` with all its moments on one clock, as far as they compare. Each part is computed once, on first use."""

    data: RunData

    @cached_property
    def clock(self) -> SharedClock:
        """The clock that all moments are on; its bound includes that of the ranks' devices."""
        shared = shared_clock(self.data.headers, self.data.pings, self.data.steps)
        devices_s = device_bounds_s(self.data.events, self.steady.steps[self.steady.used])
        if shared.bound_s is None or not devices_s:
            return shared
        return replace(shared, bound_s=shared.bound_s + sum(sorted(devices_s)[-2:]))

    @cached_property
    def steps(self) -> pl.DataFrame:
        """Step records, columns of ``rundir.read.steps.SCHEMA``; with the device's own times, then also ``busy_ns``."""
        return self.clock.shared(on_device(self.data.steps, self.data.events), STEP_MOMENTS)

    @cached_property
    def reductions(self) -> pl.DataFrame:
        """Every reduction of gradients among all ranks, columns ``collectives.reductions.SCHEMA``."""
        every = every_reduction(self.steps, self.clock.shared(self.listed, MOMENTS))
        return every if self.local.is_empty() else every.filter(~pl.col("step").is_in(self.local.implode()))

    @cached_property
    def local(self) -> pl.Series:
        """The steps in which gradients were exchanged among some ranks only, or not at all."""
        return locally_exchanged(self.data)

    @cached_property
    def listed(self) -> pl.DataFrame:
        """Reductions that steps list, columns ``rundir.read.reductions.SCHEMA``; moments of each rank's own clock.

        Of steps on an accelerator those with its own times: the host, which runs ahead of it, has others.
        """
        return reductions_on_device(self.data.events) if self.on_device else self.data.reductions

    @cached_property
    def ready(self) -> pl.DataFrame:
        """When buckets were ready, columns ``rundir.read.buckets.SCHEMA``; moments of each rank's own clock.

        Of steps on an accelerator with its own times; steps of imported runs have them in their records.
        """
        return ready_on_device(self.data.ready, self.data.events)

    @property
    def on_device(self) -> bool:
        """Whether steps have the times of an accelerator."""
        return "busy_ns" in self.steps.columns

    @property
    def calls_compare(self) -> bool:
        """Whether moments of called collectives are of the clocks that steps have: the device's, where there is one."""
        logs = self.data.events.values()
        on_device = any(one.collectives for log in logs for one in log.device_steps)
        return not self.on_device or on_device or self.data.is_from_traces

    @cached_property
    def matched(self) -> Matched:
        """Collectives, matched across ranks; waits and transfers are null where moments of ranks do not compare."""
        calls = self.clock.shared(calls_on_device(self.data.collectives, self.data.events), CALL_MOMENTS)
        matched = match(calls, self.data.events, slack_ns=self.clock.slack_ns)
        if self.clock.compares:
            return matched
        unknown = matched.calls.with_columns(pl.lit(None, dtype=pl.Int64()).alias(name) for name in SPLIT)
        return Matched(calls=unknown, uses=matched.uses)

    @cached_property
    def buckets(self) -> BucketWindows:
        """DDP's buckets in the profiler's windows; this opens the traces. Moments are of each rank's own clock."""
        return bucket_windows(self.data)

    @cached_property
    def steady(self) -> SteadySteps:
        """The steps worth averaging."""
        return steady_steps(self.data.steps, self.data.record.ranks)

    @cached_property
    def complete(self) -> bool:
        """Whether every rank has records, so that no rank waited for an unrecorded one."""
        return all(header.ranks <= self.data.record.ranks for header in self.data.headers.values())

    def phases(self, grid: Grid, steps: NDArray[np.int64]) -> Phases:
        """The phases of ``grid``, which was arranged from this ``steps`` frame's steps of the numbers ``steps``."""
        called = None
        if self.clock.compares and (self.complete or self.matched.unmatched < self.matched.calls.height):
            costs = self.matched.costs()
            wait, transfer = (placed(costs, name, steps, grid.ranks) for name in ("wait_ns", "transfer_ns"))
            launches = self.matched.launches()
            most: Floats | float = np.inf
            if not launches.is_empty():
                launched, blocked = (placed(launches, name, steps, grid.ranks) for name in ("launched", "blocked_ns"))
                most = np.where(launched > 0, blocked, np.inf)
            called = Called(wait=wait, transfer=transfer, most=most)
        parts = split(
            grid,
            one_clock=self.clock.compares,
            called=called,
            reduces=_reduces(self.data),
            bound_s=self.clock.bound_s or 0.0,
            complete=self.complete,
        )
        groups = (group for log in self.data.events.values() for group in log.process_groups)
        ways = sorted({way for group in groups for way in group.unobserved})
        if not self.local.is_empty():  # their arrivals are known, and no meetings
            parts = replace(parts, gaps=tuple(gap for gap in parts.gaps if gap.kind != "arrivals"))
        elif ways and parts.seconds["wait"] is None:
            parts = replace(parts, gaps=tuple(_by_other_ways(gap, ways) for gap in parts.gaps))
        if self.no_exchange is not None:
            parts = _unrelated(parts, self.no_exchange)
        return replace(parts, gaps=(*parts.gaps, *self.reduction_gaps))

    @cached_property
    def no_exchange(self) -> NoExchange | None:
        """The ranks, if they are unrelated trainings."""
        return no_exchange(self.data)

    @cached_property
    def same_samples(self) -> SameSamples | None:
        """The ranks that train on the same samples, if any do."""
        return same_samples(self.data)

    @cached_property
    def iterable_samples(self) -> IterableSamples | None:
        """The samples, where they are of an `IterableDataset`."""
        return iterable_samples(self.data)

    @cached_property
    def reduction_gaps(self) -> tuple[Gap, ...]:
        """What is not known of reductions of gradients before the last one of a step."""
        listed, keys = self.data.reductions, ["rank", "step"]
        used = self.steady.steps[self.steady.used].tolist()
        local = int(self.local.is_in(used).sum())
        if local:
            hooks = " and ".join(hook_names(self.data)) or "DistributedDataParallel"
            text = (
                f"in {local:,} of {counted(len(used), 'step')} {hooks} exchanged gradients within groups of fewer than "
                "all ranks: nobody waits for all others in their backward"
            )
            return (Gap(kind="local exchange", text=text),)
        several = listed.filter(pl.col("reduction") > 0, pl.col("step").is_in(used)).select(keys).unique()
        if self.on_device:
            several = several.join(self.listed, on=keys, how="anti")
        if self.on_device and several.height:
            text = (
                f"in {several.height:,} rank-steps gradients were reduced several times, and the accelerator's time is "
                "known of the last only: 'backward' holds the waiting in the others"
            )
            return (Gap(kind="earlier reductions", text=text),)
        if self.data.record.kind != "run":
            return ()  # our trainer and rehearsals reduce in the last pass alone
        single = self.steps.lazy().filter(pl.col("backward_passes") > 1, pl.col("arrival_ns").is_not_null())
        unlisted = single.select(keys).collect().join(listed.select(keys).unique(), on=keys, how="anti")
        if unlisted.is_empty():
            return ()
        text = (
            f"in {unlisted.height:,} rank-steps with several backward passes only the last reduction was recorded: "
            "if others reduced, 'backward' holds the waiting in them"
        )
        return (Gap(kind="earlier reductions", text=text),)


def _by_other_ways(gap: Gap, ways: Sequence[str]) -> Gap:
    """``gap``, or what is said instead of it where ranks may exchange gradients by ``ways`` that are not recorded."""
    if gap.kind != "arrivals":
        return gap
    text = (
        f"ranks may exchange data by {' and '.join(ways)}, which is not recorded: wait and transfer are not measured, "
        "and the phases that call it hold them"
    )
    return Gap(kind="arrivals", text=text)


def _unrelated(parts: Phases, unrelated: NoExchange) -> Phases:
    """``parts`` of trainings that exchange no gradients: nothing waits in their backward passes."""
    text = f"{unrelated.sentence}, and samples/s is the sum of {unrelated.ranks:,} unrelated trainings"
    gaps = (Gap(kind="no exchange", text=text), *(gap for gap in parts.gaps if gap.kind != "arrivals"))
    backward_s = parts.seconds["backward"]
    none_s = None if backward_s is None else np.zeros_like(backward_s)
    known = {name: none_s if parts.seconds[name] is None else parts.seconds[name] for name in ("wait", "transfer")}
    return replace(parts, seconds={**parts.seconds, **known}, gaps=gaps)


def _reduces(run: RunData) -> bool:
    """Whether gradients are reduced inside backward: a training's options say so, a program's DDP buckets do."""
    if run.record.kind == "run":
        return any(log.buckets for log in run.events.values())
    parallel = run.record.spec.get("parallel")
    if not isinstance(parallel, dict):  # a rehearsal, or an older training: they had no choice
        return True
    return parallel.get("strategy", "ddp") == "ddp" and parallel.get("overlap", True) is True
