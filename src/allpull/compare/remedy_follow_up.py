"""What `explain` had promised of a remedy, set against what came.

A finding of the runs before is followed into the runs after: it is gone, smaller, or still there. The speed-up that
came is that of everything that changed at once, so it is held against a promise only where one finding alone changed.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from allpull.explain.pricing.expected_gain import expected_gain
from allpull.schema.compared import Difference, Kept, Promise, State
from allpull.schema.explained import ExplainResult, Finding
from allpull.schema.results import Interval

SMALLER = 0.5  # of what a finding cost before: below it, something was done about it
FOUND_IN = 0.5  # of the runs of a side that were explained: a finding of fewer is a matter of chance
MOST = 5  # findings that are followed where nothing says which of them was mended


@dataclass(frozen=True, slots=True, kw_only=True)
class Followed:
    """One finding over the runs of a side."""

    finding: Finding
    gain: Interval
    loss_s: float


def promises(
    before: Sequence[ExplainResult],
    after: Sequence[ExplainResult],
    came: Interval | None,
    differences: Sequence[Difference],
) -> list[Promise]:
    """The findings of ``before`` that something was done about, else the largest, each with what came of it.

    ``came`` is the speed-up, after ÷ before, of the whole training.
    """
    losses_s = {_key(one.finding): one.loss_s for one in _followed(after)} if after else None
    names = {difference.fact for difference in differences}
    listed = [_promise(one, losses_s, came, names) for one in _followed(before)]
    touched = [one for one in listed if one.state in {"gone", "smaller"}] or [one for one in listed if one.changed]
    if len(touched) == 1:
        return [touched[0].model_copy(update={"kept": kept(touched[0].promised, came)})]
    return touched or listed[:MOST]


def kept(promised: Interval, came: Interval | None) -> Kept:
    """Whether what came is what was promised, as far as both intervals can tell.

    >>> kept(Interval(value=1.2, low=1.15, high=1.25), Interval(value=1.1, low=1.05, high=1.14))
    'less'
    """
    if came is None or came.low is None or came.high is None:
        return "not decidable"
    low = promised.value if promised.low is None else promised.low
    high = promised.value if promised.high is None else promised.high
    if came.high < low:
        return "less"
    return "more" if came.low > high else "kept"


def _promise(
    one: Followed, losses_s: Mapping[tuple[str, tuple[int, ...]], float] | None, came: Interval | None, names: set[str]
) -> Promise:
    finding = one.finding
    loss_s_after = None if losses_s is None else losses_s.get(_key(finding), 0.0)
    return Promise(
        rule=finding.rule,
        title=finding.title,
        ranks=finding.ranks,
        remedy=finding.remedy,
        promised=one.gain,
        came=came,
        loss_s_before=one.loss_s,
        loss_s_after=loss_s_after,
        state=_state(one.loss_s, loss_s_after),
        changed=sorted(names & set(finding.options or ())),
        kept="not decidable",
    )


def _state(before_s: float, after_s: float | None) -> State:
    if after_s is None:
        return "not known"
    if after_s == 0:
        return "gone"
    return "smaller" if after_s < SMALLER * before_s else "still there"


def _followed(explained: Sequence[ExplainResult]) -> list[Followed]:
    """The priced findings that most of these runs have, largest gain first."""
    by_key: dict[tuple[str, tuple[int, ...]], list[tuple[Finding, Interval, float]]] = {}
    for result in explained:
        for finding in result.findings:
            if finding.gain is not None and finding.loss_s_per_step is not None and not finding.advice:
                by_key.setdefault(_key(finding), []).append((finding, finding.gain, finding.loss_s_per_step))
    often = (same for same in by_key.values() if len(same) >= FOUND_IN * len(explained))
    found = [
        Followed(
            finding=same[0][0],
            gain=_median([gain for _, gain, _ in same]),
            loss_s=statistics.median(loss_s for *_, loss_s in same),
        )
        for same in often
    ]
    return sorted(found, key=lambda one: -expected_gain(one.gain))


def _key(finding: Finding) -> tuple[str, tuple[int, ...]]:
    return finding.rule, tuple(sorted(finding.ranks))


def _median(gains: Sequence[Interval]) -> Interval:
    """The median of several promises of one thing, with the outermost of their bounds."""
    lows, highs = [gain.low for gain in gains], [gain.high for gain in gains]
    known = None not in lows and None not in highs
    return Interval(
        value=statistics.median(gain.value for gain in gains),
        low=min(low for low in lows if low is not None) if known else None,
        high=max(high for high in highs if high is not None) if known else None,
    )
