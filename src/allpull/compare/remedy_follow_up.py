"""Compare the speed-up that `explain` predicted for a remedy with the measured one.

A finding of the runs before is looked up in the runs after: gone, smaller, or still there. The measured speed-up is
that of all changes together, so it is compared with a prediction only where a single finding changed, and no other one
hid part of it: what that gains by itself has no interval. Findings that only the runs after have (``appeared``) say why
these are slower, and may be why a finding of before is not found any more.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from allpull.explain.pricing.expected_gain import expected_gain
from allpull.schema.compared import Difference, Kept, NewFinding, RemedyFollowUp, State
from allpull.schema.explained import ExplainResult, Finding
from allpull.schema.results import Interval

SMALLER = 0.5  # times the loss before: below it, the finding counts as addressed
FOUND_IN = 0.5  # of the explained runs of a side: a finding in fewer of them may be random
MOST = 5  # findings listed where no data show which of them was addressed


@dataclass(frozen=True, slots=True, kw_only=True)
class RecurringFinding:
    """One finding over the runs of a side: its predicted speed-up and its loss in s per step."""

    finding: Finding
    gain: Interval
    loss_s: float


def follow_up(
    before: Sequence[ExplainResult],
    after: Sequence[ExplainResult],
    new: Sequence[NewFinding],
    speedup: Interval | None,
    differences: Sequence[Difference],
) -> list[RemedyFollowUp]:
    """The findings of ``before`` that were addressed, else the largest, each with its state in ``after``.

    ``new`` are those that ``appeared``. ``speedup``, after ÷ before, is that of the whole training.
    """
    losses_s = {_key(one.finding): one.loss_s for one in _recurring(after)} if after else None
    names = {difference.fact for difference in differences}
    is_slower = speedup is None or speedup.value < 1
    hidden_s = max((one.loss_s for one in new), default=0.0) if is_slower else 0.0
    listed = [_followed_up(one, losses_s, hidden_s, speedup, names) for one in _recurring(before)]
    addressed = [one for one in listed if one.state in {"gone", "smaller"}] or [one for one in listed if one.changed]
    if len(addressed) == 1 and not addressed[0].is_hidden:
        outcome = kept(addressed[0].promised, speedup)
        is_known = outcome != "less" or not new
        return [addressed[0].model_copy(update={"kept": outcome if is_known else "not decidable"})]
    return addressed or listed[:MOST]


def appeared(before: Sequence[ExplainResult], after: Sequence[ExplainResult]) -> list[NewFinding]:
    """The findings that ``after`` has and ``before`` has not, largest gain first; none if ``before`` is empty."""
    known = {_key(finding) for result in before for finding in result.findings}
    return [
        NewFinding(
            rule=one.finding.rule,
            title=one.finding.title,
            ranks=one.finding.ranks,
            gain=one.gain,
            loss_s=one.loss_s,
            remedy=one.finding.remedy,
        )
        for one in (_recurring(after) if before else [])
        if _key(one.finding) not in known
    ]


def kept(promised: Interval, speedup: Interval | None) -> Kept:
    """Whether the measured speed-up agrees with the predicted one, as far as their intervals show.

    A measurement that fits the prediction and no change at all decides nothing.

    >>> kept(Interval(value=1.2, low=1.15, high=1.25), Interval(value=1.1, low=1.05, high=1.14))
    'less'
    >>> kept(Interval(value=1.2, low=1.15, high=1.25), Interval(value=1.6, low=0.17, high=14.85))
    'not decidable'
    """
    if speedup is None or speedup.low is None or speedup.high is None:
        return "not decidable"
    low = promised.value if promised.low is None else promised.low
    high = promised.value if promised.high is None else promised.high
    if speedup.high < low:
        return "less"
    if speedup.low > high:
        return "more"
    least = low if low > 1 else promised.value
    return "not decidable" if speedup.low <= 1 and speedup.high >= least else "kept"


def _followed_up(
    one: RecurringFinding,
    losses_s: Mapping[tuple[str, tuple[int, ...]], float] | None,
    hidden_s: float,
    speedup: Interval | None,
    names: set[str],
) -> RemedyFollowUp:
    finding = one.finding
    loss_s_after = None if losses_s is None else losses_s.get(_key(finding), 0.0)
    return RemedyFollowUp(
        rule=finding.rule,
        title=finding.title,
        ranks=finding.ranks,
        remedy=finding.remedy,
        lines=finding.lines,
        promised=one.gain,
        is_hidden=finding.is_hidden,
        came=speedup,
        loss_s_before=one.loss_s,
        loss_s_after=loss_s_after,
        state=_state(one.loss_s, loss_s_after, hidden_s),
        changed=sorted(names & set(finding.options or ())),
        kept="not decidable",
    )


def _state(before_s: float, after_s: float | None, hidden_s: float) -> State:
    """``hidden_s``: how large a loss may be that new findings hide."""
    if after_s is None:
        return "not known"
    if after_s == 0:
        return "not found" if hidden_s > before_s else "gone"
    return "smaller" if after_s < SMALLER * before_s else "still there"


def _recurring(explained: Sequence[ExplainResult]) -> list[RecurringFinding]:
    """The priced findings that at least half of these runs have, largest gain first."""
    by_key: dict[tuple[str, tuple[int, ...]], list[tuple[Finding, Interval, float]]] = {}
    for result in explained:
        for finding in result.findings:
            if finding.gain is not None and finding.loss_s_per_step is not None and not finding.advice:
                by_key.setdefault(_key(finding), []).append((finding, finding.gain, finding.loss_s_per_step))
    recurring = (same for same in by_key.values() if len(same) >= FOUND_IN * len(explained))
    merged = [
        RecurringFinding(
            finding=same[0][0],
            gain=_median([gain for _, gain, _ in same]),
            loss_s=statistics.median(loss_s for *_, loss_s in same),
        )
        for same in recurring
    ]
    return sorted(merged, key=lambda one: -expected_gain(one.gain))


def _key(finding: Finding) -> tuple[str, tuple[int, ...]]:
    return finding.rule, tuple(sorted(finding.ranks))


def _median(gains: Sequence[Interval]) -> Interval:
    """The median of several predictions for one finding, with their outermost bounds."""
    lows, highs = [gain.low for gain in gains], [gain.high for gain in gains]
    known = None not in lows and None not in highs
    return Interval(
        value=statistics.median(gain.value for gain in gains),
        low=min(low for low in lows if low is not None) if known else None,
        high=max(high for high in highs if high is not None) if known else None,
    )
