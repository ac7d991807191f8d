"""Ask every rule, price what they suspect by the replay, and keep what stands above the noise.

The price of a suspect is T(with it) − T(without it): two replays of one window, the second with it gone. Of ranks that
are late at the same meetings only the last one shows, so each late rank is priced with the other late ones gone, and
what is left over with all of them gone. What concerns the whole job is priced as recorded: a rank whose lateness a busy
network hides costs nothing while it does, and a note says so.

A finding is kept where the low end of its gain is above 1, and its loss above the errors of the clocks and above the
least share of a step that its rule can tell from jitter. The noise floor is that of ranks which are late, so only they,
and what is left without them, have to be above it. What may cost more than ``MIN_SHARE`` of a step and is not kept is
said in a note.

What is kept is put in order by its gain. One that is an upper bound counts for half of what is in doubt of it, so that
"at most twice as fast, or no faster at all" does not stand above a remedy that surely makes it 1.5 times as fast.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from allpull.analyse.statistics import MIN_POINTS
from allpull.analyse.steps.grid import Floats
from allpull.explain.evidence.facts import Facts
from allpull.explain.manual import section
from allpull.explain.pricing.candidate import MIN_SHARE, Suspect, Without, seconds
from allpull.explain.pricing.expected_gain import worth
from allpull.explain.rules import RULES, names
from allpull.replay.engine import replay
from allpull.replay.spread import drawn
from allpull.replay.window import Window
from allpull.schema.explained import Finding
from allpull.schema.results import Interval
from allpull.units import counted, percent, show_time

HIDDEN = 0.5  # of a loss: where it buys less by itself, others have to be mended with it
NOT_YET = 0.5  # of a loss: what was there before is another, or none
MOST_OF_A_RULE = 8  # suspects of one rule that are priced, the largest: each costs replays


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """All findings, largest gain first (``worth``) and advice last; and in words what was seen and is no finding.

    ``undecided``: whether something may cost more than ``MIN_SHARE`` of a step, and a note says so.
    """

    findings: tuple[Finding, ...]
    notes: tuple[str, ...]
    undecided: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class _Unsure:
    """Why a suspect is no finding. ``note`` is None where it is too small to be told of."""

    note: str | None = None
    may_cost: bool = False


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Price:
    """What a suspect costs, s a step, and the speed-up without it; ``alone_s`` is what its own removal buys."""

    loss_s: float
    gain: Interval
    alone_s: float


def findings(facts: Facts) -> Found:
    """What is wrong in ``facts``."""
    suspected, unpriced = _suspected(facts)
    mended = facts.window
    for one in unpriced:
        mended = mended if one.kind != "late" or one.without is None else one.without(mended)
    late = [one for one in suspected if one.kind == "late"]
    kept: list[Finding] = []
    doubts: list[_Unsure] = []
    for one in suspected:
        if one.without is None:
            kept.append(_finding(one, None, facts))
            continue
        base = facts.window
        if one.kind in ("late", "rest"):
            others = [other.without for other in late if other is not one and other.without is not None]
            base = _without(mended, others)
        price = _price(facts, one.without, base)
        doubt = _doubt(one, price, facts)
        if doubt is None:
            kept.append(_finding(one, _within(one, price, facts), facts))
        else:
            doubts.append(doubt)
    doubts += _held_up(facts)
    kept.sort(key=lambda finding: -worth(finding.gain))
    return Found(
        findings=tuple(kept),
        notes=(*_not_priced(unpriced, facts), *(doubt.note for doubt in doubts if doubt.note is not None)),
        undecided=any(doubt.may_cost for doubt in doubts),
    )


def _held_up(facts: Facts) -> list[_Unsure]:
    """Ranks that are late by enough to be worth a word, perhaps because they wait for a CPU."""
    return [
        _Unsure(
            note=f"{facts.on(one.rank)} is late by {show_time(one.size.value)} a step, and whether it waits for a CPU "
            "or computes longer is not told",
            may_cost=True,
        )
        for one in facts.late.unsure
        if one.size.value >= max(MIN_SHARE * facts.step_s, facts.window.bound_s)
    ]


def _suspected(facts: Facts) -> tuple[list[Suspect], list[Suspect]]:
    """What all rules suspect: the largest of each rule, which are priced, and those that are not."""
    suspected: list[Suspect] = []
    more: list[Suspect] = []
    for slug in names():
        of_rule: list[Suspect] = RULES.load(slug)(facts)
        suspected += of_rule[:MOST_OF_A_RULE]
        more += of_rule[MOST_OF_A_RULE:]
    return suspected, more


def _not_priced(unpriced: Sequence[Suspect], facts: Facts) -> list[str]:
    """How much more each rule would say that is worth a word."""
    worth_s = MIN_SHARE * facts.step_s
    by_rule = Counter(one.rule for one in unpriced if one.evidence and one.evidence[0].value >= worth_s)
    return [f"{counted(number, 'more suspect')} of {rule} not priced" for rule, number in by_rule.items()]


def _without(window: Window, gone: Sequence[Without]) -> Window:
    for one in gone:
        window = one(window)
    return window


def _price(facts: Facts, without: Without, base: Window) -> _Price:
    """The price of one suspect in ``base``, which is the window, or the window without what else is late."""
    recorded_s = facts.played.step_s
    is_recorded = base is facts.window
    before_s = recorded_s if is_recorded else replay(base).step_s
    after_s = replay(without(base)).step_s
    alone_s = after_s if is_recorded else replay(without(facts.window)).step_s
    steps = max(1, recorded_s.size)
    return _Price(
        loss_s=float((before_s - after_s).sum()) / steps,
        gain=_gain(recorded_s, before_s, after_s, facts.window),
        alone_s=float((recorded_s - alone_s).sum()) / steps,
    )


def _within(one: Suspect, price: _Price, facts: Facts) -> _Price:
    """``price`` with a gain from what is surely gone to what may be, where ``one`` knows them."""
    if one.bounds is None:
        return price
    ends = [price.gain, *(_price(facts, without, facts.window).gain for without in one.bounds)]
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


def _doubt(one: Suspect, price: _Price, facts: Facts) -> _Unsure | None:
    """Why ``one`` is no finding; None where it is one."""
    own_s = one.evidence[0].value if one.kind == "late" and one.evidence else 0.0
    bound_s = facts.window.bound_s
    if own_s and own_s < bound_s:
        why = f"not resolvable, for the clocks of the hosts are aligned to within {show_time(bound_s)}"
        return _Unsure(note=f"{one.title}: {why}")
    worth_s = MIN_SHARE * facts.step_s
    told_s = _told_from_s(one, facts)
    costs = f"{show_time(max(price.loss_s, 0.0))} a step"
    may = f"{one.title}: it may cost {costs}, {percent(price.loss_s / facts.step_s, 1)}"
    if price.loss_s < min(worth_s, told_s):
        hidden = f"{one.title}: it costs nothing now ({costs}), for what else is slow hides it"
        return _Unsure(note=hidden if own_s >= told_s else None)
    if price.loss_s < told_s:
        return _Unsure(note=f"{may}, but below {show_time(told_s)} that is not sure here", may_cost=True)
    if price.gain.low is None or price.gain.low <= 1:
        span = counted(facts.window.steps.size, "step")
        return _Unsure(note=f"{may}, but that is not sure over {span}", may_cost=True)
    return None


def _told_from_s(one: Suspect, facts: Facts) -> float:
    """The least loss, s a step, that can be told from jitter, from errors of the clocks and, of ranks, from chance."""
    floor_s = (facts.floor_s or 0.0) if one.kind in ("late", "rest") else 0.0
    return max(one.least_share * facts.step_s, facts.window.bound_s, floor_s)


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
        options=list(one.options),
        evidence=evidence,
        wrong_when=section(one.rule, "When it is wrong"),
        advice=price is None,
    )
