"""How a loss goes over the steps of a run: it begins or ends between two, grows little by little, or neither.

None of that is chance, so intervals leave it out: steps with and without the loss are resampled among themselves, and
of a loss that grows what varies about the line.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from allpull.analyse.statistics import MIN_POINTS, change_point, long_run_variance

NOT_YET = 0.5  # of a loss: what was there before is another loss, or none
OVER = 0.1  # of a loss: with less of it left, it has ended
GROWN = 2.0  # times a loss: between its first and last step, less is told well enough by its mean
JUMP = 5.0  # standard errors between two levels: of the most different ones, far beyond chance
SHORTEST = 2 * MIN_POINTS  # steps: a shorter while is one disturbance
MOST = 0.9  # of the steps: what is there for a while is there in so many of these, and not in so many before and after

Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Course:
    """How a loss, ``series`` (n,), goes over n steps.

    ``there``: the rows in which it is there, where it begins or ends between the first and the last step. ``line``
    (n,): a straight line through it, where it grows or shrinks little by little. At most one of both is not None.
    """

    series: Floats
    there: slice | None
    line: Floats | None

    @property
    def varying(self) -> Floats:
        """The series about the line, with the mean that it has, (n,)."""
        return self.series if self.line is None else self.series - self.line + self.line.mean()

    @property
    def apart(self) -> Bools | None:
        """The steps, (n,), in which it is there; None: it does not begin or end."""
        if self.there is None:
            return None
        apart = np.zeros(self.series.size, dtype=np.bool_)
        apart[self.there] = True
        return apart

    @property
    def ends(self) -> tuple[float, float] | None:
        """The loss in the first and in the last step, by the line, at least 0; None: there is no line."""
        return None if self.line is None else (max(0.0, float(self.line[0])), max(0.0, float(self.line[-1])))


def course(series: Floats) -> Course:
    """How a loss, ``series`` (n,), goes over the steps."""
    line = line_of(series)
    return Course(series=series, line=line, there=None if line is not None else when_there(series))


def when_there(series: Floats) -> slice | None:
    """The steps in which a loss, ``series`` (n,), is there that begins or ends between the first and the last step.

    None: it always is, or never, or it comes and goes. Its median has to change, and its mean by far more than stalls
    now and then can move it: by ``JUMP`` standard errors, as of independent steps. If it begins and ends, it has to be
    there in ``MOST`` of the steps between, and in as few of those before, and after.

    >>> when_there(np.array([0.0, 0.1] * 8 + [5.0, 4.0] * 8))
    slice(16, 32, None)
    >>> when_there(np.array([0.0, 0.1] * 8 + [5.0, 4.0] * 8 + [0.1] * 10))
    slice(16, 32, None)
    """
    cut = change_point(series)
    if cut is None:
        return None
    if (between := _for_a_while(series, cut)) is not None:
        return between
    sides = series[:cut], series[cut:]
    (before, after), means = [float(np.median(side)) for side in sides], [float(side.mean()) for side in sides]
    variances = [float(side.var()) / side.size for side in sides]
    if not abs(means[1] - means[0]) > JUMP * math.sqrt(sum(variances)):
        return None
    if after > 0 and before < NOT_YET * after and means[0] < NOT_YET * means[1]:
        return slice(cut, series.size)
    return slice(0, cut) if before > 0 and after < OVER * before and means[1] < OVER * means[0] else None


def _for_a_while(series: Floats, cut: int) -> slice | None:
    """The steps between ``cut`` and another change of level, if a loss, ``series`` (n,), begins and ends with them."""
    before, after = change_point(series[:cut]), change_point(series[cut:])
    stretches = [slice(cut, cut + after)] if after is not None else []
    stretches += [slice(before, cut)] if before is not None else []
    stretches = [one for one in stretches if one.stop - one.start >= SHORTEST]
    for there in sorted(stretches, key=lambda one: -float(series[one].mean())):
        inside, sides = series[there], (series[: there.start], series[there.stop :])
        half, error = NOT_YET * float(np.median(inside)), math.sqrt(float(inside.var()) / inside.size)
        is_there = half > 0 and float((inside > half).mean()) >= MOST
        is_gone = all((side > half).mean() <= 1 - MOST and side.mean() < OVER * inside.mean() for side in sides)
        if is_there and is_gone and half > JUMP * error:
            return there
    return None


def line_of(series: Floats) -> Floats | None:
    """The straight line, (n,), through a loss, ``series`` (n,), that grows or shrinks little by little.

    None: it does not by a factor of ``GROWN``, or by ``JUMP`` standard errors of what the line rises by, its slope
    times its length (Draper & Smith 1998, §1.4), or two levels fit as well (``change_point``).

    >>> line_of(np.arange(40) + 0.1 * np.tile([1.0, -1.0], 20)) is None
    False
    >>> line_of(np.array([0.0, 0.1] * 20 + [5.0, 4.0] * 20)) is None
    True
    """
    cut, steps = change_point(series), np.arange(series.size)
    if cut is None:
        return None
    line: Floats = np.polynomial.Polynomial.fit(steps, series, 1)(steps)
    noise, rise = series - line, abs(float(line[-1] - line[0]))
    around_levels = sum(float(((side - side.mean()) ** 2).sum()) for side in (series[:cut], series[cut:]))
    error = math.sqrt(12 / series.size * long_run_variance(noise))
    low, high = sorted((float(line[0]), float(line[-1])))
    is_line = float((noise**2).sum()) < around_levels and rise > JUMP * error and high >= GROWN * max(low, 0.0)
    return line if is_line else None
