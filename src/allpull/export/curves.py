"""The curves of a run: values over steps and time, of the job, of each rank, and of each host."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import polars as pl
from numpy.typing import NDArray

from allpull.analyse.aligned import AlignedRun
from allpull.analyse.statistics import evenly
from allpull.analyse.steps.phases import NAMES
from allpull.export import tables
from allpull.export.wall_clock import unix_s
from allpull.report.printable import printable

MAX_POINTS = 10_000  # of one curve: TensorBoard itself shows a thousand
RANK_POINTS = 2_000  # of one curve of one rank
MAX_RANKS = 64  # with curves of their own: beyond that nobody finds one among them
MAX_NUMBERED = 200  # characters of a name that a number follows
JOB = "job"

OF_PROCESSES = {
    "busy_cpus": "cpu/busy_cpus",
    "memory_bytes": "memory/resident_bytes",
    "threads": "cpu/threads",
    "read_bytes": "io/read_bytes",
    "write_bytes": "io/write_bytes",
}
OF_GPUS = ("busy_share", "memory_used_bytes", "clock_hz", "power_w", "temperature_c")
OF_NETWORKS = ("received_bytes_per_s", "sent_bytes_per_s")
OF_STEPS = ("step_s", *(f"{name}_s" for name in NAMES), "arrival_s")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Curve:
    """One quantity ``name`` of ``owner``: `job`, `rank-00003` or `host-NAME`.

    ``steps`` int64, ``unix_s`` and ``values`` float64, all of shape (points,), by time; no value is NaN.
    """

    owner: str
    name: str
    steps: NDArray[np.int64]
    unix_s: NDArray[np.float64]
    values: NDArray[np.float64]


def curves(aligned: AlignedRun) -> Iterator[Curve]:
    """The curves of a run: means over ranks and metrics of the job, and each rank's own of at most ``MAX_RANKS``."""
    chosen = _thinned(aligned)
    records = pl.concat(part.filter(pl.col("step").is_in(chosen)) for part in tables.steps(aligned))
    yield from _of_job(records)
    yield from _metrics(aligned)
    single = aligned.data.record.ranks <= MAX_RANKS
    for (rank,), own in records.group_by("rank", maintain_order=True) if single else ():
        fewer = own[evenly(range(own.height), RANK_POINTS)]
        yield from _columns(fewer, f"rank-{rank:05d}", {name: _step_name(name) for name in OF_STEPS}, "end_unix_s")
    begins = _begins(aligned)
    samples = _at_step(tables.processes(aligned), begins)
    for (rank,), own in samples.group_by("rank", maintain_order=True) if single else ():
        fewer = own[evenly(range(own.height), RANK_POINTS)]
        yield from _columns(fewer, f"rank-{rank:05d}", OF_PROCESSES, "unix_s")
    for table, key, group, columns in (
        (tables.gpus(aligned), "gpu", "gpu", OF_GPUS),
        (tables.networks(aligned), "nic", "network", OF_NETWORKS),
    ):
        for (host, part), own in _at_step(table, begins).group_by("host", key, maintain_order=True):
            names = {column: f"{group}/{part}/{column}" for column in columns}
            yield from _columns(own, f"host-{host}", names, "unix_s")


def left_out(aligned: AlignedRun) -> list[str]:
    """What of the run has no curve, a sentence each."""
    notes, steps, ranks = [], aligned.steady.steps.size, aligned.data.record.ranks
    if steps > RANK_POINTS:
        notes.append(
            f"curves have at most {MAX_POINTS:,} of {steps:,} steps, those of one rank {RANK_POINTS:,}, evenly chosen; "
            "--to parquet has all"
        )
    if ranks > MAX_RANKS:
        notes.append(f"{ranks:,} ranks have no curves of their own (at most {MAX_RANKS} have); --to parquet has all")
    return notes


def distinct(name: str, taken: dict[str, int]) -> str:
    """``name``, with a number behind it where one of ``taken`` has it already; that remembers it.

    >>> taken = {}
    >>> [distinct(name, taken) for name in ("loss", "loss-2", "loss", "loss")]
    ['loss', 'loss-2', 'loss-3', 'loss-4']
    """
    own, number = name, taken.get(name, 0)
    while own in taken:
        number += 1
        own = f"{name[:MAX_NUMBERED]}-{number}"
    taken[own] = 1
    taken[name] = max(number, 1)
    return own


def _thinned(aligned: AlignedRun) -> Sequence[int]:
    numbers: list[int] = aligned.steady.steps.tolist()
    return evenly(numbers, MAX_POINTS)


def _step_name(column: str) -> str:
    return f"step/{column}" if column in {"step_s", "arrival_s"} else f"phase/{column}"


def _of_job(records: pl.DataFrame) -> Iterator[Curve]:
    """Step time is that of the slowest rank; phases are means over the ranks."""
    known = pl.when(pl.col("samples").is_not_null().all()).then(pl.col("samples").sum())
    phases = [f"{name}_s" for name in NAMES]
    job = (
        records.group_by("step")
        .agg(
            pl.col("end_unix_s").max(),
            pl.col("epoch").min().cast(pl.Float64),
            pl.col("step_s").max(),
            pl.col(phases).mean(),
            known.alias("samples"),
        )
        .sort("step")
        .with_columns(pl.when(pl.col("step_s") > 0).then(pl.col("samples") / pl.col("step_s")).alias("samples_per_s"))
    )
    names = {"epoch": "step/epoch", "step_s": "step/step_s", "samples_per_s": "step/samples_per_s"}
    yield from _columns(job, JOB, {**names, **{name: f"phase/{name}" for name in phases}}, "end_unix_s")


def _metrics(aligned: AlignedRun) -> Iterator[Curve]:
    """Metrics of the training, of the lowest rank that reported each: ranks reduce them before they report them."""
    reported = tables.training_metrics(aligned)
    for (name,), own in reported.group_by("name", maintain_order=True):
        lowest = own.filter(pl.col("rank") == pl.col("rank").min())
        yield from _columns(lowest, JOB, {"value": printable(str(name))}, "unix_s")


def _begins(aligned: AlignedRun) -> pl.DataFrame:
    """When each step began, on whichever rank was first."""
    begun = aligned.steps.select("step", unix_s(aligned, "begin_ns").alias("unix_s"))
    return begun.group_by("step").agg(pl.col("unix_s").min()).drop_nulls().sort("unix_s")


def _at_step(samples: pl.DataFrame, begins: pl.DataFrame) -> pl.DataFrame:
    """``samples`` with the step that had begun last; 0 before the first."""
    timed = samples.drop_nulls("unix_s").sort("unix_s", maintain_order=True)
    return timed.join_asof(begins, on="unix_s", strategy="backward").with_columns(pl.col("step").fill_null(0))


def _columns(table: pl.DataFrame, owner: str, names: dict[str, str], time: str) -> Iterator[Curve]:
    """A curve of each column of ``names`` that has a value; at most ``MAX_POINTS`` of them."""
    for column, name in names.items():
        known = table.select("step", time, pl.col(column).cast(pl.Float64)).drop_nulls()
        known = known.filter(pl.col(column).is_finite())
        if known.is_empty():
            continue
        kept = known[evenly(range(known.height), MAX_POINTS)]
        steps, unix_s, values = (kept[part].to_numpy() for part in ("step", time, column))
        yield Curve(owner=printable(owner), name=name, steps=steps, unix_s=unix_s, values=values)
