"""Quantiles of Student's t for any degrees of freedom ≥ 1, whole or not, as comparisons of a few runs need them.

The normal approximation of ``analyse.statistics`` is accurate from 5 degrees of freedom on; three runs per side have
2 to 4.
"""

from __future__ import annotations

import math
from statistics import NormalDist

MANY = 1000.0  # degrees of freedom from which the expansion in 1/ν is accurate to nine digits
PRECISION = 1e-11  # of a quantile, relative
TINY = 1e-300  # stands for 0 where Lentz's method would divide by it
MAX_TERMS = 10_000  # of the continued fraction, which needs about √ν of them, and of Newton steps, about ten


def quantile(probability: float, freedom: float) -> float:
    """The quantile of Student's t at ``probability`` (0 to 1, exclusive) with ``freedom`` ≥ 1; ∞: the normal one.

    >>> round(quantile(0.995, 4), 3), round(quantile(0.995, math.inf), 3), quantile(0.5, 2)
    (4.604, 2.576, 0.0)
    """
    if probability == 0.5:
        return 0.0
    if probability < 0.5:
        return -quantile(1 - probability, freedom)
    normal = NormalDist().inv_cdf(probability)
    if freedom >= MANY:
        return _expanded(normal, freedom)
    # Newton's method: the tail probability falls with t and is convex, so a start at the left, such as the normal
    # quantile, never overshoots.
    t = normal
    for _ in range(MAX_TERMS):
        step = (beyond(t, freedom) - 2 * (1 - probability)) / (2 * density(t, freedom))
        t += step
        if abs(step) <= PRECISION * t:
            break
    return t


def density(t: float, freedom: float) -> float:
    """The density of Student's t.

    >>> round(density(0.0, 1) * math.pi, 12)
    1.0
    """
    front = math.lgamma((freedom + 1) / 2) - math.lgamma(freedom / 2)
    return math.exp(front - (freedom + 1) / 2 * math.log1p(t * t / freedom)) / math.sqrt(freedom * math.pi)


def beyond(t: float, freedom: float) -> float:
    """The probability that \\|T\\| exceeds ``t`` ≥ 0: I_x(ν/2, ½) with x = ν/(ν + t²) (DLMF 8.17; NIST 2010).

    >>> beyond(0.0, 3)
    1.0
    """
    x = freedom / (freedom + t * t)
    return _incomplete_beta(x, freedom / 2, 0.5)


def _expanded(z: float, freedom: float) -> float:
    """The t quantile from the normal one, in powers of 1/ν (Abramowitz & Stegun 1964, 26.7.5)."""
    return z + (z**3 + z) / (4 * freedom) + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * freedom**2)


def _incomplete_beta(x: float, a: float, b: float) -> float:
    """The regularised incomplete beta function I_x(a, b) by its continued fraction (DLMF 8.17.22)."""
    if x <= 0 or x >= 1:
        return float(x >= 1)
    if x > (a + 1) / (a + b + 2):
        return 1 - _incomplete_beta(1 - x, b, a)
    front = math.exp(math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b) + a * math.log(x) + b * math.log1p(-x))
    return front * _fraction(x, a, b) / a


def _fraction(x: float, a: float, b: float) -> float:
    """1/(1 + d₁/(1 + d₂/(1 + …))) of DLMF 8.17.22, by the method of Lentz (1976)."""
    value, c, d = 1.0, 1.0, 0.0  # the method needs a whole part other than 0: 1, subtracted at the end
    for term in range(MAX_TERMS):
        m = term // 2
        if term == 0:
            coefficient = 1.0
        elif term % 2 == 0:
            coefficient = m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m))
        else:
            coefficient = -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1))
        d = 1 / (1 + coefficient * d or TINY)
        c = 1 + coefficient / c or TINY
        value *= c * d
        if abs(1 - c * d) < PRECISION and term:
            break
    return value - 1
