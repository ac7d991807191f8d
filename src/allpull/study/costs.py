"""What a run of a point costs, from what was measured in this study: seconds, and ranks × seconds."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

from allpull.schema.studied import Attempt
from allpull.study.points import Point
from allpull.units import counted


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """Expected seconds of one run, and what that is based on."""

    seconds: float
    basis: str


class Costs:
    """The seconds of all runs of a study so far, and what they say of the next one."""

    def __init__(
        self, points: Sequence[Point], attempts: Iterable[Attempt] = (), forecasts: Mapping[str, Cost] | None = None
    ) -> None:
        """``forecasts``: of points without a run, by ``study.forecast``."""
        self._forecasts = forecasts or {}
        self._series = {point.id: repr(sorted(point.series.items())) for point in points}
        self._seconds: dict[str, list[float]] = {}
        self.used_s, self.used_rank_s = 0.0, 0.0
        """Of all attempts, however they ended."""
        for attempt in attempts:
            self.add(attempt)

    def add(self, attempt: Attempt) -> None:
        """Count one more attempt; only those that completed say what a run takes."""
        self.used_s += attempt.seconds
        self.used_rank_s += attempt.rank_s
        if attempt.state == "completed":
            self._seconds.setdefault(attempt.point, []).append(attempt.seconds)

    def of(self, point: str) -> Cost | None:
        """The cost of a run of ``point``: of its own runs, as forecast, or the slowest of its series; None: unknown."""
        own = self._seconds.get(point)
        if own:
            return Cost(seconds=fmean(own), basis=f"its own {counted(len(own), 'run')}")
        if point in self._forecasts:
            return self._forecasts[point]
        series = self._series.get(point)
        others = [fmean(taken) for id_, taken in self._seconds.items() if self._series.get(id_) == series]
        if not others:
            return None
        return Cost(seconds=max(others), basis=f"the slowest of {counted(len(others), 'other size')} of its series")

    def left_s(self, missing: Iterable[str]) -> float | None:
        """About how long runs of the points ``missing`` take; a point of which nothing is known counts as the others.

        None: no run has completed.
        """
        if not self._seconds:
            return None
        usual = fmean(fmean(taken) for taken in self._seconds.values())
        costs: Mapping[str, Cost | None] = {point: self.of(point) for point in set(missing)}
        return sum(cost.seconds if (cost := costs[point]) is not None else usual for point in missing)
