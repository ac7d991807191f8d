"""Ask every rule, price what they suspect by the replay, and keep what stands above the noise.

The price of a suspect is T(with it) − T(without it): two replays of one window, the second with it gone. Of ranks that
are late at the same meetings only the last one shows, so each late rank is priced with the other late ones gone, and
what is left over with all of them gone. What concerns the whole job is priced as recorded: a rank whose lateness a busy
network hides costs nothing while it does, and a note says so.

A finding is kept where the low end of its gain is above 1, and its loss above the noise floor and above the least
share of a step that its rule can tell from jitter.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from allpull.analyse.grid import Floats
from allpull.analyse.statistics import MIN_POINTS
from allpull.analyse.window import Window
from allpull.explain.facts import Facts
from allpull.explain.manual import section
from allpull.explain.rules import RULES, names
from allpull.explain.suspect import Suspect, Without, seconds
from allpull.replay.engine import replay
from allpull.replay.spread import drawn
from allpull.schema.explained import Finding
from allpull.schema.results import Interval
from allpull.units import percent, show_time

HIDDEN = 0.5  # of a loss: where it buys less by itself, others have to be mended with it
NOT_YET = 0.5  # of a loss: what was there before is another, or none
MOST_OF_A_RULE = 8  # suspects of one rule that are priced, the largest: each costs replays


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """All findings, largest gain first and advice last; and in words what was seen and is no finding."""

    findings: tuple[Finding, ...]
    notes: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Price:
    """What a suspect costs, s a step, and the speed-up without it; ``alone_s`` is what its own removal buys."""

    loss_s: float
    gain: Interval
    alone_s: float


def findings(facts: Facts) -> Found:
    """What is wrong in ``facts``."""
    suspected, more = _suspected(facts)
    late = [one for one in suspected if one.kind == "late"]
    kept: list[Finding] = []
    notes = [f"{count:,} more ranks that {slug} would name are not priced" for slug, count in more.items()]
    for one in suspected:
        if one.without is None:
            kept.append(_finding(one, None, facts))
            continue
        others = [other for other in late if other is not one] if one.kind in ("late", "rest") else []
        price = _price(facts, one.without, [other.without for other in others if other.without is not None])
        said = _unsure(one, price, facts)
        if said is None:
            kept.append(_finding(one, _within(one, price, facts), facts))
        elif said:
            notes.append(said)
    kept.sort(key=lambda finding: -(finding.gain.value if finding.gain is not None else 0.0))
    return Found(findings=tuple(kept), notes=tuple(notes))


def _suspected(facts: Facts) -> tuple[list[Suspect], dict[str, int]]:
    """What all rules suspect, and by rule of how many more it is left at that."""
    suspected: list[Suspect] = []
    more: dict[str, int] = {}
    for slug in names():
        of_rule: list[Suspect] = RULES.load(slug)(facts)
        suspected += of_rule[:MOST_OF_A_RULE]
        if len(of_rule) > MOST_OF_A_RULE:
            more[slug] = len(of_rule) - MOST_OF_A_RULE
    return suspected, more


def _price(facts: Facts, without: Without, others: Sequence[Without]) -> _Price:
    """The price of one suspect, with ``others`` gone."""
    base = facts.window
    for other in others:
        base = other(base)
    before_s = replay(base).step_s if others else facts.played.step_s
    after_s = replay(without(base)).step_s
    recorded_s = facts.played.step_s
    steps = max(1, recorded_s.size)
    alone_s = after_s if not others else replay(without(facts.window)).step_s
    return _Price(
        loss_s=float((before_s - after_s).sum()) / steps,
        gain=_gain(recorded_s, before_s, after_s, facts.window),
        alone_s=float((recorded_s - alone_s).sum()) / steps,
    )


def _within(one: Suspect, price: _Price, facts: Facts) -> _Price:
    """``price`` with a gain from what is surely gone to what may be, where ``one`` knows them."""
    if one.bounds is None:
        return price
    ends = [price.gain, *(_price(facts, without, ()).gain for without in one.bounds)]
    low = min((gain.low for gain in ends if gain.low is not None), default=None)
    high = max((gain.high for gain in ends if gain.high is not None), default=None)
    value = price.gain.value
    return replace(price, gain=Interval(value=value, low=low, high=value if one.bounds[1] is one.without else high))


def _gain(recorded_s: Floats, before_s: Floats, after_s: Floats, window: Window) -> Interval:
    """The speed-up T ÷ (T − loss), with its 95 % interval; of increments by step.

    Steps before and after a loss set in are resampled apart: a link that fails half-way through is no matter of chance.
    """
    left_s = recorded_s - before_s + after_s
    total_s, rest_s = float(recorded_s.sum()), float(left_s.sum())
    if not (total_s > 0 and rest_s > 0):
        return Interval(value=1.0, low=None, high=None)
    since = set_in(before_s - after_s)
    apart = window.odd if since is None else np.arange(recorded_s.size) >= since
    return drawn(
        np.stack([recorded_s, left_s], axis=1),
        apart,
        lambda totals: totals[..., 0] / totals[..., 1],
        moves=recorded_s - total_s / rest_s * left_s,
    ).interval()


def set_in(loss_s: Floats) -> int | None:
    """The first step from which on a loss (steps,) is there that was not before; None where it always was, or never.

    >>> set_in(np.array([0.0, 0.1] * 8 + [5.0, 4.0] * 8))
    16
    """
    steps = loss_s.size
    if steps < 2 * MIN_POINTS:
        return None
    cuts = np.arange(MIN_POINTS, steps - MIN_POINTS + 1)
    sums = np.cumsum(loss_s)
    apart = sums[cuts - 1] / cuts - (sums[-1] - sums[cuts - 1]) / (steps - cuts)
    cut = int(cuts[(cuts * (steps - cuts) * apart**2).argmax()])  # least variance on both sides (Bai 1997, RES 79)
    before, after = float(np.median(loss_s[:cut])), float(np.median(loss_s[cut:]))
    return cut if after > 0 and before < NOT_YET * after else None


def _unsure(one: Suspect, price: _Price, facts: Facts) -> str | None:
    """Why ``one`` is no finding: a note, or nothing where it is too small to be told; None where it is one."""
    step_s = facts.step_s
    own_s = one.evidence[0].value if one.kind == "late" and one.evidence else 0.0
    if own_s and own_s < facts.window.bound_s:
        bound = show_time(facts.window.bound_s)
        return f"{one.title}: not resolvable, for the clocks of the hosts are aligned to within {bound}"
    if price.loss_s < max(one.least_share * step_s, facts.floor_s):
        if own_s < max(one.least_share * step_s, facts.floor_s):
            return ""
        costs = show_time(max(price.loss_s, 0.0))
        return f"{one.title}: it costs nothing now ({costs} a step), for what else is slow hides it"
    if price.gain.low is None or price.gain.low <= 1:
        cost = f"{show_time(price.loss_s)} a step, {percent(price.loss_s / step_s)}"
        return f"{one.title}: it may cost {cost}, but that is not sure over {facts.window.steps.size:,} steps"
    return None


def _finding(one: Suspect, price: _Price | None, facts: Facts) -> Finding:
    hosts = list(one.hosts) or facts.hosts_of(one.ranks)
    evidence = list(one.evidence)
    if price is not None and price.alone_s < HIDDEN * price.loss_s:
        source = f"a replay of {facts.span} without this alone"
        evidence.append(seconds("what a step gains if this alone is mended", max(price.alone_s, 0.0), source))
    return Finding(
        rule=one.rule,
        title=one.title,
        ranks=list(one.ranks),
        hosts=hosts,
        loss_s_per_step=None if price is None else price.loss_s,
        loss_share=None if price is None else price.loss_s / facts.step_s,
        gain=None if price is None else price.gain,
        remedy=one.remedy,
        evidence=evidence,
        wrong_when=section(one.rule, "When it is wrong"),
        advice=price is None,
    )
