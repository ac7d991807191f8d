"""How many steps of a common training each rank of a run made, where all of them were recorded."""

from __future__ import annotations

import numpy as np
import polars as pl
from numpy.typing import NDArray

from allpull.analyse.aligned import AlignedRun

UNCOUNTED = {"step records", "observation off", "rank count", "recorded"}
"""Kinds of gaps with which records do not show how many steps a rank made."""


def reducing_steps(aligned: AlignedRun) -> NDArray[np.int64] | None:
    """The steps of each rank in which gradients were reduced, (ranks,); None: some rank was not recorded to its end.

    They go from the first step whose reduction is known to the last. A step between them without one is counted: its
    reduction was not recorded, as of layers that did not run, or is not due in each step, as in local SGD. A rank with
    such steps may also have them at its begin and end, so there its number is taken to be up to the most of a rank.
    """
    run = aligned.data
    ranks = run.record.ranks
    logs = [run.events.get(rank) for rank in range(ranks)]
    if not aligned.complete or any(log is None or log.end is None for log in logs):
        return None
    if any(gap.kind in UNCOUNTED for gap in run.gaps):
        return None
    of_rank = pl.col("step").n_unique().alias("known"), pl.col("step").min().alias("first"), pl.col("step").max()
    known, first, last = np.zeros(ranks, np.int64), np.zeros(ranks, np.int64), np.full(ranks, -1)
    for rank, *ends in aligned.reductions.group_by("rank").agg(*of_rank).iter_rows():
        known[rank], first[rank], last[rank] = ends
    rank, step = (aligned.steps[name].to_numpy() for name in ("rank", "step"))
    surely = np.bincount(rank[(first[rank] <= step) & (step <= last[rank])], minlength=ranks)
    at_most = np.where((known == 0) | (surely > known), np.bincount(rank, minlength=ranks), surely)
    counts: NDArray[np.int64] = np.minimum(at_most, surely.max())
    return counts
