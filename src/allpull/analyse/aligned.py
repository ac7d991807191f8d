"""The records of all ranks on one clock, their collectives matched: what phases, tables and timelines are made of."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import polars as pl
from numpy.typing import NDArray

from allpull.analyse.clock.shared_clock import SharedClock, shared_clock
from allpull.analyse.collectives.matching import Matched, match
from allpull.analyse.steps.device import on_device
from allpull.analyse.steps.grid import Grid, placed
from allpull.analyse.steps.phases import Called, Phases, split
from allpull.rundir.read.run import RunData

STEP_MOMENTS = ("begin_ns", "end_ns", "arrival_ns", "done_ns")
CALL_MOMENTS = ("begin_ns", "end_ns")
TIMED = ("last_ns", "wait_ns", "transfer_ns")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Together:
    """One run with all its moments on ``clock``, as far as they compare.

    ``steps`` has the columns of ``rundir.records.SCHEMA``, with the device's own times where it has them (then also
    ``busy_ns``); of ``matched``, waits and transfers are null where moments of ranks do not compare. ``complete``: no
    rank is missing from the records, so that nobody waited for one of which nothing is known.
    """

    clock: SharedClock
    steps: pl.DataFrame
    matched: Matched
    reduces: bool
    complete: bool = True

    def phases(self, grid: Grid, steps: NDArray[np.int64]) -> Phases:
        """The phases of ``grid``, which was arranged from this ``steps`` frame's steps of the numbers ``steps``."""
        called = None
        if self.clock.compares and (self.complete or self.matched.unmatched < self.matched.calls.height):
            costs = self.matched.costs()
            wait, transfer = (placed(costs, name, steps, grid.ranks) for name in ("wait_ns", "transfer_ns"))
            called = Called(wait=wait, transfer=transfer)
        return split(
            grid,
            one_clock=self.clock.compares,
            called=called,
            reduces=self.reduces,
            bound_s=self.clock.bound_s or 0.0,
            complete=self.complete,
        )


def together(run: RunData) -> Together:
    """``run`` on one clock, where its ranks share one or were aligned."""
    clock = shared_clock(run.headers, run.pings, run.steps)
    steps = clock.shared(on_device(run.steps, run.events), STEP_MOMENTS)
    matched = match(clock.shared(run.collectives, CALL_MOMENTS), run.events, slack_ns=clock.slack_ns)
    if not clock.compares:
        unknown = matched.calls.with_columns(pl.lit(None, dtype=pl.Int64()).alias(name) for name in TIMED)
        matched = Matched(calls=unknown, uses=matched.uses)
    complete = all(header.ranks <= run.record.ranks for header in run.headers.values())
    return Together(clock=clock, steps=steps, matched=matched, reduces=_reduces(run), complete=complete)


def _reduces(run: RunData) -> bool:
    """Whether gradients are reduced inside backward: of our trainer its options tell, of a program DDP's buckets."""
    if run.record.kind == "run":
        return any(log.buckets for log in run.events.values())
    asked = run.record.spec.get("parallel")
    if not isinstance(asked, dict):  # a rehearsal, or an older training: they had no choice
        return True
    return asked.get("strategy", "ddp") == "ddp" and asked.get("overlap", True) is True
