"""Every reduction of gradients of a run as a table: one row per rank and meeting in backward, whatever records said it.

A step that lists its reductions (``rundir.read.reductions``) has those, another one that of its own ``arrival_ns`` and
``done_ns``. Networks that reduce in one backward pass meet once: DDP waits for all of them at its end.
"""

from __future__ import annotations

import polars as pl

from allpull.rundir.read.reductions import SPENT

KEYS = ("rank", "step", "reduction")
MOMENTS = ("begin_ns", "arrival_ns", "done_ns")
SCHEMA: dict[str, pl.DataType] = {
    **dict.fromkeys(KEYS, pl.Int64()),
    "networks": pl.Categorical(),
    **dict.fromkeys((*MOMENTS, *SPENT), pl.Int64()),
}
"""Columns of reductions, sorted by ``KEYS``: ``reduction`` counts the meetings of a step of a rank from 0; ``networks``
are the numbers of those that it reduced. ``begin_ns`` of the backward pass, and ``SPENT``, are null where they were not
recorded; where no reduction is listed, the table has ``UNLISTED`` alone.
"""
UNLISTED = (*KEYS, "networks", "arrival_ns", "done_ns")
FIRST = "0"
"""The networks of a reduction that is not listed."""


def every_reduction(steps: pl.DataFrame, listed: pl.DataFrame) -> pl.DataFrame:
    """The reductions (columns ``SCHEMA``, or ``UNLISTED``) of ``steps`` (of ``rundir.read.steps``), some ``listed``."""
    moments = steps.select("rank", "step", "arrival_ns", "done_ns")
    if moments["arrival_ns"].null_count() or moments["done_ns"].null_count():  # else a copy of four whole columns
        moments = moments.drop_nulls()
    alone = (
        moments
        if listed.is_empty()
        else moments.join(listed.select("rank", "step").unique(), on=["rank", "step"], how="anti")
    ).select(
        "rank",
        "step",
        pl.lit(0, dtype=pl.Int64).alias("reduction"),
        pl.lit(FIRST, dtype=SCHEMA["networks"]).alias("networks"),
        "arrival_ns",
        "done_ns",
    )
    if listed.is_empty():
        return alone if _in_order(alone) else alone.sort(KEYS)
    met = (
        with_meetings(listed)
        .group_by("rank", "step", "meeting")
        .agg(
            pl.col("network").sort().cast(pl.String).str.join("+").cast(SCHEMA["networks"]).alias("networks"),
            pl.col("begin_ns").first(),
            pl.col("arrival_ns", "done_ns", *SPENT).max(),
        )
        .rename({"meeting": "reduction"})
        .join(steps.select("rank", "step"), on=["rank", "step"], how="semi")
    )
    return pl.concat([alone, met.select(list(SCHEMA))], how="diagonal").select(list(SCHEMA)).sort(KEYS)


def _in_order(alone: pl.DataFrame) -> bool:
    """Whether rows of one reduction a step are sorted by rank and step: as large as a run may be, sorting is a copy."""
    rank, step = pl.col("rank").diff(), pl.col("step").diff()
    return bool(alone.select(((rank > 0) | ((rank == 0) & (step >= 0))).all()).item())


def with_meetings(listed: pl.DataFrame) -> pl.DataFrame:
    """``listed`` reductions with the number of their ``meeting``: those of one backward pass have the same."""
    new = (pl.col("begin_ns") != pl.col("begin_ns").shift(1)).fill_null(value=True).over("rank", "step")
    ordered = listed.sort("rank", "step", "reduction")
    return ordered.with_columns((new.cum_sum().over("rank", "step") - 1).cast(pl.Int64).alias("meeting"))


def matched(reductions: pl.DataFrame, ranks: int) -> pl.DataFrame:
    """``reductions`` with whether the meeting is ``known`` of all ``ranks`` ranks, which reduced the same networks."""
    one_network = reductions["networks"].n_unique() <= 1
    over = ("step",) if reductions["reduction"].max() == 0 else ("step", "reduction")
    alike = pl.len().over(over) == ranks
    if not one_network:
        alike &= pl.col("networks").n_unique().over(over) == 1
    return reductions.with_columns(alike.alias("known"))
