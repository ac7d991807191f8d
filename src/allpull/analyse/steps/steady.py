"""Find the steps worth averaging.

Records carry tags of unusual steps: warm-up, the first batch of an epoch, a step with an evaluation or a checkpoint.
Ranks wait for each other in every step, so a step that is unusual on one rank is unusual for the job.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import polars as pl
from numpy.typing import NDArray

from allpull.rundir.read.steps import OTHER_TAG, TAGS

NOT_ON_ALL_RANKS = "not_on_all_ranks"
"""Reason of a step that some rank did not record: it was killed, thinned its records, or left none."""

RAGGED = "ragged"
"""Reason of a step with fewer samples than most: the last of an epoch, whose rate differs."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SteadySteps:
    """Every step of a job, and whether rates rest on it.

    ``steps`` int64, shape (steps,), ascending; ``used`` bool, the same shape; ``left_out`` counts the others, each
    under its first reason: a tag, in the order of the schema, ``not_on_all_ranks`` or ``ragged``.
    """

    steps: NDArray[np.int64]
    used: NDArray[np.bool_]
    left_out: dict[str, int]


def steady_steps(records: pl.DataFrame, ranks: int) -> SteadySteps:
    """Which steps of a job of ``ranks`` ranks are steady; ``records``: columns of ``rundir.read.steps.SCHEMA``.

    A step is left out if any rank tagged it, if not all ranks recorded it, or if it had fewer samples than others.
    """
    tags = (*TAGS, OTHER_TAG)
    full = pl.col("samples").mode().max()  # not the maximum: an interrupted step may have had its batch twice
    by_step = (
        records.lazy()
        .group_by("step")
        .agg(
            *(pl.col(f"tag_{tag}").any() for tag in tags),
            (pl.len() < ranks).alias(f"tag_{NOT_ON_ALL_RANKS}"),
            pl.col("samples").sum().alias("samples"),
        )
        .with_columns((pl.col("samples") < full).fill_null(value=False).alias(f"tag_{RAGGED}"))
        .sort("step")
        .collect()
    )
    left_out: dict[str, int] = {}
    used = np.ones(by_step.height, dtype=np.bool_)
    for reason in (*tags, NOT_ON_ALL_RANKS, RAGGED):
        hit = by_step[f"tag_{reason}"].to_numpy() & used
        used &= ~hit
        if hit.any():
            left_out[reason] = int(hit.sum())
    return SteadySteps(steps=by_step["step"].to_numpy(), used=used, left_out=left_out)
