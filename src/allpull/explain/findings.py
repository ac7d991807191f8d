"""Ask every rule, price the candidates, and keep those that stand out from the noise.

Of ranks that are late at the same meetings only the last one shows, so each late rank is priced with the other late
ones gone, and what remains with those gone that are findings; where that makes a difference, the title names them.
Faults of the whole job are priced as recorded: a rank whose lateness a busy network hides costs nothing meanwhile, and
a note says so. What costs next to nothing by itself, and much together with another loss, is a finding of both
(``hiding``).

A finding is kept where the low end of its gain is above 1, and its loss above the clock error and above the least share
of a step that its rule can distinguish from jitter. The noise floor is that of late ranks, so only they, and what
remains without them, have to exceed it. A candidate that may cost more than ``MIN_SHARE`` of a step and is not kept is
mentioned in a note.

Findings are ordered by their gain. Of an upper bound half of the uncertain part counts, so that "at most twice as fast,
or no faster at all" does not precede a remedy that certainly makes it 1.5 times as fast.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import combinations

from allpull.explain.candidate import MIN_SHARE, Candidate, seconds
from allpull.explain.evidence.facts import Facts
from allpull.explain.evidence.late.cpu_waiting import COMPUTING
from allpull.explain.hiding import hiding
from allpull.explain.manual import section
from allpull.explain.pricing.expected_gain import expected_gain
from allpull.explain.pricing.price import Price, bounded, price, without_all
from allpull.explain.rules import RULES, names
from allpull.explain.rules.hidden_losses import Loss
from allpull.replay.engine import replay
from allpull.replay.whatif.balanced import like_median
from allpull.schema.explained import Finding
from allpull.schema.gap import named_ranks
from allpull.units import counted, percent, show_time

SHARED = 0.5  # of the smaller loss: if removing both saves less of it, the other remedy already saves it
PARTLY = 0.5  # of the smaller loss: if removing both saves that much more than the sum, they hide part of each other
MOST_COMPARED = 4  # findings: each pair costs a replay
SMALL = 0.01  # of a step: a loss below it is not worth a note
ONCE = 1.5  # times a loss per step: what saves no more in a whole window saves it once, not in each step
MOST_PER_RULE = 8  # candidates of one rule that are priced, the largest: each costs replays


@dataclass(frozen=True, slots=True, kw_only=True)
class Findings:
    """All findings, largest expected gain first and advice last; and notes on candidates that are no finding.

    ``undecided``: whether one of these may cost more than ``MIN_SHARE`` of a step.
    """

    findings: tuple[Finding, ...]
    notes: tuple[str, ...]
    undecided: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class _Doubt:
    """Why a candidate is no finding. ``note`` is None where it is too small to be mentioned.

    ``hidden``: the candidate, where it is certain, and other losses may hide what it costs.
    """

    note: str | None = None
    may_cost: bool = False
    hidden: Loss | None = None


def findings(facts: Facts) -> Findings:
    """What is wrong in ``facts``."""
    candidates, unpriced = _candidates(facts)
    corrected = without_all(
        facts.window, [one.without for one in unpriced if one.kind == "late" and one.without is not None]
    )
    late = [one for one in candidates if one.kind == "late"]
    kept: list[tuple[Candidate, Finding]] = []
    priced: list[tuple[Candidate, Price]] = []
    doubts: list[_Doubt] = []
    for one in candidates:
        if one.without is None:
            kept.append((one, advice(one, list(one.hosts) or facts.hosts_of(one.ranks))))
            continue
        base, others = facts.window, _mended_first(one, late, [found for found, _ in priced], facts)
        if one.kind in ("late", "rest"):
            base = without_all(corrected, [other.without for other in others if other.without is not None])
        price_of_one = price(facts, one.without, base, one.rare)
        doubt = _behind_loaders(one, price_of_one, facts) or _doubt(one, price_of_one, facts)
        if doubt is None:
            priced.append((one, price_of_one))
            kept.append((one, _finding(one, bounded(one, price_of_one, facts, base), facts, others)))
        else:
            doubts.append(doubt)
    doubts = _hiding(kept, priced, doubts, facts)
    doubts += _unknown_causes(facts)
    kept.sort(key=lambda pair: (not pair[0].foremost, -expected_gain(pair[1].gain)))
    return Findings(
        findings=tuple(finding for _, finding in kept),
        notes=(
            *_pairs(priced, facts),
            *_not_priced(unpriced, facts),
            *(doubt.note for doubt in doubts if doubt.note is not None),
        ),
        undecided=any(doubt.may_cost for doubt in doubts),
    )


def _hiding(
    kept: list[tuple[Candidate, Finding]],
    priced: Sequence[tuple[Candidate, Price]],
    doubts: Sequence[_Doubt],
    facts: Facts,
) -> list[_Doubt]:
    """Add to ``kept`` what costs much together, and next to nothing by itself; the other ``doubts`` are returned."""
    found = [_loss(one, price_of_one) for one, price_of_one in priced]
    hidden = hiding(found, [doubt.hidden for doubt in doubts if doubt.hidden is not None], facts)
    if hidden is None or hidden.candidate.without is None:
        return [*doubts]
    one = hidden.candidate
    unbounded = price(facts, hidden.candidate.without, facts.window, one.rare)
    together = bounded(one, unbounded, facts, facts.window)
    low = together.gain.low
    if unbounded.loss_s < _resolvable_s(one, facts) or low is None or low * (1 - MIN_SHARE) <= 1:
        return [*doubts]
    kept.append((one, _finding(one, together, facts)))
    return [doubt for doubt in doubts if doubt.hidden is None or doubt.hidden.candidate not in hidden.members]


def _mended_first(
    one: Candidate, late: Sequence[Candidate], found: Sequence[Candidate], facts: Facts
) -> list[Candidate]:
    """The ``late`` candidates that are gone in the price of ``one``.

    They hide a late rank whether they are findings or not. What else the same ranks are late by hides nothing, and is
    no reason to be mended where it is too small to be found. What remains without late ranks is priced beside those
    that are not ``found``: nobody will mend these.
    """
    if one.kind == "rest":
        return [other for other in late if other in found]
    if one.kind == "late":
        hiding_it = [other for other in late if other.ranks != one.ranks or _is_large(other, facts)]
        return [other for other in hiding_it if other is not one and not _make_up(one, other, facts)]
    return []


def _is_large(one: Candidate, facts: Facts) -> bool:
    """Whether a late rank is late by what can be a finding, or whatever remains without late ranks is as large."""
    return not one.evidence or one.evidence[0].value >= _resolvable_s(one, facts)


def _make_up(one: Candidate, other: Candidate, facts: Facts) -> bool:
    """Whether one of the two makes up for the other: at their limit, loaders are waited for by whom nothing delays."""
    makes_up = facts.loading is not None and facts.loading.makes_up
    return makes_up and (one.rule == "slow-loader-rank") != (other.rule == "slow-loader-rank")


def _unknown_causes(facts: Facts) -> list[_Doubt]:
    """Ranks that are late enough to be mentioned, and may be so because they wait for a CPU."""
    doubts = []
    for one in facts.late.unsure:
        if one.size.value >= max(MIN_SHARE * facts.step_s, facts.window.bound_s):
            gone = partial(like_median, ranks=(one.rank,), phases=COMPUTING, unlike=facts.late.computing | {one.rank})
            loss_s = max(0.0, price(facts, gone, facts.window).loss_s)
            costs = f"{show_time(loss_s)} per step, {percent(loss_s / facts.step_s, 1)}"
            note = (
                f"{facts.on(one.rank)} is late by {show_time(one.size.value)} per step: it may cost {costs}, but the "
                "data cannot tell whether it waits for a CPU, computes longer or sleeps"
            )
            doubts.append(_Doubt(note=note, may_cost=True))
    return doubts


def _candidates(facts: Facts) -> tuple[list[Candidate], list[Candidate]]:
    """The candidates of all rules: the largest of each rule, which are priced, and those that are not."""
    priced: list[Candidate] = []
    unpriced: list[Candidate] = []
    for slug in names():
        of_rule: list[Candidate] = RULES.load(slug)(facts)
        priced += of_rule[:MOST_PER_RULE]
        unpriced += of_rule[MOST_PER_RULE:]
    return priced, unpriced


def _not_priced(unpriced: Sequence[Candidate], facts: Facts) -> list[str]:
    """How many more candidates of noticeable size each rule has."""
    least_s = MIN_SHARE * facts.step_s
    by_rule = Counter(one.rule for one in unpriced if one.evidence and one.evidence[0].value >= least_s)
    return [f"{counted(number, 'more candidate')} of {rule} not priced" for rule, number in by_rule.items()]


def _pairs(priced: Sequence[tuple[Candidate, Price]], facts: Facts) -> list[str]:
    """Which of the largest findings price the same time, or hide each other: both save less, or more, than the sum.

    Of late ranks, which are priced with the others gone, the sum is at least what both save.
    """
    notes = []
    largest = sorted(priced, key=lambda one: -one[1].loss_s)[:MOST_COMPARED]
    times = Counter(one.rule for one, _ in largest)
    for (one, price_of_one), (other, price_of_other) in combinations(largest, 2):
        if one.rule == other.rule or one.without is None or other.without is None:
            continue
        windows = one.without(other.without(facts.window)), other.without(one.without(facts.window))
        left_s = min(replay(window).total_s for window in windows)  # what one leaves, the other may not recognise
        saved_s = facts.step_s - left_s / max(1, facts.window.steps.size)
        more_s, less_s = sorted((price_of_one.loss_s, price_of_other.loss_s), reverse=True)
        both = f"{_referred_to(one, times)} and {_referred_to(other, times)}"
        if saved_s < more_s + SHARED * less_s:
            notes.append(
                f"findings {both} price partly the same time: removing both saves at most {show_time(saved_s)} per step"
            )
        elif saved_s > more_s + less_s + max(MIN_SHARE * facts.step_s, PARTLY * less_s):
            notes.append(
                f"findings {both} hide part of each other: removing both saves up to "
                f"{show_time(saved_s)} per step, and their own prices add up to {show_time(more_s + less_s)}"
            )
    return notes


def _referred_to(one: Candidate, times: Counter[str]) -> str:
    """The name of a finding in a sentence: its rule, and its ranks where several are of that rule."""
    return f"{one.rule} ({named_ranks(one.ranks)})" if times[one.rule] > 1 and one.ranks else one.rule


def _doubt(one: Candidate, priced: Price, facts: Facts) -> _Doubt | None:
    """Why ``one`` is no finding; None where it is one."""
    own_s = one.evidence[0].value if one.kind == "late" and one.evidence else 0.0
    bound_s = facts.window.bound_s
    if own_s and own_s < bound_s:
        why = f"not resolvable, because the clocks of the ranks are aligned to within {show_time(bound_s)}"
        note = f"{one.title}, by its own clock; what that costs is {why}"
        return _Doubt(note=note, may_cost=own_s >= MIN_SHARE * facts.step_s)
    resolvable_s = _resolvable_s(one, facts)
    costs = f"{show_time(max(priced.loss_s, 0.0))} per step"
    may = f"{one.title}: it may cost {costs}, {percent(priced.loss_s / facts.step_s, 1)}"
    is_known = one.kind == "job" or one.rule == "slow-loader-rank"  # by its pace, which is no wait while others hide it
    loss = _loss(one, priced) if is_known or _is_large(one, facts) else None
    if priced.loss_s < min(MIN_SHARE * facts.step_s, resolvable_s):
        small = f"{one.title}: a small loss of {costs}, {percent(priced.loss_s / facts.step_s, 1)}"
        is_sure = priced.gain.low is not None and priced.gain.low > 1
        if priced.loss_s >= SMALL * facts.step_s and (is_sure or own_s >= resolvable_s):
            unsure = "" if is_sure else f", uncertain over {counted(facts.window.steps.size, 'step')}"
            return _Doubt(note=f"{small}{unsure}", hidden=loss)
        hidden = f"{one.title}: it costs nothing now ({costs}), because other slow parts hide it"
        return _Doubt(note=hidden if own_s >= resolvable_s else None, hidden=loss)
    if max(priced.loss_s, _lost_with_fast_loaders_s(one, facts)) < resolvable_s:
        note = f"{may}, but below {show_time(resolvable_s)} that is uncertain here"
        return _Doubt(note=note, may_cost=True, hidden=loss if own_s >= resolvable_s else None)
    if priced.gain.low is None or priced.gain.low <= 1:
        span = counted(facts.window.steps.size, "step")
        return _Doubt(note=f"{may}, but that is uncertain over {span}", may_cost=True)
    return None


def _loss(one: Candidate, priced: Price) -> Loss:
    return Loss(candidate=one, loss_s=priced.loss_s, alone_s=priced.alone_s)


def _behind_loaders(one: Candidate, priced: Price, facts: Facts) -> _Doubt | None:
    """That ``one`` costs nothing because batches come no sooner, and what it would cost; None: that is not so."""
    saved_s = priced.loss_s * facts.window.steps.size
    if one.without is None or facts.window.deliveries is None or saved_s > ONCE * facts.step_s:
        return None
    lost_s = _lost_with_fast_loaders_s(one, facts)
    if lost_s < max(MIN_SHARE * facts.step_s, _resolvable_s(one, facts)) or saved_s > ONCE * lost_s:
        return None
    with_faster = f"with faster loaders up to {show_time(lost_s)} per step"
    note = f"{one.title}: it costs nothing now, because batches come no sooner; {with_faster}"
    return _Doubt(note=note, hidden=_loss(one, priced))


def _lost_with_fast_loaders_s(one: Candidate, facts: Facts) -> float:
    """What ``one`` costs, s per step, if loaders limit nothing: so large is the fault; 0 where none limit anything."""
    if one.without is None or facts.window.deliveries is None:
        return 0.0
    freed = replay(one.without(replace(facts.window, deliveries=None)))
    return (facts.replayed.total_s - freed.total_s) / max(1, facts.window.steps.size)


def _resolvable_s(one: Candidate, facts: Facts) -> float:
    """The least loss, s per step, that exceeds jitter, the clock error and, for ranks, the noise floor."""
    floor_s = (facts.floor_s or 0.0) if one.kind in ("late", "rest") else 0.0
    return max(one.least_share * facts.step_s, facts.window.bound_s, floor_s)


def advice(one: Candidate, hosts: Sequence[str] = ()) -> Finding:
    """``one`` as a finding without a price; ``hosts``: those of its ranks."""
    return Finding(
        rule=one.rule,
        title=one.title,
        ranks=list(one.ranks),
        hosts=list(hosts),
        loss_s_per_step=None,
        loss_share=None,
        gain=None,
        remedy=one.remedy.text,
        options=list(one.remedy.options),
        lines=list(one.remedy.lines),
        evidence=list(one.evidence),
        wrong_when=section(one.rule, "When it is wrong"),
        advice=True,
    )


def _first(one: Candidate, others: Sequence[Candidate]) -> str:
    """What the price of ``one`` takes as mended, for its title: other ranks, and what else these ranks are late by."""
    ranks = sorted({rank for other in others for rank in other.ranks} - {*one.ranks})
    own = sorted({other.rule for other in others if other.ranks == one.ranks} - {one.rule})
    parts = [*([named_ranks(ranks)] if ranks else []), *(f"{rule} of the same" for rule in own)]
    return f"; priced with {' and '.join(parts)} mended first" if parts else ""


def _finding(one: Candidate, priced: Price, facts: Facts, others: Sequence[Candidate] = ()) -> Finding:
    evidence, title = list(one.evidence), one.title
    if priced.is_hidden:
        title += _first(one, others)
        source = f"a replay of {facts.span} without this alone"
        evidence.append(seconds("gain per step if only this is fixed", max(priced.alone_s, 0.0), source))
    if priced.there is not None and priced.there_s is not None:
        first, *_, last = facts.window.steps[priced.there].tolist()
        when = f"from step {first:,} on, less than half of it before"
        if priced.there.stop < facts.window.steps.size:
            begins = f"from step {first:,} to {last:,}, nearly nothing before and after"
            when = begins if priced.there.start else f"up to step {last:,}, nearly nothing after it"
        what = f"cost per step {when}; the gain is of {facts.span}"
        evidence.append(seconds(what, priced.there_s, f"steps {first:,} to {last:,}"))
    if priced.ends_s is not None:
        first_s, last_s = priced.ends_s
        how = f"{'grows' if last_s > first_s else 'shrinks'} little by little, from {show_time(first_s)} at first"
        source = f"a line through {facts.span}"
        evidence.append(seconds(f"cost per step in the end: it {how}; the gain is of {facts.span}", last_s, source))
    if one.bounds is None and priced.gain.is_at_most:
        title = f"{title}: this costs at most {show_time(priced.loss_s)} per step"
    return Finding(
        rule=one.rule,
        title=title,
        ranks=list(one.ranks),
        hosts=list(one.hosts) or facts.hosts_of(one.ranks),
        loss_s_per_step=priced.loss_s,
        loss_share=priced.loss_s / priced.step_s,
        gain=priced.gain,
        is_hidden=priced.is_hidden,
        remedy=one.remedy.text,
        options=list(one.remedy.options),
        lines=list(one.remedy.lines),
        evidence=evidence,
        wrong_when=section(one.rule, "When it is wrong"),
        advice=False,
    )
