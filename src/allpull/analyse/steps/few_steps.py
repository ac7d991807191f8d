"""Time that a few steps hold nearly all of: a few batches that take long, or what a program does once an epoch."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from allpull.analyse.steps.grid import Floats

RARE, NEARLY_ALL = 0.1, 0.75  # of the steps of each rank, and of the time


def in_few_steps(seconds: Floats, step_s: float) -> NDArray[np.bool_] | None:
    """Where ``seconds`` (steps, ranks) are as long as a usual step of ``step_s``, in few steps of each rank.

    None: there are none, a rank has more than a few, or there is as much elsewhere.

    >>> in_few_steps(np.where(np.arange(20)[:, None] == [3, 11], 0.5, 0.001), 0.05).any(axis=1).nonzero()
    (array([ 3, 11]),)
    >>> in_few_steps(np.full((20, 2), 0.1), 0.05)
    """
    long: NDArray[np.bool_] = seconds >= step_s
    is_rare = long.any() and (long.mean(axis=0) <= RARE).all()
    return long if is_rare and seconds[long].sum() >= NEARLY_ALL * seconds.sum() else None
