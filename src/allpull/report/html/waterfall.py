"""Bars from the ideal speed-up to the measured one that add up: each loss begins where the one before ends.

Factors multiply, so the size of a loss depends on what remains before it; the sum of all bars does not.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

Kind = Literal["ends", "lost", "gained"]

SMALL = 0.002  # of the ideal: a smaller bar is invisible
EXACT = 1e-9  # of the ideal: rounding


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """The loss between two bars: its name, its meaning in plain words, and ``factor``, the share that it leaves."""

    name: str
    plain: str
    factor: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Bar:
    """One bar: of the ideal, of a loss or a gain, or of what is measured; ``begin`` and ``end`` in its unit."""

    name: str
    plain: str
    kind: Kind
    begin: float
    end: float

    @property
    def change(self) -> float:
        """What the bar adds to what is above it; negative for a loss."""
        return self.end - self.begin


def bars(ideal: float, steps: Sequence[Step], measured: float | None = None, *, unexplained: str = "") -> list[Bar]:
    """The bars from ``ideal`` down to ``measured``; None: down to the product of all factors.

    ``Bar.begin`` of a loss is the value before it, and ``end`` the value after it. Bars too small to be seen form one
    bar, named ``other losses``, and the part of ``measured`` that the factors do not explain is one named
    ``unexplained``. So ideal + Σ change = measured.

    >>> steps = [Step(name="input", plain="", factor=0.5)]
    >>> [(bar.name, bar.begin, bar.end) for bar in bars(4.0, steps, 3.0, unexplained="?")]
    [('ideal', 0.0, 4.0), ('input', 4.0, 2.0), ('?', 2.0, 3.0), ('measured', 0.0, 3.0)]
    """
    changes = list(_changes(ideal, steps))
    large = [(step, change) for step, change in changes if abs(change) > SMALL * ideal]
    small = [(step, change) for step, change in changes if EXACT * ideal < abs(change) <= SMALL * ideal]
    drawn = [Bar(name="ideal", plain="", kind="ends", begin=0.0, end=ideal)]
    for step, change in large:
        drawn.append(_bar(step.name, step.plain, drawn[-1].end, change))
    if small:
        named = ", ".join(step.name for step, _ in small)
        drawn.append(_bar("other losses", named, drawn[-1].end, sum(change for _, change in small)))
    left = drawn[-1].end
    if measured is not None and abs(measured - left) > EXACT * ideal:
        drawn.append(_bar(unexplained, "", left, measured - left))
        left = measured
    return [*drawn, Bar(name="measured", plain="", kind="ends", begin=0.0, end=left)]


def _changes(ideal: float, steps: Iterable[Step]) -> Iterable[tuple[Step, float]]:
    left = ideal
    for step in steps:
        yield step, left * (step.factor - 1)
        left *= step.factor


def _bar(name: str, plain: str, before: float, change: float) -> Bar:
    kind: Kind = "lost" if change < 0 else "gained"
    return Bar(name=name, plain=plain, kind=kind, begin=before, end=before + change)
