"""The tables of a run: one row per step and rank, epoch, value of a metric, collective, and sample of a counter.

Times are float seconds, sizes bytes, and the unit is in the name of the column; null is not measured, never 0. Tables
are made in parts, because the steps of a long run on many ranks fill memory.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import polars as pl
from numpy.typing import NDArray

from allpull.analyse import frames
from allpull.analyse.aligned import AlignedRun
from allpull.analyse.epochs.parts import PARTS, Epoch, epochs_of
from allpull.analyse.io.over_time import energy_of_epochs, epoch_spans
from allpull.analyse.programs import program
from allpull.analyse.steps.phases import NAMES
from allpull.export.wall_clock import unix_s
from allpull.rundir.read.steps import TAGS
from allpull.schema.epochs import EpochParts
from allpull.schema.results import RunMetrics
from allpull.schema.steps import PHASES
from allpull.units import NS_PER_S

PART_ROWS = 500_000  # of the steps: some 200 MB with all phases

UNIX = "by the wall clock of one host, in seconds since 1970 (UTC)"
FACTS = {
    "run": "id of the run",
    "name": "name that the user gave it",
    "kind": "train, run, rehearse or probe",
    "program": "script, recipe or kind of probe",
    "status": "completed, failed, cancelled; created and running before the end",
    "created_utc": "when it was created, ISO 8601",
    "ended_utc": "when it ended, ISO 8601",
    "launcher": "launcher that started its ranks",
}
COUNTS = {
    "ranks": "world size",
    "hosts": "hosts",
    "threads_per_rank": "OpenMP threads of a rank",
    "seed": "seed of the training",
    "global_batch": "samples of one step over all ranks",
    "steady_steps": "steps that the rates rest on",
}
RUN = {
    **FACTS,
    **COUNTS,
    "samples_per_s": "throughput of the whole job",
    "samples_per_s_low": "lower end of its 95 % confidence interval",
    "samples_per_s_high": "upper end",
    "step_median_s": "median step time",
    "step_p95_s": "95th percentile of the step time",
    **{f"{name}_s": f"time in phase `{name}` per step, mean over ranks" for name in NAMES},
    "read_bytes_per_s": "read by all ranks through system calls",
    "storage_read_bytes_per_s": "read by all ranks from storage",
    "overhead_share": "share of the time that recording took",
    "accuracy": "top-1 of the last evaluation, as a fraction",
    "clock_error_s": "maximum error of the time between two ranks",
}
STEPS = {
    "rank": frames.STEPS["rank"],
    "host": "name of its host",
    "step": frames.STEPS["step"],
    "epoch": frames.STEPS["epoch"],
    "begin_s": frames.STEPS["begin_s"],
    "end_unix_s": f"end of the step {UNIX}",
    "step_s": frames.STEPS["step_s"],
    "samples": frames.STEPS["samples"],
    "steady": frames.STEPS["steady"],
    "tags": "why a step is unusual, such as `warmup` or `evaluation`, with spaces between",
    **{f"{name}_s": f"time in phase `{name}`; null: not measured, or not all ranks have this step" for name in NAMES},
    "arrival_s": "last gradient ready, after the begin of the step on this rank; null: not measured",
    "done_s": "reduced gradients back, after the same moment",
}
METRICS = {
    "rank": "rank that reported the value",
    "name": "name of the metric, such as `train_loss`",
    "step": "step at which it was reported",
    "epoch": "epoch at which it was reported",
    "unix_s": f"when, {UNIX}",
    "value": "null: could not be computed",
}
EPOCHS = {
    "epoch": frames.STEPS["epoch"],
    "first_step": "number of its first step",
    "steps": "its steps; where its times are null, those that were recorded",
    "begin_unix_s": f"when it began {UNIX}; null, as all its times: its begin or its end was not recorded",
    "epoch_s": "from there until the next one begins, or training ends: the sum of its five parts",
    "samples": "of these steps, of all ranks; null: not known for all",
    "samples_per_s": "samples ÷ epoch_s",
    **{f"{name}_s": f"part of epoch_s: {EpochParts.model_fields[name].description}" for name in PARTS},
    "energy_j": "of all accelerators; null: not measured throughout",
}
PROCESSES = {
    **frames.COUNTERS,
    "unix_s": f"time of the sample {UNIX}",
    "busy_cpus": "CPUs in use since the sample before: growth of cpu_s ÷ time",
}
GPUS = {
    "host": "name of the host",
    "gpu": "accelerator of the host",
    "unix_s": f"time of the sample {UNIX}",
    "busy_share": "share of the time for which it was busy, 0 to 1",
    "memory_used_bytes": "memory in use",
    "clock_hz": "clock of the processors",
    "power_w": "power",
    "energy_j": "energy since the driver was loaded",
    "temperature_c": "temperature",
}
NETWORKS = {
    "host": "name of the host",
    "nic": "network interface",
    "unix_s": f"time of the sample {UNIX}",
    "received_bytes": "received since boot",
    "sent_bytes": "sent since boot",
    "received_bytes_per_s": "since the sample before",
    "sent_bytes_per_s": "since the sample before",
}
LINKS = {
    "host": "name of the host",
    "peer": "address of the other host",
    "unix_s": f"time of the sample {UNIX}",
    "sent_bytes": "sent and acknowledged, cumulative",
    "busy_s": "time with data sent and not yet acknowledged, cumulative",
    "retransmits": "segments that were sent again, cumulative",
    "rtt_s": "smoothed round trip, the longest of the connections",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """One table: ``columns`` name → what it is; ``parts`` makes its rows, in order, at least one part."""

    name: str
    columns: Mapping[str, str]
    parts: Callable[[], Iterator[pl.DataFrame]]


def tables(aligned: AlignedRun, metrics: RunMetrics) -> tuple[Table, ...]:
    """The tables of a run with these ``metrics``; those of kinds that it did not record have no rows."""
    whole: dict[str, tuple[Mapping[str, str], Callable[[AlignedRun], pl.DataFrame]]] = {
        "epochs": (EPOCHS, epochs),
        "metrics": (METRICS, training_metrics),
        "collectives": (frames.COLLECTIVES, frames.collectives),
        "processes": (PROCESSES, processes),
        "gpus": (GPUS, gpus),
        "networks": (NETWORKS, networks),
        "links": (LINKS, links),
    }
    return (
        Table(name="run", columns=RUN, parts=lambda: iter([summary(aligned, metrics)])),
        Table(name="steps", columns=STEPS, parts=partial(steps, aligned)),
        *(
            Table(name=name, columns=columns, parts=partial(_at_once, make, aligned))
            for name, (columns, make) in whole.items()
        ),
    )


def _at_once(make: Callable[[AlignedRun], pl.DataFrame], aligned: AlignedRun) -> Iterator[pl.DataFrame]:
    yield make(aligned)


def steps(aligned: AlignedRun, *, part_rows: int = PART_ROWS) -> Iterator[pl.DataFrame]:
    """One row per rank and step, with the columns ``STEPS``, by step and rank."""
    ranks = max(1, aligned.data.record.ranks)
    numbers = aligned.steady.steps
    size = max(1, part_rows // ranks)
    for begin in range(0, max(1, numbers.size), size):
        yield _steps_part(aligned, numbers[begin : begin + size])


def _steps_part(aligned: AlignedRun, numbers: NDArray[np.int64]) -> pl.DataFrame:
    first = int(numbers[0]) if numbers.size else 0
    last = int(numbers[-1]) if numbers.size else -1
    inside = pl.col("step").is_between(first, last)
    hosts = {rank: header.host for rank, header in aligned.data.headers.items()}
    records = aligned.steps.filter(inside)
    tags = [pl.when(pl.col(f"tag_{tag}")).then(pl.lit(tag)) for tag in TAGS]
    extra = records.select(
        "rank",
        "step",
        pl.col("rank").replace_strict(hosts, default=None, return_dtype=pl.String).alias("host"),
        unix_s(aligned, "end_ns").alias("end_unix_s"),
        pl.concat_str(tags, separator=" ", ignore_nulls=True).alias("tags"),
        ((pl.col("arrival_ns") - pl.col("begin_ns")) / NS_PER_S).alias("arrival_s"),
        ((pl.col("done_ns") - pl.col("begin_ns")) / NS_PER_S).alias("done_s"),
    )
    common = records.group_by("step").len().filter(pl.col("len") == aligned.data.record.ranks)["step"].sort()
    return (
        frames.steps(aligned, inside)
        .join(extra, on=["rank", "step"], how="left")
        .join(_phases(aligned, common.to_numpy()), on=["rank", "step"], how="left")
        .select(list(STEPS))
        .sort("step", "rank")
    )


def _phases(aligned: AlignedRun, numbers: NDArray[np.int64]) -> pl.DataFrame:
    """The phases of the steps ``numbers``; 0 where only steps of other parts recorded a phase, such as evaluations."""
    recorded = aligned.steps.select(pl.col(f"{name}_ns").is_not_null().any() for name in PHASES).row(0, named=True)
    somewhere = [f"{name}_s" for name in PHASES if recorded[f"{name}_ns"]]
    return frames.phases(aligned, numbers).with_columns(pl.col(somewhere).fill_null(0.0))


def training_metrics(aligned: AlignedRun) -> pl.DataFrame:
    """One row per reported value of a metric of the training, with the columns ``METRICS``."""
    rows = [
        (rank, metric.name, metric.step, metric.epoch, metric.t_ns, metric.value)
        for rank, log in sorted(aligned.data.events.items())
        for metric in log.metrics
    ]
    schema = {"rank": pl.Int64, "name": pl.String, "step": pl.Int64, "epoch": pl.Int64, "t_ns": pl.Int64}
    reported = pl.DataFrame(rows, schema={**schema, "value": pl.Float64}, orient="row")
    shared = aligned.clock.shared(reported, ("t_ns",))
    return shared.with_columns(unix_s(aligned, "t_ns").alias("unix_s")).select(list(METRICS))


def epochs(aligned: AlignedRun) -> pl.DataFrame:
    """One row per epoch, in their order, with the columns ``EPOCHS``."""
    complete = epochs_of(aligned).complete
    energy = {one.epoch: one.energy_j for one in energy_of_epochs(aligned.data.gpus, epoch_spans(aligned.data.events))}
    rows = [
        {
            "epoch": one.number,
            "first_step": one.first_step,
            "steps": one.steps,
            "begin_ns": one.begin_ns,
            "epoch_s": one.total_ns / NS_PER_S,
            "samples": one.samples,
            **{f"{name}_s": one.parts_ns[name] / NS_PER_S for name in PARTS},
        }
        for one in complete
    ]
    counts = dict.fromkeys(("epoch", "first_step", "steps", "begin_ns", "samples"), pl.Int64)
    schema = {**counts, **dict.fromkeys(("epoch_s", *(f"{name}_s" for name in PARTS)), pl.Float64)}
    timed = pl.DataFrame(rows, schema=schema)
    first_rank = min((rank for rank, log in aligned.data.events.items() if log.epochs), default=0)
    table = pl.concat([timed, _without_times(aligned, complete)], how="diagonal").sort("first_step")
    return table.with_columns(
        pl.lit(first_rank, dtype=pl.Int64).alias("rank"),
        pl.when(pl.col("epoch_s") > 0).then(pl.col("samples") / pl.col("epoch_s")).alias("samples_per_s"),
        pl.col("epoch").replace_strict(energy, default=None, return_dtype=pl.Float64).alias("energy_j"),
    ).select(*(unix_s(aligned, "begin_ns").alias(name) if name == "begin_unix_s" else name for name in EPOCHS))


def _without_times(aligned: AlignedRun, complete: Sequence[Epoch]) -> pl.DataFrame:
    """Steps and samples of each epoch that was recorded, but of which begin or end were not."""
    steps = aligned.data.steps
    edges = np.array([(one.first_step, one.first_step + one.steps) for one in complete], dtype=np.int64).reshape(-1, 2)
    begun, ended = (np.searchsorted(edge, steps["step"].to_numpy(), side="right") for edge in edges.T)
    return (
        steps.filter(pl.Series(begun == ended))
        .group_by("epoch")
        .agg(
            pl.col("step").min().alias("first_step"),
            pl.col("step").n_unique().cast(pl.Int64).alias("steps"),
            pl.when(pl.col("samples").is_not_null().all()).then(pl.col("samples").sum()).alias("samples"),
        )
    )


def processes(aligned: AlignedRun) -> pl.DataFrame:
    """One row per rank and sample of its processes, with the columns ``PROCESSES``."""
    samples = aligned.clock.shared(aligned.data.counters, ("t_ns",))
    moments = samples.select(unix_s(aligned, "t_ns").alias("unix_s"))
    table = pl.concat([frames.counters(aligned), moments], how="horizontal")
    return table.with_columns(_rate("cpu_s", "rank").alias("busy_cpus")).select(list(PROCESSES))


def gpus(aligned: AlignedRun) -> pl.DataFrame:
    """One row per accelerator and sample, with the columns ``GPUS``."""
    return _of_host(aligned, aligned.data.gpus).select(list(GPUS))


def networks(aligned: AlignedRun) -> pl.DataFrame:
    """One row per network interface and sample, with the columns ``NETWORKS``."""
    rates = [_rate(name, "host", "nic").alias(f"{name}_per_s") for name in ("received_bytes", "sent_bytes")]
    return _of_host(aligned, aligned.data.nics).with_columns(rates).select(list(NETWORKS))


def links(aligned: AlignedRun) -> pl.DataFrame:
    """One row per other host and sample, with the columns ``LINKS``."""
    seconds = [(pl.col(f"{name}_ns") / NS_PER_S).alias(f"{name}_s") for name in ("busy", "rtt")]
    return _of_host(aligned, aligned.data.links).with_columns(seconds).select(list(LINKS))


def _of_host(aligned: AlignedRun, samples: pl.DataFrame) -> pl.DataFrame:
    """``samples`` of hosts with ``unix_s``, which is null where no rank of the host recorded a clock."""
    ranks: dict[str, int] = {}
    for rank, header in sorted(aligned.data.headers.items()):
        ranks.setdefault(header.host, rank)
    own = pl.col("host").replace_strict(ranks, default=-1, return_dtype=pl.Int64).alias("rank")
    shared = aligned.clock.shared(samples.with_columns(own), ("t_ns",))
    return shared.with_columns(unix_s(aligned, "t_ns").alias("unix_s"))


def _rate(name: str, *of: str) -> pl.Expr:
    """Growth of a counter per second since the sample before; null where it fell: it was reset."""
    growth, time_s = pl.col(name).diff().over(*of), pl.col("unix_s").diff().over(*of)
    return pl.when((time_s > 0) & (growth >= 0)).then(growth / time_s)


def summary(aligned: AlignedRun, metrics: RunMetrics) -> pl.DataFrame:
    """One row: what the run was, and its metrics over the steady steps, with the columns ``RUN``."""
    record, rate, step_s = aligned.data.record, metrics.throughput, metrics.step_s
    row: dict[str, object] = {
        "run": metrics.run,
        "name": metrics.name,
        "kind": record.kind,
        "program": program(record).name,
        "status": metrics.status,
        "created_utc": record.created_utc,
        "ended_utc": record.ended_utc,
        "launcher": record.launcher,
        "ranks": metrics.ranks,
        "hosts": metrics.hosts,
        "threads_per_rank": record.threads_per_rank,
        "seed": record.seed,
        "global_batch": metrics.global_batch,
        "steady_steps": metrics.steady.used,
        "samples_per_s": rate.value if rate else None,
        "samples_per_s_low": rate.low if rate else None,
        "samples_per_s_high": rate.high if rate else None,
        "step_median_s": step_s.median if step_s else None,
        "step_p95_s": step_s.p95 if step_s else None,
        **{f"{name}_s": metrics.phases.get(name) for name in NAMES},
        "read_bytes_per_s": metrics.io.read_bytes_per_s,
        "storage_read_bytes_per_s": metrics.io.storage_read_bytes_per_s,
        "overhead_share": metrics.overhead.share,
        "accuracy": metrics.accuracy,
        "clock_error_s": metrics.clock_error_s,
    }
    kinds = {
        **dict.fromkeys(RUN, pl.Float64()),
        **dict.fromkeys(FACTS, pl.String()),
        **dict.fromkeys(COUNTS, pl.Int64()),
    }
    return pl.DataFrame([row], schema={name: kinds[name] for name in RUN}, orient="row")
