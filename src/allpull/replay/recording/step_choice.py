"""Choose the steps that a window is made of: one after the other, on all ranks, after warm-up, in whole periods.

Of traces, all windows of the profiler are taken together (``joined_windows``): what recurs periodically is in them as
often as it was recorded.

Warm-up is left out as it was tagged, and DDP's buckets must not change within the window. Steps with an evaluation, a
checkpoint, a rollout or the first batch of an epoch stay in it, as often as they occur (``periods``).

No rank has the reduced gradients before every rank has its own. Steps whose moments contradict this are left out: a
clock that jumped, or steps that one rank counts differently, would appear as waiting.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np
import polars as pl
from numpy.typing import NDArray

from allpull.analyse.aligned import AlignedRun
from allpull.analyse.steps.steady import EVALUATION, SELDOM, early_ends
from allpull.replay.recording.chosen_steps import ChosenSteps
from allpull.replay.recording.joined_windows import edges, joined_windows
from allpull.replay.recording.periods import ROLLOUT, whole_periods
from allpull.replay.window import Bools
from allpull.rundir.read.events import EventLog
from allpull.rundir.read.run import RunData
from allpull.schema.gap import Gap, named_ranks
from allpull.schema.steps import ROLLOUTS
from allpull.units import NS_PER_S, counted, show_time

ODD = ("first_batch", EVALUATION, "checkpoint")
"""Tags of steps that cost more than others and yet belong to a window."""

BREAK_SHARE = 0.05  # of a step: a longer gap between one step and the next is time outside all steps
BREAK_NS = 1_000_000  # below this it may be the difference between the clocks of a device and its host, or of two hosts
SLOWER = 1.1  # a profiler that slows steps by more than this makes them unrepresentative
OTHERS = 0.1  # of the time of usable steps, and of that of one: less is not worth a word
FEWEST = 10  # steps: the mean of fewer is chance
SOUND_STEPS = 8  # in a row, where other steps contradict themselves: fewer may be consistent at random
MAX_CELLS = 2**23  # events or buckets × ranks: so many take half a GB
MAX_EVENTS = 100_000  # each costs a replay some 10 µs


@dataclass(frozen=True, slots=True, kw_only=True)
class NoWindow:
    """The reason why a run has no window, as text."""

    reason: str


def choose_steps(aligned: AlignedRun) -> ChosenSteps | NoWindow:
    """The steps of a window: the longest series of usable ones, the later one of two; windows of a profiler as one."""
    run = aligned.data
    reason = _unrecorded(aligned)
    if reason is not None:
        return NoWindow(reason=reason)
    table = _with_seldom(_table(aligned.steps, aligned.reductions, run.record.ranks), run.named)
    usable = table["whole"].to_numpy() & ~table["warmup"].to_numpy()
    if not usable.any():
        return NoWindow(reason=_nothing_usable(aligned.steps, table, run.record.ranks))
    limit_ns = _limit_ns(aligned, table)
    recut = _recut(table["step"].to_numpy(), run.events)
    breaks = _breaks(aligned, table, limit_ns) | recut
    usable, slow = _without_slow_traced(table, usable)
    sound, strange = _without_contradictions(table, usable, limit_ns)
    numbers = table["step"].to_numpy()
    series = _series(numbers, sound, breaks) if sound.any() else [slice(0, 0)]
    begins = _windows_begin(numbers, run) if len(series) > 1 else None
    if begins is not None:
        edge = edges(aligned.steps, numbers, table["whole"].to_numpy(), limit_ns)
        series = list(_trusted(series, usable & ~sound)) or series
        rows, cut_ns = joined_windows(series, edge, begins, recut | table["resumed"].to_numpy())
    else:
        longest = max(reversed(series), key=lambda one: one.stop - one.start)
        rows = np.arange(table.height)[longest]
    if strange is not None and rows.size < SOUND_STEPS:
        return NoWindow(reason=f"{strange}: moments of these ranks do not compare")
    if begins is None:
        rows = rows[whole_periods(longest, table).start - longest.start :]
        cut_ns = np.zeros(rows.size, dtype=np.int64)
    kinds = np.zeros(table.height, dtype=np.intp)
    for bit, name in enumerate((*ODD, ROLLOUT)):
        kinds |= table[name].to_numpy().astype(np.intp) << bit
    if begins is not None:
        others = list(_gap_of_unjoined(int(sound.sum()), rows.size))
    else:
        others = [] if slow or strange else list(_gap_of_others(table, sound & (kinds == 0), rows))
        others += _gap_of_some(table)
    where = "they are left out" if begins is not None else "the window lies between them"
    gaps = [Gap(kind="steps left out", text=f"{why}: {where}") for why in (slow, strange) if why]
    return ChosenSteps(numbers=numbers[rows], kinds=kinds[rows], cut_ns=cut_ns, gaps=(*gaps, *others))


def _windows_begin(steps: NDArray[np.int64], run: RunData) -> Bools | None:
    """Which ``steps`` a window of the profiler begins with, on any rank; None: it did not record those of all ranks."""
    if not run.is_from_traces:
        return None
    return np.isin(steps, [trace.first_step for log in run.events.values() for trace in log.traces])


def _trusted(series: Sequence[slice], wrong: Bools) -> Iterator[slice]:
    """``series`` without short ones beside steps that are ``wrong``: these may be consistent at random."""
    beside = np.append(wrong, [False])
    for one in series:
        if one.stop - one.start >= SOUND_STEPS or not (beside[one.start - 1] or beside[one.stop]):
            yield one


def _gap_of_unjoined(recorded: int, joined: int) -> Iterator[Gap]:
    """That the profiler ``recorded`` more steps than could be ``joined``."""
    if joined < recorded:
        text = (
            f"{recorded - joined:,} of {counted(recorded, 'step')} are not explained: ranks did not begin their window "
            "of the profiler as they ended the one before, or something lies between steps of one window"
        )
        yield Gap(kind="steps left out", text=text)


def _gap_of_others(table: pl.DataFrame, ordinary: Bools, rows: NDArray[np.intp]) -> Iterator[Gap]:
    """That many ``ordinary`` steps outside the window, which is at ``rows``, took another time than those in it."""
    wall_ns, outside = table["wall"].to_numpy(), ordinary.copy()
    outside[rows] = False
    inside = ordinary & ~outside
    few = outside.sum() < FEWEST or not inside.any()
    if few or not wall_ns[outside].sum() > OTHERS * wall_ns[ordinary].sum():
        return
    each_ns, usual_ns = float(wall_ns[outside].mean()), float(wall_ns[inside].mean())
    if abs(each_ns - usual_ns) > OTHERS * usual_ns:
        steps, instead = table["step"].to_numpy()[outside], show_time(usual_ns / NS_PER_S)
        text = (
            f"{counted(steps.size, 'more step')}, from {steps[0]:,} to {steps[-1]:,}, took "
            f"{show_time(each_ns / NS_PER_S)} each instead of {instead}, and are not explained: they make up no whole "
            "epoch, or something outside all steps parts them from these"
        )
        yield Gap(kind="steps left out", text=text)


def _gap_of_some(table: pl.DataFrame) -> Iterator[Gap]:
    """That some ranks went on alone for much of the time: of what it costs the others, no step of all tells."""
    of_some = table.filter(~pl.col("whole"))
    wall_ns, steps = of_some["wall"].to_numpy(), of_some["step"]
    if steps.len() >= FEWEST and wall_ns.sum() > OTHERS * table["wall"].to_numpy().sum():
        each = show_time(float(wall_ns.mean()) / NS_PER_S)
        text = (
            f"{counted(steps.len(), 'more step')}, from {steps[0]:,} to {steps[-1]:,}, took {each} each, and are not "
            "explained: not all ranks recorded them. Gains are those of the steps of all"
        )
        yield Gap(kind="steps left out", text=text)


def _unrecorded(aligned: AlignedRun) -> str | None:
    """Why the run cannot have a window with any of its steps; None: it may have one."""
    run = aligned.data
    ranks = run.record.ranks
    if len(run.headers) < ranks:
        missing = (rank for rank in range(ranks) if rank not in run.headers)
        return f"{named_ranks(missing, ranks - len(run.headers))} left no step records"
    if aligned.steps.is_empty():
        return "no step was recorded"
    if not aligned.clock.compares:
        return "the clocks of the hosts are not aligned: which rank waited for which is unknown"
    return None


def _nothing_usable(steps: pl.DataFrame, table: pl.DataFrame, ranks: int) -> str:
    """Why no step of ``table`` can be in a window."""
    if not table["whole"].any():
        return f"no step was recorded by all {ranks:,} ranks{_apart(steps)}"
    count = counted(int(table["whole"].sum()), "step")
    return f"only warm-up was recorded: all ranks have {count} in common, and more are needed"


def shorten(steps: ChosenSteps, *, ranks: int, events: int, buckets: int) -> ChosenSteps:
    """The last of ``steps``, as many as fit in memory; they have ``events`` events in all, and ``buckets`` per step."""
    count = steps.size
    per_step = max(1.0, events / count)
    most = max(1, int(min(MAX_CELLS / ranks / (per_step + buckets), MAX_EVENTS / per_step)))
    if count <= most:
        return steps
    text = f"only the last {most:,} of {counted(count, 'step')} are explained: more do not fit in memory"
    gap = Gap(kind="steps left out", text=text)
    last = {name: getattr(steps, name)[-most:] for name in ("numbers", "kinds", "cut_ns")}
    return replace(steps, **last, gaps=(*steps.gaps, gap))


def _table(records: pl.DataFrame, reductions: pl.DataFrame, ranks: int) -> pl.DataFrame:
    """One row per step: step, epoch, whole, wall (ns, of the slowest rank), too_soon (ns), and tags of any rank.

    ``whole``: all ranks recorded it, and it is not the last of some of them only.

    ``too_soon``: how long before the last rank had its own gradients the first had the reduced ones, below 0 if it had
    not, in the worst reduction of the step; null where none is known.
    """
    tags, ends = ("warmup", "resumed", "traced", *ODD), early_ends(records)
    of_each = reductions.group_by("step", "reduction").agg(
        (pl.col("arrival_ns").max() - pl.col("done_ns").min()).alias("too_soon"),
        (pl.col("networks").n_unique() == 1).alias("alike"),
    )
    soonest = of_each.filter("alike").group_by("step").agg(pl.col("too_soon").max())
    return (
        records.lazy()
        .group_by("step")
        .agg(
            pl.col("epoch").max(),
            ((pl.len() == ranks) & ~pl.col("step").first().is_in(ends)).alias("whole"),
            (pl.col("end_ns") - pl.col("begin_ns")).max().alias("wall"),
            *(pl.col(f"tag_{tag}").any().alias(tag) for tag in tags),
        )
        .join(soonest.lazy(), on="step", how="left")
        .sort("step")
        .collect()
    )


def _with_seldom(table: pl.DataFrame, named: pl.DataFrame) -> pl.DataFrame:
    """``table`` with the column ``ROLLOUT``: steps that began by one. Rollouts and evaluations count where seldom."""
    steps = named.filter(pl.col("name").is_in(ROLLOUTS) & (pl.col("ns") > 0))["step"].unique()
    has = {ROLLOUT: pl.col("step").is_in(steps.implode()), EVALUATION: pl.col(EVALUATION)}
    return table.with_columns((one & (one.mean() <= SELDOM)).alias(name) for name, one in has.items())


def _apart(records: pl.DataFrame) -> str:
    """Where two ranks have no step in common: the steps of each."""
    spans = records.group_by("rank").agg(pl.col("step").min().alias("first"), pl.col("step").max().alias("last"))
    early, late = spans.sort("last", "rank").row(0), spans.sort("first", "rank").row(-1)
    if early[2] >= late[1]:
        return ""
    return "".join(f"{mark} rank {rank} has steps {a} to {b}" for mark, (rank, a, b) in ((":", early), (",", late)))


def _limit_ns(aligned: AlignedRun, table: pl.DataFrame) -> int:
    """The tolerated overlap of, or gap between, two moments that should follow each other."""
    usual_ns = int(np.median(table["wall"].to_numpy()))
    return max(BREAK_NS + aligned.clock.slack_ns, round(BREAK_SHARE * usual_ns))


def _breaks(aligned: AlignedRun, table: pl.DataFrame, limit_ns: int) -> Bools:
    """Steps that do not begin when the one before ended, on any rank, or at which a training was resumed."""
    same_rank = pl.col("rank") == pl.col("rank").shift(1)
    apart_ns = (pl.col("begin_ns") - pl.col("end_ns").shift(1)).abs()
    broken = aligned.steps.filter(same_rank & (apart_ns > limit_ns))["step"].unique()
    return (table["resumed"] | table["step"].is_in(broken.implode())).to_numpy()


def _recut(steps: NDArray[np.int64], events: Mapping[int, EventLog]) -> Bools:
    """Steps at which DDP changed its buckets, on any rank."""
    return np.isin(steps, sorted({step for log in events.values() for step in _changes(log)}))


def _changes(log: EventLog) -> Iterator[int]:
    yield from (after.step for before, after in pairwise(log.buckets) if before.sizes_bytes != after.sizes_bytes)


def _without_slow_traced(table: pl.DataFrame, usable: Bools) -> tuple[Bools, str | None]:
    """``usable`` without steps that were profiled, where the profiler made them much slower; and why."""
    odd = np.logical_or.reduce([table[tag].to_numpy() for tag in ODD])
    traced, wall = table["traced"].to_numpy(), table["wall"].to_numpy()
    watched, alone = usable & traced & ~odd, usable & ~traced & ~odd
    if not (watched.any() and alone.any()):
        return usable, None
    slow_s, usual_s = (float(np.median(wall[which])) / NS_PER_S for which in (watched, alone))
    if slow_s <= SLOWER * usual_s:
        return usable, None
    took = f"profiled steps took {show_time(slow_s)}, others {show_time(usual_s)}"
    return usable & ~traced, took


def _without_contradictions(table: pl.DataFrame, usable: Bools, limit_ns: int) -> tuple[Bools, str | None]:
    """``usable`` without steps in which gradients were reduced before all ranks had theirs; and why."""
    too_soon = table["too_soon"].fill_null(-1).to_numpy()
    wrong = usable & (too_soon > limit_ns)
    if not wrong.any():
        return usable, None
    by = show_time(float(too_soon[wrong].max()) / NS_PER_S)
    of_all = f"{int(wrong.sum()):,} of {counted(int(usable.sum()), 'step')}"
    return usable & ~wrong, f"in {of_all} a rank had reduced gradients before another had its own, by up to {by}"


def _series(steps: NDArray[np.int64], usable: Bools, breaks: Bools) -> list[slice]:
    """Rows of each series of consecutive usable steps without a break in it."""
    begins = usable & (breaks | ~np.append([False], usable[:-1]) | np.append([True], np.diff(steps) != 1))
    starts = np.flatnonzero(begins)
    ends = np.flatnonzero(usable & ~np.append(usable[1:] & ~begins[1:], [False])) + 1
    return [slice(start, end) for start, end in zip(starts.tolist(), ends.tolist(), strict=True)]
