"""The difference between two sides of runs, and how sure it is: the run is the unit, not the step.

Steps of one run share a node, a placement and an hour; what varies from run to run does not show within one, and is
often several times larger (Kalibera & Jones 2013, ISMM; Hoefler & Belli 2015, SC). With y_gi the value of run i of
side g (its logarithm for ratios) the effect is mean_i y_Bi − mean_i y_Ai, and its variance

- with three or more runs on both sides: Σ_g s_g²/n_g, s_g² from the runs of side g alone (Welch 1947, Biometrika 34),
  or s²(1/n_A + 1/n_B) with s² pooled, whichever gives the wider interval: Welch's is too narrow where three runs stand
  against many, and the pooled one where the few vary more than the many;
- with three or more on one side: s²(1/n_A + 1/n_B), s² pooled: the other side is assumed to vary as much;
- with a stored figure s: s²(1/n_A + 1/n_B) + Σ_g Σ_i e_gi²/n_g², e_gi the standard error within the run (block
  bootstrap). A figure from whole runs holds some of e² already: it counts twice, on the safe side;
- else it is not known, and nothing is decided.

Degrees of freedom are those of Satterthwaite (1946, Biometrics Bulletin 2). The variance is never below what varies
within the runs, Σ_g Σ_i e_gi²/n_g²: three runs may agree at random.

Now and then a run is disturbed: runs have heavier tails than the normal distribution, like Student's t with 5 degrees
of freedom (Lange, Little & Taylor 1989, JASA 84). Several runs a side show their tails in their own variance. Where
runs are held against a spread that is not their own, the interval gets those tails: at most 4 + n degrees of freedom
for n runs on the smaller side, as t with 5 has an excess kurtosis of 6, the mean of n such runs 6/n, and t with 4 + n
the same.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from allpull.analyse.student_t import quantile
from allpull.schema.compared import Basis, Spread

CONFIDENCE = 0.99  # a gate in CI runs every day: at 95 % it would raise a false alarm once a month
POWER = 0.8  # of the smallest difference that is called showable; what trials are planned with
MIN_RUNS = 3  # per side: the spread of two runs is almost meaningless
HEAVY_TAILS = 4  # and one more for each run: degrees of freedom where a spread is not that of the runs themselves
CONTRADICTED = 2.0  # times a stored spread; runs that spread as stored reach it less than once in 50 comparisons


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """A metric of one run on the scale that is compared on, with its standard error within the run and its freedom.

    ``error`` is None where the run is too short for one.
    """

    value: float
    error: float | None = None
    freedom: float = math.inf


@dataclass(frozen=True, slots=True, kw_only=True)
class Effect:
    """After − before: ``error`` and ``freedom`` are None where it is not known what varies from run to run.

    ``within`` is the standard error from what varies within the runs alone; ``spread`` that between runs of one side.
    """

    value: float
    error: float | None
    freedom: float | None
    within: float | None
    spread: Spread | None
    basis: Basis
    contradicted: bool = False

    def bounds(self, confidence: float = CONFIDENCE) -> tuple[float, float] | None:
        """The interval of ``value``; None where it is not known."""
        if self.error is None or self.freedom is None:
            return None
        return _around(self.value, self.error, self.freedom, confidence)

    def within_bounds(self, confidence: float = CONFIDENCE) -> tuple[float, float] | None:
        """The interval of ``value`` if nothing varied from run to run."""
        return None if self.within is None else _around(self.value, self.within, math.inf, confidence)

    @property
    def smallest(self) -> float | None:
        """The difference that such data would show with probability ``POWER`` (Bloom 1995, Evaluation Review 19)."""
        if self.error is None or self.freedom is None:
            return None
        return self.error * (quantile((1 + CONFIDENCE) / 2, self.freedom) + quantile(POWER, self.freedom))


def effect(before: Sequence[Measured], after: Sequence[Measured], figure: Spread | None = None) -> Effect:
    """The effect between two sides of at least one run each; ``figure`` is a stored spread between runs."""
    sides = (before, after)
    spread = _pooled(sides)
    within = _within(sides)
    contradicted = figure is not None and _contradicts(spread, figure)
    candidates, basis = _candidates(sides, spread, None if contradicted else figure)
    error = freedom = None
    if candidates:
        variance, freedom = max((satterthwaite(parts) for parts in candidates), key=_reach)
        if basis != "both sides":
            freedom = min(freedom, HEAVY_TAILS + min(map(len, sides)))
        error = math.sqrt(max(variance, sum(part.variance for part in within or ())))
    return Effect(
        value=_mean(after) - _mean(before),
        error=error,
        freedom=freedom,
        within=None if within is None else math.sqrt(sum(part.variance for part in within)),
        spread=spread,
        basis=basis,
        contradicted=contradicted,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """One estimated part of a variance, with its degrees of freedom."""

    variance: float
    freedom: float


def satterthwaite(parts: Sequence[Part]) -> tuple[float, float]:
    """The sum of independent estimates of variance, and its degrees of freedom, (Σv)² ÷ Σ v²/ν.

    >>> satterthwaite([Part(variance=1.0, freedom=2), Part(variance=1.0, freedom=2)])
    (2.0, 4.0)
    """
    total = sum(part.variance for part in parts)
    weight = sum(part.variance**2 / part.freedom for part in parts)
    return total, total**2 / weight if weight > 0 else math.inf


def _candidates(
    sides: tuple[Sequence[Measured], Sequence[Measured]], spread: Spread | None, figure: Spread | None
) -> tuple[list[list[Part]], Basis]:
    """Estimates of the variance of an effect, of which the widest counts, and their sources."""
    each_run = sum(1 / len(side) for side in sides)
    if figure is not None:
        within = _within(sides)
        if within is None:
            return [], "unknown"
        return [[Part(variance=figure.sd**2 * each_run, freedom=figure.freedom or math.inf), *within]], "stored"
    if spread is None or max(map(len, sides)) < MIN_RUNS:
        return [], "unknown"
    pooled = [Part(variance=spread.sd**2 * each_run, freedom=spread.freedom or math.inf)]
    if min(map(len, sides)) < MIN_RUNS:
        return [pooled], "one side"
    return [pooled, [Part(variance=_variance(side) / len(side), freedom=len(side) - 1) for side in sides]], "both sides"


def _reach(error: tuple[float, float]) -> float:
    variance, freedom = error
    return math.sqrt(variance) * quantile((1 + CONFIDENCE) / 2, freedom)


def _within(sides: Sequence[Sequence[Measured]]) -> list[Part] | None:
    """The contribution of each run's own error to the variance of an effect; None where one is not known."""
    parts = []
    for side in sides:
        for run in side:
            if run.error is None:
                return None
            parts.append(Part(variance=run.error**2 / len(side) ** 2, freedom=run.freedom))
    return parts


def _pooled(sides: Sequence[Sequence[Measured]]) -> Spread | None:
    """The spread between the runs of one side, from all sides that have two or more."""
    repeated = [side for side in sides if len(side) > 1]
    freedom = sum(len(side) - 1 for side in repeated)
    if not freedom:
        return None
    squares = sum(_variance(side) * (len(side) - 1) for side in repeated)
    return Spread(sd=math.sqrt(squares / freedom), freedom=freedom)


def _contradicts(spread: Spread | None, figure: Spread) -> bool:
    enough = spread is not None and spread.freedom is not None and spread.freedom >= MIN_RUNS - 1
    return spread is not None and enough and spread.sd > CONTRADICTED * figure.sd


def _mean(side: Sequence[Measured]) -> float:
    return statistics.fmean(run.value for run in side)


def _variance(side: Sequence[Measured]) -> float:
    return statistics.variance(run.value for run in side)


def _around(value: float, error: float, freedom: float, confidence: float) -> tuple[float, float]:
    reach = error * quantile((1 + confidence) / 2, freedom) if error > 0 else 0.0
    return value - reach, value + reach
