"""What failures cost a long job, and how often it should write a checkpoint.

With λ interruptions per rank-hour, N ranks are interrupted every M = 1 / (N λ) on average, at random moments. Then a
job of T_s seconds of work that writes a checkpoint of d seconds after every τ seconds of work, and needs R seconds to
start again, takes (Daly 2006, "A higher order estimate of the optimum checkpoint interval for restart dumps")::

    T = M e^(R/M) (e^((τ + d)/M) - 1) T_s / τ
    τ = sqrt(2 d M) [1 + 1/3 sqrt(d / 2M) + 1/9 (d / 2M)] - d   for d < 2M, else τ = M

Young (1974) is the first term of τ. All arguments are numbers or arrays of shape (draws,).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from allpull.errors import BadInput

Floats = npt.NDArray[np.float64]
Number = float | Floats

SECONDS_PER_HOUR = 3600.0
PUBLISHED_INTERRUPTIONS = 419
PUBLISHED_RANK_HOURS = 54 * 24 * 16_384
"""Of 16,384 H100 in 54 days, unexpected ones (Llama Team 2024, "The Llama 3 herd of models", section 3.3.4)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FailureRate:
    """Interruptions that were counted over some rank-hours; the default is the published anchor, of other machines."""

    interruptions: float = PUBLISHED_INTERRUPTIONS
    rank_hours: float = PUBLISHED_RANK_HOURS

    def per_rank_s(self, rng: np.random.Generator, draws: int) -> Floats:
        """λ per rank and second: Gamma, the posterior of a Poisson count with the prior 1 ÷ λ. Shape (draws,).

        Raises:
            BadInput: a number is none, or negative, or no interruption was counted.
        """
        if not (0 < self.interruptions < np.inf and 0 < self.rank_hours < np.inf):
            raise BadInput("a failure rate is one interruption or more in some rank-hours", hint="such as 3 in 20000")
        return rng.gamma(self.interruptions, 1 / self.rank_hours, draws) / SECONDS_PER_HOUR


def mean_between_s(ranks: int, per_rank_s: Number) -> Floats:
    """Mean time between interruptions of a job of ``ranks`` ranks.

    >>> rate = FailureRate()
    >>> round(float(mean_between_s(16_384, rate.interruptions / rate.rank_hours)), 2)  # hours, as λ is per hour
    3.09
    """
    with np.errstate(divide="ignore"):
        return np.asarray(1 / (ranks * np.asarray(per_rank_s, dtype=float)))


def optimal_interval_s(write_s: Number, between_s: Number) -> Floats:
    """Work between two checkpoints that makes a job shortest, for ``write_s`` seconds of writing one.

    >>> [round(float(optimal_interval_s(5, minutes)), 1) for minutes in (24 * 60, 6 * 60, 15)]  # Daly's figures 3 to 5
    [116.7, 56.7, 9.1]
    """
    write, between = np.asarray(write_s, dtype=float), np.asarray(between_s, dtype=float)
    half = write / (2 * between)
    interval = np.sqrt(2 * write * between) * (1 + np.sqrt(half) / 3 + half / 9) - write
    return np.where(write < 2 * between, interval, between)


def expected_s(
    work_s: Number, between_s: Number, *, interval_s: Number, write_s: Number = 0.0, restart_s: Number = 0.0
) -> Floats:
    """Time that ``work_s`` of work takes with failures; a job shorter than the interval writes no checkpoint.

    It is never less than the work, and inf where a segment is so long that the job never ends.
    """
    work, between, interval = (np.asarray(one, dtype=float) for one in (work_s, between_s, interval_s))
    alone = interval >= work
    segment = np.where(alone, work, interval + write_s)
    segments = np.where(alone, 1.0, work / interval)
    with np.errstate(over="ignore", invalid="ignore"):
        exponent = segment / between
        growth = np.where(exponent > 0, np.expm1(exponent) / np.where(exponent > 0, exponent, 1.0), 1.0)
        return np.asarray(segments * segment * growth * np.exp(np.asarray(restart_s, dtype=float) / between))


def chance(time_s: Number, between_s: Number) -> Floats:
    """Probability that a job of ``time_s`` is interrupted at all.

    >>> round(float(chance(15 * 60, 3.09 * 3600)), 3)  # a quarter of an hour on 16,384 GPUs
    0.078
    """
    return np.asarray(-np.expm1(-np.asarray(time_s, dtype=float) / between_s))
