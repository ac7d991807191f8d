"""The gain to expect, by which findings are ordered: half of the uncertain part of an upper bound counts."""

from __future__ import annotations

from allpull.schema.results import Interval


def expected_gain(gain: Interval | None) -> float:
    """The speed-up by which findings are ordered; 0 where there is no price.

    Of an upper bound the least and the largest saving of time are known, and nothing in between: their mean is as
    likely too small as too large (Laplace's rule), and is what is expected. A bound thus precedes a known gain only
    where half of its uncertain part already makes it the larger one.

    >>> expected_gain(Interval(value=1.25, low=1.2, high=1.3))
    1.25
    >>> expected_gain(Interval(value=2.0, low=1.0, high=2.0))  # 0 to 1/2 of the time: 1/4 is expected
    1.3333333333333333
    """
    if gain is None:
        return 0.0
    if not gain.is_at_most or gain.low is None or gain.low <= 0:
        return gain.value
    return 2 / (1 / gain.low + 1 / gain.value)
