"""What a run of a point costs, from runs of this study or of studies beside it: seconds, and ranks × seconds."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean

from allpull.schema.studied import Attempt
from allpull.study.directory import is_study, read_attempts
from allpull.study.points import Point
from allpull.units import counted


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """Expected seconds of one run, and what that is based on."""

    seconds: float
    basis: str


def costs_elsewhere(directory: Path, points: Iterable[str]) -> dict[str, Cost]:
    """The cost of each of ``points`` that studies beside ``directory`` have run: an id is that of a configuration."""
    wanted, seconds = set(points), defaultdict[str, dict[str, list[float]]](dict)
    folder = directory.parent
    for place in sorted(folder.iterdir()) if folder.is_dir() else ():
        if place.name == directory.name or not is_study(place):
            continue
        for attempt in read_attempts(place):
            if attempt.state == "completed" and attempt.point in wanted:
                seconds[attempt.point].setdefault(place.name, []).append(attempt.seconds)
    costs = {}
    for point, studies in seconds.items():
        every = [one for taken in studies.values() for one in taken]
        names = " and ".join(f"'{name}'" for name in studies)
        costs[point] = Cost(seconds=fmean(every), basis=f"{counted(len(every), 'run')} of the same in {names}")
    return costs


class Costs:
    """The seconds of all runs of a study so far, and what they say of the next one."""

    def __init__(
        self, points: Sequence[Point], attempts: Iterable[Attempt] = (), expected: Mapping[str, Cost] | None = None
    ) -> None:
        """``expected``: costs of points without a run here, from other studies or by ``study.forecast``."""
        self._expected = expected or {}
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
        """The cost of a run of ``point``: of its own runs, as expected, or the slowest of its series; None: unknown."""
        own = self._seconds.get(point)
        if own:
            return Cost(seconds=fmean(own), basis=f"its own {counted(len(own), 'run')}")
        if point in self._expected:
            return self._expected[point]
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
