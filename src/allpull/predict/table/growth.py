"""How the step of a series grows with its ranks, of a published or measured table that has rates alone.

A sample costs one rank ``t(N) = N ÷ rate`` seconds. With the work of a rank fixed (weak scaling), what grows is the
exchange and the waiting: ``t(N) = base + per_doubling · log2 N``, the form of trees, of halving and doubling, and of
the expected maximum over ranks of times with an exponential tail. Where ranks became faster, it does not grow. The
bandwidth term of a ring saturates, and its latency term grows with N; rates cannot tell which of them a machine is
near, and the interval covers both (``series_errors``).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from allpull.published.figures import Figure


@dataclass(frozen=True, slots=True, kw_only=True)
class Size:
    """One size of a series: its ranks, the rate of the whole job (of any unit), and the hosts where they are known."""

    ranks: int
    rate: Figure
    hosts: int | None = None
    owner: str = ""
    """Whose measurement it is."""

    @property
    def per_sample(self) -> float:
        """Seconds of a rank per sample, in units of the rate."""
        return self.ranks / self.rate.middle


@dataclass(frozen=True, slots=True, kw_only=True)
class Growth:
    """A fit to the calibrated sizes; ``loss`` is the share of its rate that a rank loses per doubling, so far.

    ``loss`` is the largest that the rounding of the rates allows, since an interval is made of it.
    """

    base: float
    per_doubling: float
    loss: float
    largest: int

    def rate(self, ranks: float) -> float:
        """The rate of a job of ``ranks`` ranks."""
        return ranks / (self.base + self.per_doubling * math.log2(ranks))

    def doublings(self, ranks: float) -> float:
        """How far ``ranks`` is beyond the largest calibrated size."""
        return math.log2(ranks / self.largest)


def fitted(sizes: Sequence[Size]) -> Growth:
    """The growth of two or more ``sizes``, by least squares of relative residuals.

    >>> sizes = [Size(ranks=n, rate=Figure.exactly(n / (1 + 0.1 * k))) for k, n in enumerate((1, 2, 4))]
    >>> growth = fitted(sizes)
    >>> round(growth.base, 6), round(growth.per_doubling, 6), round(growth.rate(8), 6)
    (1.0, 0.1, 6.153846)
    """
    ordered = sorted(sizes, key=lambda one: one.ranks)
    smallest, largest = ordered[0], ordered[-1]
    times = np.array([one.per_sample for one in ordered])
    design = np.column_stack([np.ones(len(ordered)), np.log2([one.ranks for one in ordered])])
    (base, per_doubling), *_ = np.linalg.lstsq(design / times[:, None], np.ones(len(ordered)), rcond=None)
    if per_doubling < 0 or base <= 0:
        base, per_doubling = largest.per_sample, 0.0
    kept = (largest.rate.low / largest.ranks) / (smallest.rate.high / smallest.ranks)
    doublings = math.log2(largest.ranks / smallest.ranks)
    loss = max(0.0, -math.log(kept) / doublings) if kept > 0 else math.inf
    return Growth(base=float(base), per_doubling=float(per_doubling), loss=loss, largest=largest.ranks)
