"""In how many steps of a run each rank reduced gradients, where all of them were recorded."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from allpull.analyse.aligned import AlignedRun

UNCOUNTED = {"step records", "observation off", "rank count", "recorded"}
"""Kinds of gaps with which records do not show how many steps a rank made."""


def reducing_steps(aligned: AlignedRun) -> NDArray[np.int64] | None:
    """The steps of each rank that reduced gradients, (ranks,); None: some rank was not recorded from begin to end."""
    run = aligned.data
    logs = [run.events.get(rank) for rank in range(run.record.ranks)]
    if not aligned.complete or any(log is None or log.end is None for log in logs):
        return None
    if any(gap.kind in UNCOUNTED for gap in run.gaps):
        return None
    reduced = aligned.reductions.select("rank", "step").unique()
    return np.bincount(reduced["rank"].to_numpy(), minlength=run.record.ranks)
