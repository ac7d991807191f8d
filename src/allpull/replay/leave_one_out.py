"""Compare a rank with the others: the median of a row without one of its members."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from allpull.analyse.steps.grid import Floats
from allpull.replay.window import Bools


def others_median(values: Floats, rank: NDArray[np.intp], present: Bools) -> Floats:
    """The median of each row over the ranks ``present`` without ``rank``; 0 where there are none.

    ``values`` and ``present`` have shape (rows, ranks), ``rank`` (rows,).

    >>> others_median(np.array([[1.0, 2.0, 3.0, 40.0]]), np.array([3]), np.ones((1, 4), dtype=bool))
    array([2.])
    """
    rows = np.arange(rank.size)
    others = present.copy()
    others[rows, rank] = False
    count = others.sum(axis=1)
    ordered = np.sort(np.where(others, values, np.inf), axis=1)
    low, high = np.maximum(count - 1, 0) // 2, count // 2
    with np.errstate(invalid="ignore"):
        medians: Floats = np.where(count > 0, (ordered[rows, low] + ordered[rows, high]) / 2, 0)
    return medians


def beyond_others(values: Floats) -> Floats:
    """By how much each value exceeds the median of the others in its row, shape (rows, ranks); two ranks or more.

    >>> beyond_others(np.array([[1.0, 2.0, 3.0, 40.0]]))
    array([[-2., -1.,  1., 38.]])
    """
    others = values.shape[1] - 1
    ordered = np.sort(values, axis=1)

    def without(place: int) -> Floats:
        median: Floats = np.where(
            values > ordered[:, place, None], ordered[:, place, None], ordered[:, place + 1, None]
        )
        return median

    return values - (without((others - 1) // 2) + without(others // 2)) / 2
