"""Run start and best again, in alternation, on runs that the search did not use: the gain without the winner's curse.

The best of many noisy measurements is on average too good (Smith & Winkler 2006, Management Science 52, "the
optimizer's curse"). So the gain is that of fresh runs, in the order A B B A A B, in which a drift of the machine
touches both sides alike.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from allpull.analyse.effect import Measured as OneRun
from allpull.analyse.effect import effect
from allpull.schema.results import Interval
from allpull.schema.studied import Parameters
from allpull.schema.tuned import Confirmation, Trial
from allpull.study.tune.budget import UNLIMITED, Spent, taken
from allpull.study.tune.objective import Evaluate, Goal, Measured

CONFIDENCE = 0.95
FRESH = 1_000_000  # the first repeat that confirms; those of the search are the numbers of its trials


def confirm(evaluate: Evaluate, goal: Goal, start: Parameters, best: Parameters, repeats: int) -> Confirmation:
    """``repeats`` runs of ``start`` and of ``best``, and the gain between them."""
    sides: dict[bool, list[Measured]] = {False: [], True: []}
    for is_best in alternation(repeats):
        repeat = FRESH + len(sides[is_best])
        sides[is_best].append(evaluate.run(best if is_best else start, repeat, lambda _: None, UNLIMITED))
    runs = [*sides[False], *sides[True]]
    return Confirmation(
        start=[_value(one) for one in sides[False]],
        best=[_value(one) for one in sides[True]],
        start_runs=[one.run for one in sides[False] if one.run is not None],
        best_runs=[one.run for one in sides[True] if one.run is not None],
        gain=gain(goal, [_value(one) for one in sides[False]], [_value(one) for one in sides[True]]),
        seconds=sum(one.seconds for one in runs),
        rank_s=sum(one.rank_s for one in runs),
    )


def missing_pairs(evaluate: Evaluate, start: Trial, best: Trial, repeats: int) -> list[Spent]:
    """What each pair of runs still costs, as long as in the search; nothing where a killed tuning completed it."""
    return [
        sum(
            (taken(one) for one in (start, best) if not evaluate.is_completed(one.parameters, FRESH + pair)),
            Spent(),
        )
        for pair in range(repeats)
    ]


def alternation(repeats: int) -> list[bool]:
    """The order of the runs, True for best: each pair begins with the side that the one before ended with.

    >>> "".join("B" if is_best else "A" for is_best in alternation(3))
    'ABBAAB'
    """
    return [side for pair in range(repeats) for side in ((False, True) if pair % 2 == 0 else (True, False))]


def gain(goal: Goal, start: Sequence[float | None], best: Sequence[float | None]) -> Interval | None:
    """How many times better ``best`` is, with its 95 % interval over runs (``analyse.effect``, of logarithms).

    >>> from allpull.study.tune.objective import GOALS
    >>> found = gain(GOALS["epoch_s"], [30.0, 30.0, 30.0], [20.0, 20.0, 20.0])
    >>> round(found.value, 3)
    1.5
    """
    before, after = (
        [OneRun(value=-math.log(goal.cost(value))) for value in side if value is not None and value > 0]
        for side in (start, best)
    )
    if not before or not after:
        return None
    found = effect(before, after)
    bounds = found.bounds(CONFIDENCE) or (None, None)
    low, high = (None if bound is None else math.exp(bound) for bound in bounds)
    return Interval(value=math.exp(found.value), low=low, high=high)


def _value(measured: Measured) -> float | None:
    return None if measured.value is None or measured.state != "completed" else measured.value.value
