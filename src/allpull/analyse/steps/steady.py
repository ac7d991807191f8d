"""Find the steps worth averaging.

Records carry tags that say why a step is odd: warm-up, the first batch of an epoch, a step with an evaluation or a
checkpoint in it. Ranks wait for each other in every step, so a step that is odd on one rank is odd for the job.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import polars as pl
from numpy.typing import NDArray

from allpull.rundir.read.steps import OTHER_TAG, TAGS

NOT_ON_ALL_RANKS = "not_on_all_ranks"
"""Reason of a step that some rank did not record: it was killed before, thinned its records, or left none."""

RAGGED = "ragged"
"""Reason of a step on fewer samples than most have: the last of an epoch, whose rate is another."""


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
    """Which steps of a job of ``ranks`` ranks are steady, from records with the columns of ``rundir.records.SCHEMA``.

    A step is left out if any rank tagged it, if not all ranks recorded it, or if it had fewer samples than others.
    """
    tags = (*TAGS, OTHER_TAG)
    full = pl.col("samples").mode().max()  # not the most: a step that was interrupted may have had its batch twice
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
