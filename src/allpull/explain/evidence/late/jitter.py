"""The jitter that equal ranks have: how late the last of N is by chance alone, and whether delays have a lower end.

Some rank is always last. Of N equal ranks whose steps vary normally by σ it is late by σ·m(N), where m is the expected
largest of N standard normal numbers: 1.4 for 8 ranks, 2.3 for 64, 3.2 for 1,024. σ is taken from the lower half of the
deviations alone, which ranks that are late in turn do not change.

Delays have a lower end, below which no step is undisturbed: their lower half is short and steep. Unequal work has none:
it deviates as far downwards as upwards. The distances of the quantiles 5 % and 25 % from the median tell which it is:
their ratio is 1.6 for exponential delays, 1.8 for equally distributed ones, 2.4 for normal numbers. How well the
quantiles are known depends on the number of deviations, and not of ranks: of 360 normal ones the ratio is 2.4 ± 0.2.
"""

from __future__ import annotations

from dataclasses import dataclass
from statistics import NormalDist

import numpy as np

from allpull.analyse.steps.grid import Floats

QUARTILE_SD = 0.6745  # of a normal distribution, from its median
BOUNDED, NORMAL = 2.0, 2.3  # ratio of the two distances: delays with a lower end, numbers without one
LEAST_RANKS = 8  # whose last one is late by so little that it does not count
COMPARABLE = 3  # ranks: of two, each mirrors the other
LEAST_VALUES = 200  # deviations: quantiles of fewer scatter by as much as delays and normal numbers differ


@dataclass(frozen=True, slots=True, kw_only=True)
class Jitter:
    """How equal ranks vary: standard deviation ``sd_s`` in s, and how ``symmetric`` that is, 0 (delays) to 1."""

    sd_s: float
    symmetric: float

    def last_s(self, ranks: int) -> float:
        """How late the last of ``ranks`` equal ranks is by chance alone."""
        return expected_largest(ranks) * self.sd_s


def jitter(deviations_s: Floats) -> Jitter:
    """The jitter of ``deviations_s`` (steps, ranks), of each rank from its own usual step."""
    across_s = deviations_s
    if deviations_s.shape[1] > 2:  # of two, each mirrors the other
        across_s = deviations_s - np.median(deviations_s, axis=1, keepdims=True)
    quarter, middle = np.quantile(across_s, [0.25, 0.5]).tolist()
    return Jitter(sd_s=(middle - quarter) / QUARTILE_SD, symmetric=_symmetric(deviations_s))


def _symmetric(deviations_s: Floats) -> float:
    if deviations_s.shape[1] < COMPARABLE or deviations_s.size < LEAST_VALUES:
        return 0.0
    low, quarter, middle = np.quantile(deviations_s, [0.05, 0.25, 0.5]).tolist()
    if middle <= quarter:
        return 0.0
    return float(np.clip(((middle - low) / (middle - quarter) - BOUNDED) / (NORMAL - BOUNDED), 0.0, 1.0))


def expected_largest(ranks: int) -> float:
    """The expected largest of ``ranks`` standard normal numbers, to 1 % from 4 ranks on (Blom 1958).

    >>> [round(expected_largest(ranks), 2) for ranks in (1, 2, 8, 64, 1024)]
    [0.0, 0.59, 1.43, 2.34, 3.23]
    """
    return NormalDist().inv_cdf((ranks - 0.375) / (ranks + 0.25))
