"""What is tuned for, what measures a configuration, and when a running one is hopeless."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

from allpull.schema.results import Interval
from allpull.schema.studied import Parameters
from allpull.schema.tuned import BottleneckKind, Objective, TrialState
from allpull.study.tune.budget import Spent
from allpull.units import show_count

CLEARLY = 1.1  # times worse than the worst that the best may be: runs vary by more than an interval within one shows


@dataclass(frozen=True, slots=True, kw_only=True)
class Goal:
    """An objective: its unit, and which of two values is better."""

    name: Objective
    title: str
    unit: str
    better: Literal["lower", "higher"]

    def cost(self, value: float) -> float:
        """``value`` as a cost, of which the lower is better, in proportion."""
        return value if self.better == "lower" else 1 / value

    def gain(self, start: float, best: float) -> float:
        """How many times better ``best`` is than ``start``.

        >>> GOALS["epoch_s"].gain(30.0, 20.0), GOALS["throughput"].gain(100.0, 150.0)
        (1.5, 1.5)
        """
        return self.cost(start) / self.cost(best)


GOALS: Mapping[Objective, Goal] = {
    "epoch_s": Goal(name="epoch_s", title="epoch time", unit="s", better="lower"),
    "throughput": Goal(name="throughput", title="throughput", unit="samples/s", better="higher"),
    "time_to_accuracy_s": Goal(name="time_to_accuracy_s", title="time to accuracy", unit="s", better="lower"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """One run of one configuration; ``value`` is the objective, None where it failed."""

    state: TrialState
    value: Interval | None
    seconds: float
    rank_s: float
    run: str | None
    reason: str | None = None


Hopeless = Callable[[Interval], str | None]
"""What the live records of a run show of the objective so far → why to stop it; None: let it go on."""


class Evaluate(Protocol):
    """What measures configurations: jobs, or a table in tests."""

    def run(self, parameters: Parameters, repeat: int, hopeless: Hopeless, within: Spent) -> Measured:
        """Run one configuration, for no longer than ``within``; ``repeat`` tells its runs apart."""
        ...

    def is_completed(self, parameters: Parameters, repeat: int) -> bool:
        """Whether this run of a configuration is there already, from a tuning that was killed."""
        ...

    def unlisted(self, runs: Collection[str]) -> Spent:
        """What the runs took that are there and not among ``runs``: a tuning that was killed left them."""
        ...

    def bottlenecks(self, run: str) -> Sequence[BottleneckKind]:
        """The bottlenecks of one of its runs, the largest first; empty where they cannot be told."""
        ...


def hopeless(goal: Goal, best: Interval | None) -> Hopeless:
    """The rule by which a run is stopped: at its best it is clearly worse than ``best`` at its worst.

    Both are 95 % intervals; without both the run goes on.

    >>> goal, best = GOALS["throughput"], Interval(value=100, low=98, high=102)
    >>> hopeless(goal, best)(Interval(value=90, low=85, high=95)) is None
    True
    >>> hopeless(goal, best)(Interval(value=60, low=58, high=62))
    'at most 62 samples/s, while the best so far has at least 98 samples/s'
    """

    def judge(live: Interval) -> str | None:
        if best is None:
            return None
        optimist, pessimist = (live.low, best.high) if goal.better == "lower" else (live.high, best.low)
        if optimist is None or pessimist is None or goal.cost(optimist) <= CLEARLY * goal.cost(pessimist):
            return None
        bound, other = ("at least", "at most") if goal.better == "lower" else ("at most", "at least")
        shown = [f"{show_count(value)} {goal.unit}" for value in (optimist, pessimist)]
        return f"{bound} {shown[0]}, while the best so far has {other} {shown[1]}"

    return judge
