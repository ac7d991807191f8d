"""The learning rate as a function of the step: warm-up, then steps, milestones, a cosine, a polynomial or a constant.

``peak`` is the rate at the end of the warm-up, ``step`` counts from 0, and lengths are in steps and may be fractions.
"""

from __future__ import annotations

import math
from collections.abc import Iterable


def stepped(peak: float, step: int, *, warmup_steps: float, every_steps: float, factor: float = 0.1) -> float:
    """``factor`` times as much after each ``every_steps`` from the first step on (Goyal et al. 2017).

    >>> [stepped(0.4, step, warmup_steps=4, every_steps=10) for step in (0, 1, 3, 9)]
    [0.1, 0.2, 0.4, 0.4]
    >>> [round(stepped(0.4, step, warmup_steps=4, every_steps=10), 12) for step in (10, 19, 20, 29)]
    [0.04, 0.04, 0.004, 0.004]
    """
    if step + 1 <= warmup_steps:
        return _warm(peak, step, warmup_steps)
    return float(peak * factor ** math.floor(step / every_steps))


def milestones(peak: float, step: int, *, warmup_steps: float, at_steps: Iterable[float], factor: float = 0.1) -> float:
    """``factor`` times as much from each of ``at_steps`` on.

    >>> [round(milestones(0.4, step, warmup_steps=2, at_steps=(30, 60, 80)), 12) for step in (0, 1, 29, 30, 60, 89)]
    [0.2, 0.4, 0.4, 0.04, 0.004, 0.0004]
    """
    if step + 1 <= warmup_steps:
        return _warm(peak, step, warmup_steps)
    return float(peak * factor ** sum(step >= milestone for milestone in at_steps))


def cosine(peak: float, step: int, *, warmup_steps: float, steps: float) -> float:
    """Half a cosine, to 0 after ``steps`` (Loshchilov & Hutter 2016).

    >>> [cosine(0.2, step, warmup_steps=10, steps=100) for step in (0, 9, 10, 55, 100)]
    [0.02, 0.2, 0.2, 0.1, 0.0]
    """
    if step + 1 <= warmup_steps:
        return _warm(peak, step, warmup_steps)
    done = _done(step, warmup_steps, steps)
    # to 12 places, so that C libraries that differ in the last bit of a cosine agree
    return round(peak * 0.5 * (1 + math.cos(math.pi * done)), 12)


def polynomial(peak: float, step: int, *, warmup_steps: float, steps: float, power: float = 2.0) -> float:
    """(1 − share done) to ``power``, to 0 after ``steps``; power 2 is MLPerf's ResNet-50, power 1 is linear.

    >>> [polynomial(8.0, step, warmup_steps=4, steps=20) for step in (0, 3, 4, 12, 20)]
    [2.0, 8.0, 8.0, 2.0, 0.0]
    >>> polynomial(8.0, 12, warmup_steps=4, steps=20, power=1)
    4.0
    """
    if step + 1 <= warmup_steps:
        return _warm(peak, step, warmup_steps)
    return float(peak * (1 - max(0.0, _done(step, warmup_steps, steps))) ** power)


def constant(peak: float, step: int, *, warmup_steps: float) -> float:
    """Constant after the warm-up.

    >>> [constant(0.4, step, warmup_steps=4) for step in (0, 3, 4, 1000)]
    [0.1, 0.4, 0.4, 0.4]
    """
    return _warm(peak, step, warmup_steps) if step + 1 <= warmup_steps else peak


def _warm(peak: float, step: int, warmup_steps: float) -> float:
    return peak * (step + 1) / warmup_steps


def _done(step: int, warmup_steps: float, steps: float) -> float:
    """Fraction done after the warm-up, at most 1; slightly below 0 if the warm-up ends within a step."""
    return min(1.0, (step - warmup_steps) / max(1.0, steps - warmup_steps))
