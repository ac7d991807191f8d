"""How much of a run was recorded and from which sources, and what recording cost."""

from __future__ import annotations

import numpy as np
import polars as pl
from numpy.typing import NDArray

from allpull.analyse.io.over_time import energy_of_epochs, epoch_spans
from allpull.analyse.steps.grid import of_steps
from allpull.rundir.read.run import RunData
from allpull.schema.results import Observed, Overhead
from allpull.units import NS_PER_S


def observed(run: RunData, steady: NDArray[np.int64]) -> Observed:
    """How much of ``run`` was recorded, over all steps; ``steady`` are the numbers of its steady ones."""
    steps = run.steps
    boundaries = sorted({_boundary(run, rank) for rank in run.headers})
    passes = of_steps(steps.select("step", "backward_passes"), steady)["backward_passes"].mean()
    samples = None if steps.is_empty() or steps["samples"].null_count() else steps["samples"].cast(pl.Float64).sum()
    return Observed(
        boundary=", ".join(boundaries) or None,
        sources=sorted({source for header in run.headers.values() for source in header.sources}),
        steps=steps["step"].n_unique(),
        steps_made=max((log.end.steps for log in run.events.values() if log.end is not None), default=None),
        epochs=epochs(run),
        samples=None if samples is None else int(samples),
        skipped_steps=steps.select("step", "tag_skipped").filter("tag_skipped")["step"].n_unique(),
        backward_passes=passes if isinstance(passes, float) else None,
        stopped_parts=sorted({one.part for log in run.events.values() for one in log.switched_off if one.part}),
        energy_j_per_epoch=_energy_j_per_epoch(run),
        named=named_s(run, steady),
    )


def _boundary(run: RunData, rank: int) -> str:
    """What ended the last steps of ``rank``."""
    log = run.events.get(rank)
    return log.boundaries[-1].boundary if log is not None and log.boundaries else run.headers[rank].boundary


def epochs(run: RunData) -> int:
    """How many epochs began: marks on the rank that has most, or else the epoch numbers of the steps.

    0 for a program that is observed unedited and has no epochs: a pass over a loader would have left a mark.
    """
    marked = max((len({mark.epoch for mark in log.epochs}) for log in run.events.values()), default=0)
    if not marked and run.record.kind == "run" and not run.steps["epoch"].max():
        return 0
    return marked or run.steps["epoch"].n_unique()


def recording_overhead(records: pl.DataFrame) -> Overhead:
    """Σ recording time ÷ Σ step time over the steps that measured it, of all ranks; None where none did.

    ``records`` has the columns of ``rundir.read.steps.SCHEMA``. A record holds what recording the step before it took,
    so the last step's is missing: one in the length of the run.
    """
    measured = (
        records.select("recording_ns", "begin_ns", "end_ns")
        .drop_nulls("recording_ns")
        .select(
            pl.col("recording_ns").cast(pl.Float64).sum().alias("recording"),
            (pl.col("end_ns") - pl.col("begin_ns")).cast(pl.Float64).sum().alias("wall"),
        )
    )
    recording_ns, wall_ns = measured.row(0)
    return Overhead(share=recording_ns / wall_ns if wall_ns > 0 else None)


def named_s(run: RunData, steady: NDArray[np.int64]) -> dict[str, float]:
    """Seconds per step of each phase that is named, longest first; a step without it counts as 0."""
    if run.named.is_empty():
        return {}
    spent = of_steps(run.named, steady).group_by("name").agg(pl.col("ns").cast(pl.Float64).sum()).sort("ns", "name")
    rank_steps = max(1, of_steps(run.steps.select("step"), steady).height)
    return {name: ns / NS_PER_S / rank_steps for name, ns in reversed(spent.rows())}


def _energy_j_per_epoch(run: RunData) -> float | None:
    energies_j = [epoch.energy_j for epoch in energy_of_epochs(run.gpus, epoch_spans(run.events))]
    known = [energy_j for energy_j in energies_j if energy_j is not None]
    return sum(known) / len(known) if known else None
