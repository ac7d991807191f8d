"""What recording cost the ranks, by their own measurement."""

from __future__ import annotations

import polars as pl

from allpull.schema.results import Overhead


def recording(records: pl.DataFrame) -> Overhead:
    """Σ recording time ÷ Σ step time over the steps that measured it, of all ranks; None where none did.

    ``records`` has the columns of ``rundir.records.SCHEMA``. A record holds what recording the step before it took,
    so the last step's is missing: one in the length of the run.
    """
    measured = records.drop_nulls("recording_ns").select(
        pl.col("recording_ns").cast(pl.Float64).sum().alias("recording"),
        (pl.col("end_ns") - pl.col("begin_ns")).cast(pl.Float64).sum().alias("wall"),
    )
    recording_ns, wall_ns = measured.row(0)
    return Overhead(share=recording_ns / wall_ns if wall_ns > 0 else None)
