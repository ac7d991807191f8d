"""Time that a few steps hold nearly all of: a few batches that take long, or what a program does once an epoch."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from allpull.analyse.steps.grid import Floats

RARE, NEARLY_ALL = 0.1, 0.75  # of the steps of each rank, and of the time
LEAST_S = 1e-4  # nothing shorter is long, whatever the clocks of hosts say of a step


def in_few_steps(seconds: Floats, walls_s: Floats) -> NDArray[np.bool_] | None:
    """Where ``seconds`` (steps, ranks) are as long as the rest of a usual step, in few steps of each rank.

    ``walls_s`` (steps,): how long steps take; each waits for the rank with most of ``seconds``. None: there are none, a
    rank has more than a few, or there is as much elsewhere.

    >>> seconds = np.where(np.arange(20)[:, None] == [3, 11], 0.5, 0.001)
    >>> in_few_steps(seconds, 0.05 + seconds.max(axis=1)).any(axis=1).nonzero()
    (array([ 3, 11]),)
    >>> in_few_steps(np.full((20, 2), 0.1), np.full(20, 0.15))
    """
    if not seconds.size:
        return None
    long: NDArray[np.bool_] = seconds >= max(float(np.median(walls_s - seconds.max(axis=1))), LEAST_S)
    is_rare = long.any() and (long.mean(axis=0) <= RARE).all()
    return long if is_rare and seconds[long].sum() >= NEARLY_ALL * seconds.sum() else None
