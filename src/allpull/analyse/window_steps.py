"""Choose the steps that a window is made of: consecutive, on all ranks, after warm-up, whole epochs if there are any.

Warm-up is as recorded, and DDP's buckets must be those of the whole window. Steps with an evaluation, a checkpoint or
the first batch of an epoch stay in it: they cost what they cost, and as often as they come. So where epochs are short
enough, their length divides the window's.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import polars as pl
from numpy.typing import NDArray

from allpull.analyse.together import Together
from allpull.analyse.window import Bools
from allpull.rundir.beside import EventLog
from allpull.rundir.gaps import counted, named_ranks
from allpull.rundir.read import RunData
from allpull.units import NS_PER_S, show_time

ODD = ("first_batch", "evaluation", "checkpoint")
"""Tags of steps that cost more than others, and belong to a window all the same."""

BREAK_SHARE = 0.05  # of a step: between one step and the next there is nothing; what is longer happened elsewhere
BREAK_NS = 1_000_000  # below this the clocks of a device and its host, or of two hosts, may be as far apart
SLOWER = 1.1  # a profiler that costs more than this makes other steps of those that it watches
MAX_CELLS = 2**24  # events or buckets × ranks: a window of so many fits 2 GB
MAX_EVENTS = 100_000  # each costs a replay some 10 µs


@dataclass(frozen=True, slots=True, kw_only=True)
class NoWindow:
    """Why no window can be made of a run, in words."""

    reason: str


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Chosen:
    """The steps of a window, consecutive; ``odd`` (steps,): with one of the tags ``ODD`` on any rank."""

    steps: NDArray[np.int64]
    odd: Bools
    gaps: tuple[str, ...]


def chosen(whole: Together, run: RunData) -> Chosen | NoWindow:
    """The steps of a window of ``run``: the longest series that one can be made of, the later one of two."""
    ranks = run.record.ranks
    if len(run.headers) < ranks:
        missing = (rank for rank in range(ranks) if rank not in run.headers)
        return NoWindow(reason=f"{named_ranks(missing, ranks - len(run.headers))} left no step records")
    if whole.steps.is_empty():
        return NoWindow(reason="no step was recorded")
    if not whole.clock.compares:
        return NoWindow(reason="the clocks of the hosts are not aligned: who waited for whom is not known")
    table = _table(whole.steps, ranks)
    if not table["whole"].any():
        return NoWindow(reason=f"no step was recorded by all {ranks:,} ranks{_apart(whole.steps)}")
    usable = table["whole"].to_numpy() & ~table["warmup"].to_numpy()
    if not usable.any():
        count = counted(int(table["whole"].sum()), "step")
        return NoWindow(reason=f"there is nothing but warm-up: all ranks recorded {count}, and more of them are needed")
    breaks = _breaks(whole, table) | _recut(table["step"].to_numpy(), run.events)
    usable, gap = _without_slow_traced(table, usable)
    rows = _longest(table["step"].to_numpy(), usable, breaks)
    rows = _whole_epochs(rows, table)
    odd = np.logical_or.reduce([table[tag].to_numpy() for tag in ODD])
    return Chosen(steps=table["step"].to_numpy()[rows], odd=odd[rows], gaps=(gap,) if gap else ())


def shortened(steps: Chosen, *, ranks: int, events: int, buckets: int) -> Chosen:
    """The last of ``steps``, as many as can be held; they have ``events`` events in all, and ``buckets`` a step."""
    count = steps.steps.size
    per_step = max(1.0, events / count)
    most = max(1, int(min(MAX_CELLS / ranks / (per_step + buckets), MAX_EVENTS / per_step)))
    if count <= most:
        return steps
    gap = f"only the last {most:,} of {counted(count, 'step')} are explained: more do not fit"
    return Chosen(steps=steps.steps[-most:], odd=steps.odd[-most:], gaps=(*steps.gaps, gap))


def _table(records: pl.DataFrame, ranks: int) -> pl.DataFrame:
    """One row a step: step, epoch, whole, wall (ns, of the slowest rank), and tags of any rank."""
    tags = ("warmup", "resumed", "traced", *ODD)
    return (
        records.lazy()
        .group_by("step")
        .agg(
            pl.col("epoch").max(),
            (pl.len() == ranks).alias("whole"),
            (pl.col("end_ns") - pl.col("begin_ns")).max().alias("wall"),
            *(pl.col(f"tag_{tag}").any().alias(tag) for tag in tags),
        )
        .sort("step")
        .collect()
    )


def _apart(records: pl.DataFrame) -> str:
    """Where two ranks have nothing in common: what each has."""
    spans = records.group_by("rank").agg(pl.col("step").min().alias("first"), pl.col("step").max().alias("last"))
    early, late = spans.sort("last", "rank").row(0), spans.sort("first", "rank").row(-1)
    if early[2] >= late[1]:
        return ""
    return "".join(f"{mark} rank {rank} has steps {a} to {b}" for mark, (rank, a, b) in ((":", early), (",", late)))


def _breaks(whole: Together, table: pl.DataFrame) -> Bools:
    """Steps that do not begin when the one before ended, on any rank, or with which a training was resumed."""
    usual_ns = int(np.median(table["wall"].to_numpy()))
    limit_ns = max(BREAK_NS + whole.clock.slack_ns, round(BREAK_SHARE * usual_ns))
    same_rank = pl.col("rank") == pl.col("rank").shift(1)
    apart_ns = (pl.col("begin_ns") - pl.col("end_ns").shift(1)).abs()
    broken = whole.steps.filter(same_rank & (apart_ns > limit_ns))["step"].unique()
    return (table["resumed"] | table["step"].is_in(broken.implode())).to_numpy()


def _recut(steps: NDArray[np.int64], events: Mapping[int, EventLog]) -> Bools:
    """Steps from which on DDP has other buckets than before, as any rank says."""
    return np.isin(steps, sorted({step for log in events.values() for step in _changes(log)}))


def _changes(log: EventLog) -> Iterator[int]:
    yield from (after.step for before, after in pairwise(log.buckets) if before.sizes_bytes != after.sizes_bytes)


def _without_slow_traced(table: pl.DataFrame, usable: Bools) -> tuple[Bools, str | None]:
    """``usable`` without steps that were profiled, where the profiler made them much slower; and what that means."""
    odd = np.logical_or.reduce([table[tag].to_numpy() for tag in ODD])
    traced, wall = table["traced"].to_numpy(), table["wall"].to_numpy()
    watched, alone = usable & traced & ~odd, usable & ~traced & ~odd
    if not (watched.any() and alone.any()):
        return usable, None
    slow_s, usual_s = (float(np.median(wall[which])) / NS_PER_S for which in (watched, alone))
    if slow_s <= SLOWER * usual_s:
        return usable, None
    took = f"profiled steps took {show_time(slow_s)}, others {show_time(usual_s)}"
    return usable & ~traced, f"{took}: the window lies between them"


def _longest(steps: NDArray[np.int64], usable: Bools, breaks: Bools) -> slice:
    """Rows of the longest series of consecutive usable steps without a break in it; the last of several."""
    begins = usable & (breaks | ~np.append([False], usable[:-1]) | np.append([True], np.diff(steps) != 1))
    starts = np.flatnonzero(begins)
    ends = np.flatnonzero(usable & ~np.append(usable[1:] & ~begins[1:], [False])) + 1
    best = starts.size - 1 - int(np.argmax((ends - starts)[::-1]))
    return slice(int(starts[best]), int(ends[best]))


def _whole_epochs(rows: slice, table: pl.DataFrame) -> slice:
    """The end of ``rows``, as long as some epochs are together; all of them where one epoch is longer."""
    epoch = table["epoch"].to_numpy()
    begins = np.flatnonzero(np.diff(epoch)) + 1
    if epoch.size and table["first_batch"][0]:
        begins = np.append([0], begins)
    lengths = np.diff(table["step"].to_numpy()[begins])
    if not lengths.size:
        return rows
    length = int(np.median(lengths))
    count = rows.stop - rows.start
    return slice(rows.stop - count // length * length, rows.stop) if count >= length else rows
