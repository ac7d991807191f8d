"""The budget of a tuning: what was spent, what the confirmation will need, and what is left for the search."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from allpull.schema.tuned import Ended, Trial

RUNS_VARY = 0.05  # of what was set aside for the confirmation: the last run of a search may take that much longer


@dataclass(frozen=True, slots=True, kw_only=True)
class Spent:
    """Wall time, and the same times ranks."""

    seconds: float = 0.0
    rank_s: float = 0.0

    def __add__(self, other: Spent) -> Spent:
        return Spent(seconds=self.seconds + other.seconds, rank_s=self.rank_s + other.rank_s)

    def __sub__(self, other: Spent) -> Spent:
        return Spent(seconds=self.seconds - other.seconds, rank_s=self.rank_s - other.rank_s)

    def __mul__(self, factor: float) -> Spent:
        return Spent(seconds=factor * self.seconds, rank_s=factor * self.rank_s)


UNLIMITED = Spent(seconds=math.inf, rank_s=math.inf)


@dataclass(frozen=True, slots=True, kw_only=True)
class Budget:
    """Limits of a tuning; None: none. ``confirm`` runs of start and of best are to fit into them at the end."""

    seconds: float | None = None
    trials: int | None = None
    rank_s: float | None = None
    confirm: int = 0

    def exceeded(self, trials: Sequence[Trial], best: Trial | None, spent: Spent) -> Ended | None:
        """What one more trial, as long as the mean of those that completed, would exceed; None: nothing."""
        if self.trials is not None and len(trials) >= self.trials:
            return "trials"
        left = self.left(trials, best, spent) - (_usual(trials) if trials else Spent())
        return "time" if left.seconds < 0 else "rank-hours" if left.rank_s < 0 else None

    def left(self, trials: Sequence[Trial], best: Trial | None, spent: Spent) -> Spent:
        """What one more trial may take, so that start and ``best`` can still be run again."""
        if not trials:
            return self._whole - spent
        pair = taken(trials[0]) + taken(best) if best is not None else _usual(trials) * 2
        return self._whole - spent - pair * self.confirm

    def pairs(self, missing: Sequence[Spent], spent: Spent) -> int:
        """How many pairs of confirming runs fit, of those that still cost ``missing``."""
        needed, left = Spent(), self._whole - spent + sum(missing, Spent()) * RUNS_VARY
        for count, pair in enumerate(missing):
            needed += pair
            if needed.seconds > left.seconds or needed.rank_s > left.rank_s:
                return count
        return len(missing)

    @property
    def _whole(self) -> Spent:
        """All of it; infinite where there is no limit."""
        seconds, rank_s = (math.inf if limit is None else limit for limit in (self.seconds, self.rank_s))
        return Spent(seconds=seconds, rank_s=rank_s)


def taken(trial: Trial) -> Spent:
    """What ``trial`` took."""
    return Spent(seconds=trial.seconds, rank_s=trial.rank_s)


def _usual(trials: Sequence[Trial]) -> Spent:
    """The mean of the trials that completed; of all where none did."""
    whole = [trial for trial in trials if trial.state == "completed"] or trials
    return sum(map(taken, whole), Spent()) * (1 / len(whole))
