"""The records of a run as data frames: float seconds and bytes, with the unit in the name of each column."""

from __future__ import annotations

import numpy as np
import polars as pl
from numpy.typing import NDArray

from allpull.analyse.aligned import AlignedRun
from allpull.analyse.steps.grid import arrange
from allpull.analyse.steps.phases import NAMES
from allpull.units import NS_PER_S

STEPS = {
    "rank": "rank of the job, from 0",
    "step": "number of the step, from 0, counted over the whole training",
    "epoch": "number of the epoch, from 0",
    "begin_s": "begin of the step on the shared clock, from the first recorded step of the run",
    "step_s": "wall time of the step",
    "samples": "samples of this rank; null: not known",
    "steady": "whether rates rest on this step",
}
PHASES = {
    "rank": "rank of the job, from 0",
    "step": "number of a steady step",
    **{f"{name}_s": f"time of the rank in phase `{name}`; null: not measured" for name in NAMES},
}
COLLECTIVES = {
    "rank": "rank of the job, from 0",
    "step": "step in which it was called",
    "op": "torch's name, such as all_reduce",
    "size_bytes": "the larger of what goes in and what comes out",
    "dtype": "type of the elements",
    "group": "process group",
    "inside": "phase in which it was called; null: between phases",
    "begin_s": "call, on the shared clock, from the first recorded step of the run",
    "blocked_s": "time for which the rank was blocked; null: it never waited for the result",
    "wait_s": "blocked before the last rank arrived; null: not matched across ranks",
    "transfer_s": "blocked after that; null: not matched across ranks",
}
COUNTERS = {
    "rank": "rank of the job, from 0",
    "host": "name of its host",
    "at_s": "time of the sample on the shared clock, from the first recorded step of the run",
    "processes": "processes of the rank: itself and its loader workers",
    "threads": "their threads",
    "cpu_s": "their user and system time, cumulative",
    "queued_s": "time for which their threads could run and had no CPU, cumulative",
    "switches": "their context switches, cumulative",
    "memory_bytes": "their resident memory",
    "read_bytes": "read through system calls, cached or not, cumulative",
    "write_bytes": "written through system calls, cumulative",
    "read_calls": "system calls that read, cumulative",
    "write_calls": "system calls that wrote, cumulative",
    "storage_read_bytes": "read from storage, not from the page cache, cumulative",
    "storage_write_bytes": "written to storage, cumulative",
}


def steps(aligned: AlignedRun, chosen: pl.Expr | None = None) -> pl.DataFrame:
    """One row per rank and step, with the columns ``STEPS``; ``chosen``: only of the records for which it is true."""
    numbers = steady_numbers(aligned)
    records = aligned.steps if chosen is None else aligned.steps.filter(chosen)
    return records.select(
        "rank",
        "step",
        "epoch",
        _since_first(aligned, "begin_ns").alias("begin_s"),
        _seconds("end_ns", since="begin_ns").alias("step_s"),
        "samples",
        pl.col("step").is_in(numbers.tolist()).alias("steady"),
    )


def phases(aligned: AlignedRun, numbers: NDArray[np.int64] | None = None) -> pl.DataFrame:
    """One row per rank and steady step, with the columns ``PHASES``; the means are those of ``metrics().phases``.

    ``numbers``: of these steps instead, each of which all ranks recorded.
    """
    numbers = steady_numbers(aligned) if numbers is None else numbers
    ranks = aligned.data.record.ranks
    split = aligned.phases(arrange(aligned.steps, numbers, ranks, aligned.reductions), numbers)
    columns: dict[str, pl.Series] = {
        "rank": pl.Series(np.tile(np.arange(ranks), numbers.size), dtype=pl.Int64),
        "step": pl.Series(np.repeat(numbers, ranks), dtype=pl.Int64),
    }
    for name in NAMES:
        times_s = split.seconds.get(name)
        empty = pl.Series([None] * numbers.size * ranks, dtype=pl.Float64)
        columns[f"{name}_s"] = empty if times_s is None else pl.Series(times_s.ravel(), nan_to_null=True)
    return pl.DataFrame(columns)


def collectives(aligned: AlignedRun) -> pl.DataFrame:
    """One row per recorded call of a collective, with the columns ``COLLECTIVES``; DDP's buckets are not among them."""
    calls = aligned.matched.calls
    kinds = aligned.matched.uses.with_row_index("use").with_columns(pl.col("use").cast(calls.schema["use"]))
    return calls.join(kinds, on="use", how="left", maintain_order="left").select(
        "rank",
        "step",
        "op",
        "size_bytes",
        "dtype",
        "group",
        "inside",
        _since_first(aligned, "begin_ns").alias("begin_s"),
        *(_seconds(f"{name}_ns").alias(f"{name}_s") for name in ("blocked", "wait", "transfer")),
    )


def counters(aligned: AlignedRun) -> pl.DataFrame:
    """One row per sample of a rank's processes, with the columns ``COUNTERS``."""
    shared = aligned.clock.shared(aligned.data.counters, ("t_ns",))
    times = {"at_s": _since_first(aligned, "t_ns"), "cpu_s": _seconds("cpu_ns"), "queued_s": _seconds("queued_ns")}
    return shared.select(times[name].alias(name) if name in times else pl.col(name) for name in COUNTERS)


def steady_numbers(aligned: AlignedRun) -> NDArray[np.int64]:
    """The numbers of the steps that rates rest on."""
    numbers: NDArray[np.int64] = aligned.steady.steps[aligned.steady.used]
    return numbers


def _seconds(name: str, *, since: str | None = None) -> pl.Expr:
    """A column of integer ns as float seconds; the difference is taken before it becomes a float."""
    ns = pl.col(name) if since is None else pl.col(name) - pl.col(since)
    return ns / NS_PER_S


def _since_first(aligned: AlignedRun, name: str) -> pl.Expr:
    """A moment in seconds since the first step began: of the run, or of each rank where clocks do not compare."""
    if aligned.steps.is_empty():
        return pl.lit(None, dtype=pl.Float64)
    if aligned.clock.compares:
        first_ns: int = aligned.steps.select(pl.col("begin_ns").min()).item()
        return (pl.col(name) - first_ns) / NS_PER_S
    firsts = {rank: int(first) for rank, first in aligned.steps.group_by("rank").agg(pl.col("begin_ns").min()).rows()}
    first = pl.col("rank").replace_strict(firsts, default=None, return_dtype=pl.Int64)
    return (pl.col(name) - first) / NS_PER_S
