"""Price a candidate by the replay: T(with it) − T(without it), two replays of one window, the second without it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from allpull.analyse.course import course
from allpull.analyse.steps.grid import Floats
from allpull.explain.candidate import Candidate, Removal
from allpull.explain.evidence.facts import Facts
from allpull.explain.evidence.loading.deliveries import limited
from allpull.replay.engine import replay
from allpull.replay.spread import ratio
from allpull.replay.window import Bools, Kinds, Window
from allpull.schema.explained import INDICATIVE
from allpull.schema.results import Interval

LEAST_LEFT = 0.01  # of a step: clocks that are wrong by more tell nothing
HIDDEN = 0.8  # of a loss: where its own removal saves less, other faults have to be removed with it
CERTAIN = 0.9  # of a loss: a price of which that much is certain is an estimate, not an upper bound


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Price:
    """The cost of a candidate, s per step, and the speed-up without it; ``alone_s``: the saving of its own removal.

    ``step_s``: the mean step that the speed-up begins at, the recorded one, except where others hide the loss: then it
    is the step without these. ``there``: the rows of the steps in which it costs anything, ``there_s`` per step; None:
    in all of them. ``ends_s``: the cost of the first and of the last step, where it grows or shrinks little by little.
    """

    loss_s: float
    gain: Interval
    alone_s: float
    step_s: float
    there: slice | None = None
    there_s: float | None = None
    ends_s: tuple[float, float] | None = None

    @property
    def is_hidden(self) -> bool:
        """Whether its own removal saves less, because of others that have to be removed first."""
        return self.alone_s < HIDDEN * self.loss_s


def price(facts: Facts, without: Removal, base: Window, rare: Bools | Kinds | None = None) -> Price:
    """The price of a removal in ``base``: the window, or the window without the other late ranks.

    Where these hide little of it, it is what the removal saves by itself. ``rare``: as in ``Candidate``.
    """
    recorded_s = facts.replayed.step_s
    is_recorded = base is facts.window
    before_s = recorded_s if is_recorded else replay(base).step_s
    after_s = replay(without(base)).step_s
    alone_s = after_s if is_recorded else replay(without(facts.window)).step_s
    steps = max(1, recorded_s.size)
    cost_s, saved_s = before_s - after_s, recorded_s - alone_s
    is_hidden = saved_s.sum() < HIDDEN * cost_s.sum()
    if not is_hidden and saved_s.sum() < cost_s.sum():
        cost_s = saved_s
    goes = course(cost_s)
    there = goes.apart
    otherwise = facts.window.odd_kinds if rare is None else rare
    apart = otherwise if there is None else there
    priced = Price(
        loss_s=float(cost_s.sum()) / steps,
        gain=_speed_up(recorded_s - cost_s, goes.varying, apart),
        alone_s=float(saved_s.sum()) / steps,
        step_s=float(recorded_s.sum()) / steps,
        there=goes.there,
        there_s=None if goes.there is None else float(cost_s[goes.there].mean()),
        ends_s=goes.ends,
    )
    if not is_hidden:
        return priced
    gain = _speed_up(before_s - cost_s, goes.varying, apart)
    return replace(priced, gain=gain, step_s=float(before_s.sum()) / steps)


def bounded(candidate: Candidate, unbounded: Price, facts: Facts, base: Window) -> Price:
    """``unbounded`` with a gain from the certain removal to the largest possible one, where ``candidate`` has both.

    The interval includes the errors of clocks and, where it is large, of the replay. ``base`` is the window that
    ``unbounded`` was priced in.
    """
    bounds = candidate.bounds or _bounds_behind_lane(candidate, unbounded, facts, base)
    priced = unbounded if bounds is None else _between(candidate, unbounded, bounds, facts, base)
    priced = _with_pacing(candidate, _with_deliveries(candidate, priced, facts, base), facts)
    priced = _with_clock_error(priced, facts) if _compares(candidate, base) else priced
    return _with_replay_error(priced, facts.simulation_error)


def _between(candidate: Candidate, priced: Price, bounds: tuple[Removal, Removal], facts: Facts, base: Window) -> Price:
    """``priced`` with a gain from the certain removal to the largest possible one."""
    ends = [priced.gain, *(price(facts, without, base).gain for without in bounds)]
    low = min((gain.low for gain in ends if gain.low is not None), default=None)
    low = low if low is None else max(low, min(1.0, priced.gain.value))  # a removal makes nothing slower
    high = max((gain.high for gain in ends if gain.high is not None), default=None)
    value = priced.gain.value
    return replace(priced, gain=Interval(value=value, low=low, high=value if bounds[1] is candidate.without else high))


def _compares(candidate: Candidate, base: Window) -> bool:
    """Whether the price rests on when ranks came to a meeting: of late ranks, and where transfers get shorter."""
    if not base.bound_s or candidate.without is None or not base.measured_s > 0:
        return False
    if candidate.kind in ("late", "rest"):
        return True
    changed = candidate.without(base)
    before, after = base.reductions, changed.reductions
    return changed.transfer_s is not base.transfer_s or (
        before is not None and after is not None and after.seconds is not before.seconds
    )


def _with_clock_error(priced: Price, facts: Facts) -> Price:
    """``priced`` with a loss that clocks may hide or feign ``bound_s`` per step of; an upper bound stays one."""
    error, gain = facts.window.bound_s / priced.step_s, priced.gain
    if gain.is_at_most:
        most = _moved(gain.value, -error)
        low = None if gain.low is None else max(_moved(gain.low, error), min(1.0, gain.low))
        return replace(
            priced, loss_s=priced.loss_s + facts.window.bound_s, gain=Interval(value=most, low=low, high=most)
        )
    low = None if gain.low is None else _moved(gain.low, error)
    high = None if gain.high is None else _moved(gain.high, -error)
    return replace(priced, gain=Interval(value=gain.value, low=low, high=high))


def _with_replay_error(priced: Price, error: float) -> Price:
    """``priced`` with a loss that is uncertain by ``error``, a fraction of it; an upper bound stays as it is.

    A replay that misses the measured time as a whole cannot be trusted with a part of it. Small errors are left out:
    they come from transfers that vary, and the interval contains these.
    """
    gain = priced.gain
    if error <= INDICATIVE or gain.is_at_most or gain.low is None or gain.high is None:
        return priced
    least, most = (1 - 1 / gain.low) * max(1 - error, 0.0), (1 - 1 / gain.high) * (1 + error)
    low, high = 1 / (1 - least), 1 / max(1 - most, LEAST_LEFT)
    return replace(priced, gain=Interval(value=gain.value, low=low, high=high))


def _with_pacing(candidate: Candidate, priced: Price, facts: Facts) -> Price:
    """``priced`` for late ranks on devices, whose loss may partly pass on to the next rank.

    The last rank to come to a meeting finds no work issued ahead, and its device waits for its host; the others' hosts
    issue while their devices wait for that rank. Without it, another one is last. Candidates with bounds of their own
    have it in them.
    """
    paced_s, low, ranks = facts.window.paced_s, priced.gain.low, list(candidate.ranks)
    if paced_s is None or candidate.kind != "late" or low is None or candidate.bounds is not None:
        return priced
    if len(ranks) == facts.window.ranks:
        return priced
    each_s = paced_s.mean(axis=0)
    more_s = float(each_s[ranks].max() - np.median(np.delete(each_s, ranks)))
    if more_s <= 0:
        return priced
    low = max(_moved(low, more_s / priced.step_s), min(1.0, low))
    return replace(priced, gain=Interval(value=priced.gain.value, low=low, high=priced.gain.high))


def _with_deliveries(candidate: Candidate, priced: Price, facts: Facts, base: Window) -> Price:
    """``priced`` as an upper bound, where loaders may deliver no sooner to a faster training; timed ones do not."""
    without, loading, most = candidate.without, facts.loading, priced.gain.high
    if without is None or loading is None or loading.timed or priced.gain.low is None or most is None:
        return priced
    limited_facts = replace(facts, window=limited(facts.window, loading.nearly))
    least = price(limited_facts, without, limited(base, loading.nearly), candidate.rare)
    if least.gain.low is None or least.loss_s >= CERTAIN * priced.loss_s:
        return priced
    return replace(priced, gain=Interval(value=most, low=min(priced.gain.low, max(1.0, least.gain.low)), high=most))


def _moved(speed_up: float, by: float) -> float:
    """The speed-up that leaves a larger share of the time by ``by``; unchanged where less than nothing were left."""
    left = 1 / speed_up + by
    return 1 / left if left > LEAST_LEFT else speed_up


def _bounds_behind_lane(
    candidate: Candidate, priced: Price, facts: Facts, base: Window
) -> tuple[Removal, Removal] | None:
    """The bounds of a late rank's price at the level of steps; None where its lateness in backward hardly matters.

    It is not known there when buckets were ready. A lane that is busy throughout backward hides any lateness in
    backward, and an idle lane hides none. What is late outside backward delays every bucket, and is certain.
    """
    without, window = candidate.without, facts.window
    is_late = candidate.kind in ("late", "rest")
    if without is None or not is_late or window.level != "step" or window.reductions is None:
        return None
    surely = partial(_outside_backward, without=without)
    is_certain = price(facts, surely, base).loss_s >= CERTAIN * priced.loss_s
    return None if is_certain else (surely, without)


def _outside_backward(window: Window, without: Removal) -> Window:
    """``window`` after ``without``, except that backward takes as long as before."""
    changed = without(window)
    backward_s = window.work.get("backward")
    return changed if backward_s is None else replace(changed, work={**changed.work, "backward": backward_s})


def without_all(window: Window, removals: Sequence[Removal]) -> Window:
    """``window`` after all ``removals``, one after the other."""
    for removal in removals:
        window = removal(window)
    return window


def _speed_up(left_s: Floats, cost_s: Floats, apart: Bools | Kinds) -> Interval:
    """The speed-up T ÷ (T − loss), with its 95 % interval, from what is left of each step, and the loss in it.

    Steps ``apart``, (steps,), are resampled among themselves: those with a loss that begins or ends, because a link
    that fails half-way is not random, or else rare ones, whose number is taken as it is.
    """
    recorded_s = left_s + cost_s
    if not (recorded_s.sum() > 0 and left_s.sum() > 0):
        return Interval(value=1.0, low=None, high=None)
    return ratio(recorded_s, left_s, apart).interval()
