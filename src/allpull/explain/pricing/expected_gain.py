"""What a gain counts for where gains are put in order: as it is, and halfway to what is sure where it is a bound."""

from __future__ import annotations

from allpull.schema.results import Interval


def worth(gain: Interval | None) -> float:
    """The speed-up by which ``gain`` is set before or after others; 0 where nothing prices it.

    Of an upper bound it is known what is saved surely and what at most, and nothing of what lies between: the mean of
    both savings of time is then as likely too small as too large (Laplace's rule), and it is what is expected. A bound
    thus stands before a gain that is known only where even half of what is in doubt makes it the larger one.

    >>> worth(Interval(value=1.25, low=1.2, high=1.3))
    1.25
    >>> worth(Interval(value=2.0, low=1.0, high=2.0))  # from nothing to half of the time: a quarter, and 1 / 0.75
    1.3333333333333333
    """
    if gain is None:
        return 0.0
    if not gain.is_at_most or gain.low is None or gain.low <= 0:
        return gain.value
    return 2 / (1 / gain.low + 1 / gain.value)
