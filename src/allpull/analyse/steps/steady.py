"""Find the steps worth averaging.

Records carry tags of unusual steps: warm-up, the first batch of an epoch, a step with an evaluation or a checkpoint.
Ranks wait for each other in every step, so a step that is unusual on one rank is unusual for the job. Where most steps
have an evaluation, it is what steps of that program consist of: a teacher that is asked, labels that a network gives.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import polars as pl
from numpy.typing import NDArray

from allpull.rundir.read.steps import OTHER_TAG, TAGS

FIRST_BATCH, EVALUATION = "first_batch", "evaluation"

NOT_ON_ALL_RANKS = "not_on_all_ranks"
"""Reason of a step that some rank did not record: it was killed, thinned its records, or left none."""

LAST_OF_SOME = "last_of_some_ranks"
"""Reason of the last step of a rank that has fewer than others, and waited there until these ended, as `Join` does."""

RAGGED = "ragged"
"""Reason of a step whose batch was cut short: it has fewer samples than the step before it, and than that after it.

Of a pass over the data that is the last batch. Steps with fewer samples than the largest are not: sizes may grow.
"""

SELDOM = 0.5  # of the steps: what more of them have is usual
VARYING = 0.05  # of steps: where so many have more samples than that before, and fewer, batches are not cut but vary
SHORTEST = 2  # steps: one alone has no neighbour


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SteadySteps:
    """Every step of a job, and whether rates rest on it.

    ``steps`` int64, shape (steps,), ascending; ``used`` bool, the same shape; ``left_out`` counts the others, each
    under its first reason: a tag, in the order of the schema, ``not_on_all_ranks``, ``last_of_some_ranks`` or
    ``ragged``.
    """

    steps: NDArray[np.int64]
    used: NDArray[np.bool_]
    left_out: dict[str, int]


def steady_steps(records: pl.DataFrame, ranks: int) -> SteadySteps:
    """Which steps of a job of ``ranks`` ranks are steady; ``records``: columns of ``rundir.read.steps.SCHEMA``.

    A step is left out if any rank tagged it, if not all ranks recorded it, or if its batch was cut short; but not for
    an evaluation, where most steps have one.
    """
    tags = (*TAGS, OTHER_TAG)
    by_step = (
        records.lazy()
        .group_by("step")
        .agg(
            *(pl.col(f"tag_{tag}").any() for tag in tags),
            (pl.len() < ranks).alias(f"tag_{NOT_ON_ALL_RANKS}"),
            pl.col("samples").sum(),
            (pl.col("samples").null_count() > 0).alias("uncounted"),
            pl.col("epoch").max(),
        )
        .sort("step")
        .collect()
    )
    ends = pl.col("step").is_in(early_ends(records))
    by_step = by_step.with_columns(pl.Series(f"tag_{RAGGED}", _ragged(by_step)), ends.alias(f"tag_{LAST_OF_SOME}"))
    left_out: dict[str, int] = {}
    used = np.ones(by_step.height, dtype=np.bool_)
    for reason in (*tags, NOT_ON_ALL_RANKS, LAST_OF_SOME, RAGGED):
        hit = by_step[f"tag_{reason}"].to_numpy() & used
        if reason == EVALUATION and hit.sum() > SELDOM * used.sum():
            continue
        used &= ~hit
        if hit.any():
            left_out[reason] = int(hit.sum())
    return SteadySteps(steps=by_step["step"].to_numpy(), used=used, left_out=left_out)


def early_ends(records: pl.DataFrame) -> list[int]:
    """The last steps of ranks that have fewer than others and went on in it while these took more, ascending.

    The step lasts longer there than it and the next one together on any other rank: no synchronous training does that,
    but ranks that wait for the others at their end (``Join``) do.
    """
    last = records.group_by("rank").agg(pl.col("step").max().alias("last"))
    ends = []
    for step in last.filter(pl.col("last") < pl.col("last").max())["last"].unique().sort():
        near = records.filter(pl.col("step").is_between(step, step + 1))
        walls = near.group_by("rank").agg((pl.col("end_ns") - pl.col("begin_ns")).sum().alias("ns"), pl.len())
        walls = walls.join(last, on="rank")
        longest = walls.filter(pl.col("last") == step)["ns"].max()
        if (walls.filter(pl.col("len") > 1)["ns"] < longest).all() and walls["len"].max() != 1:
            ends.append(step)
    return ends


def _ragged(by_step: pl.DataFrame) -> NDArray[np.bool_]:
    """Which steps had a batch that was cut short, (steps,); ``by_step``: rows of steps, with their tags and samples.

    Steps are compared with their neighbours in the same pass over the data, so sizes may grow from pass to pass, or
    within one. Where no pass is known, one ends at each step that has fewer samples than both of its neighbours. Sizes
    that go up and down within passes vary by design, as with a budget of tokens or buckets of images: none is cut.
    """
    ragged = np.zeros(by_step.height, dtype=np.bool_)
    unusual = [f"tag_{tag}" for tag in (*TAGS, OTHER_TAG) if tag != FIRST_BATCH]  # may have had a batch twice, or none
    plain = ~by_step.select(pl.any_horizontal(*unusual, f"tag_{NOT_ON_ALL_RANKS}", "uncounted")).to_series().to_numpy()
    first, new_epoch = by_step[f"tag_{FIRST_BATCH}"].to_numpy(), by_step["epoch"].diff().fill_null(0).to_numpy() != 0
    numbers = np.cumsum(first | new_epoch)[plain]
    samples = by_step["samples"].to_numpy()[plain]
    if samples.size < SHORTEST:
        return ragged
    if not (first.any() or new_epoch.any()):
        numbers = np.cumsum(np.concatenate(([False], _dips(samples, numbers)[:-1])))
    same = np.diff(numbers) == 0
    change = np.diff(samples)[same]
    varying = min(np.count_nonzero(change > 0), np.count_nonzero(change < 0)) > max(1, VARYING * samples.size)
    if not varying:
        ragged[plain] = _dips(samples, numbers)
    return ragged


def _dips(samples: NDArray[np.int64], numbers: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Steps with fewer ``samples`` than the one before, and than the one after if there is one, of the same pass."""
    same = np.diff(numbers) == 0
    change = np.diff(samples)
    falls = np.concatenate(([False], same & (change < 0)))
    rises = np.concatenate((~same | (change > 0), [True]))
    return falls & rises
