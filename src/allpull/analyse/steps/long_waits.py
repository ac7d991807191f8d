"""A few batches that take long, where a loader that is always too slow would be waited for in every step."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from allpull.analyse.steps.grid import Floats

RARE, NEARLY_ALL = 0.1, 0.75  # of the steps of each rank, and of the wait: so much of it in so few is long waits


def long_waits(waited_s: Floats, step_s: float) -> NDArray[np.bool_] | None:
    """Which of the waits for a batch, (steps, ranks), last as long as a usual step of ``step_s``.

    None: there are none, a rank has more than a few, or there is as much waiting elsewhere.

    >>> long_waits(np.where(np.arange(20)[:, None] == [3, 11], 0.5, 0.001), 0.05).any(axis=1).nonzero()
    (array([ 3, 11]),)
    >>> long_waits(np.full((20, 2), 0.1), 0.05)
    """
    long: NDArray[np.bool_] = waited_s >= step_s
    is_rare = long.any() and (long.mean(axis=0) <= RARE).all()
    return long if is_rare and waited_s[long].sum() >= NEARLY_ALL * waited_s.sum() else None
