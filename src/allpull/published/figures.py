"""Numbers as they were printed: each is the interval of all values that round to it."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from decimal import Decimal

MAX_CHARACTERS = 40
LARGEST = 10**18
_NUMBER = r"([0-9]*\.?[0-9]+(?:[eE][-+]?[0-9]{1,2})?)"
_NUMBERS = re.compile(rf"\s*~?{_NUMBER}(?:-{_NUMBER})?\s*")


@dataclass(frozen=True, slots=True)
class Figure:
    """All positive values from ``low`` to ``high`` that a printed number may stand for.

    >>> Figure.printed("0.99") * Figure.printed("0.5")
    Figure(low=0.44325, high=0.54725)
    """

    low: float
    high: float
    stated: float | None = field(default=None, repr=False, compare=False)
    """The number itself; None: a range, or the result of a calculation."""

    @classmethod
    def printed(cls, text: str) -> Figure:
        """The values that round to ``text``, or to something in the range "60-64"; a leading "~" is read over.

        Raises:
            ValueError: it is no positive decimal number, and no range of them.

        >>> Figure.printed("~1.8"), Figure.printed("740"), Figure.printed("60-64")
        (Figure(low=1.75, high=1.85), Figure(low=739.5, high=740.5), Figure(low=59.5, high=64.5))
        """
        if len(text) > MAX_CHARACTERS or not (match := _NUMBERS.fullmatch(text)):
            raise ValueError(f"'{text[:MAX_CHARACTERS]}' is no positive number")
        ends = [Decimal(digits) for digits in match.groups() if digits is not None]
        halves = [Decimal((0, (5,), int(end.as_tuple().exponent) - 1)) for end in ends]
        low, high = max(ends[0] - halves[0], Decimal(0)), ends[-1] + halves[-1]
        if not 0 < ends[0] <= ends[-1] < LARGEST:
            raise ValueError(f"'{text}' is no positive number below {LARGEST:g}")
        return cls(float(low), float(high), float(ends[0]) if len(ends) == 1 else None)

    @classmethod
    def exactly(cls, value: float) -> Figure:
        """A number that is not rounded."""
        return cls(value, value)

    def __mul__(self, other: Figure) -> Figure:
        return Figure(self.low * other.low, self.high * other.high)

    def __truediv__(self, other: Figure) -> Figure:
        return Figure(self.low / other.high, self.high / other.low) if other.low else Figure(0.0, float("inf"))

    def meets(self, other: Figure) -> bool:
        """Whether some value fits both.

        >>> (Figure.printed("0.99") * Figure.printed("0.33")).meets(Figure.printed("0.34"))
        False
        """
        return self.low <= other.high and other.low <= self.high

    @property
    def middle(self) -> float:
        """The number that is stated, or halfway between the two ends."""
        return (self.low + self.high) / 2 if self.stated is None else self.stated


def hull(figures: list[Figure]) -> Figure:
    """The smallest interval that holds all ``figures``, of which there is one at least."""
    return Figure(min(one.low for one in figures), max(one.high for one in figures))
