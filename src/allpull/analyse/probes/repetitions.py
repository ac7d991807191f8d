"""Summarise the repetitions of a probe: the median, and the range that holds nine of ten."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from allpull.schema.probed import Spread


def spread(values: Sequence[float]) -> Spread:
    """Median, 5 % and 95 % quantiles of at least one value.

    >>> spread([1.0, 2.0, 4.0]).median
    2.0
    """
    low, median, high = (float(one) for one in np.quantile(values, [0.05, 0.5, 0.95]))
    return Spread(median=median, low=low, high=high, count=len(values))


def scaled(one: Spread, factor: float) -> Spread:
    """``one`` in other units: all values times ``factor``."""
    return Spread(median=one.median * factor, low=one.low * factor, high=one.high * factor, count=one.count)
