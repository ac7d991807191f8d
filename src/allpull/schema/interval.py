"""A value with its 95 % confidence interval."""

from __future__ import annotations

from allpull.schema.base import Record


class Interval(Record):
    """A value and its 95 % confidence interval; the bounds are None where the data cannot tell.

    Where ``high`` equals ``value`` and ``low`` is below it, ``value`` is an upper bound and ``low`` what is certain.
    """

    value: float
    low: float | None
    high: float | None

    def includes(self, number: float) -> bool:
        """Whether ``number`` lies within the bounds; False where they are not known.

        >>> Interval(value=0.8, low=0.5, high=1.1).includes(1.0), Interval(value=0.8, low=None, high=None).includes(1.0)
        (True, False)
        """
        return self.low is not None and self.high is not None and self.low <= number <= self.high

    def scaled(self, factor: float) -> Interval:
        """The interval of ``factor`` times this quantity, for a positive ``factor``.

        >>> Interval(value=2.0, low=1.0, high=None).scaled(0.5)
        Interval(value=1.0, low=0.5, high=None)
        """
        low, high = (None if bound is None else bound * factor for bound in (self.low, self.high))
        return Interval(value=self.value * factor, low=low, high=high)

    @property
    def is_at_most(self) -> bool:
        """Whether ``value`` is an upper bound, at which the interval ends, and ``low`` a certain lower bound.

        An estimate lies within its interval; for a quantity that does not vary all three are equal.

        >>> Interval(value=2.4, low=1.0, high=2.4).is_at_most, Interval(value=2.4, low=2.3, high=2.5).is_at_most
        (True, False)
        """
        return self.low is not None and self.high is not None and self.low < self.high <= self.value
