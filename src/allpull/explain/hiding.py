"""Losses that hide each other: none of them costs much by itself, and all of them together do.

A sum of two delays is waited for once where they fall at the same time on two ranks: the later one shows, and without
it the other takes its place. So removing one saves what it exceeds the other by, which may be nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from allpull.explain.candidate import MIN_SHARE, Candidate, as_recorded
from allpull.explain.evidence.facts import Facts
from allpull.explain.pricing.price import without_all
from allpull.explain.rules.hidden_losses import Loss, in_order, together
from allpull.replay.engine import replay

MINOR = 0.05  # of a step: a finding that costs less may be the small rest of a large loss
NEEDED = 0.9  # of what they hide: one without which that much is left is no part of it
MOST_HIDDEN, MOST_FOUND = 6, 4  # candidates: each costs two replays


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Hidden:
    """What hides each other: one ``candidate``, and those of which it consists."""

    candidate: Candidate
    members: tuple[Candidate, ...]


@dataclass(slots=True, kw_only=True, eq=False)
class _Savings:
    """What is saved without several losses at once, s per step; each replay is made once."""

    facts: Facts
    losses: Sequence[Loss]
    found: frozenset[int]
    known: dict[frozenset[int], float] = field(default_factory=dict)

    def saved_s(self, chosen: frozenset[int]) -> float:
        """Without all of ``chosen``, places of ``losses``."""
        if chosen not in self.known:
            parts = in_order([self.losses[place].candidate for place in chosen])
            window = without_all(self.facts.window, [one.without for one in parts if one.without is not None])
            left_s = replay(window).total_s if chosen else self.facts.replayed.total_s
            self.known[chosen] = (self.facts.replayed.total_s - left_s) / max(1, self.facts.window.steps.size)
        return self.known[chosen]

    def hidden_s(self, chosen: frozenset[int]) -> float:
        """How much more that is than findings among them save, and each of the others by its own price."""
        priced_s = sum(max(0.0, self.losses[place].loss_s) for place in chosen - self.found)
        return self.saved_s(chosen) - self.saved_s(chosen & self.found) - priced_s


def hiding(found: Sequence[Loss], hidden: Sequence[Loss], facts: Facts) -> Hidden | None:
    """The losses of ``hidden``, and of findings ``found``, that cost noticeably more together; None: none do.

    ``hidden`` are those that cost too little by themselves to be found, and findings may cost as little; the others are
    needed only where these alone do not explain it.
    """
    hidden = [*hidden, *(one for one in found if one.loss_s < MINOR * facts.step_s)]
    found = [one for one in found if one not in hidden]
    usable = [
        sorted((one for one in losses if _is_work(one.candidate, facts)), key=lambda one: -_size_s(one))[:most]
        for losses, most in ((found, MOST_FOUND), (hidden, MOST_HIDDEN))
    ]
    losses = [*usable[0], *usable[1]]
    if not usable[1] or len(losses) < 2:
        return None
    found_too = frozenset(range(len(usable[0])))
    savings, least_s = _Savings(facts=facts, losses=losses, found=found_too), MIN_SHARE * facts.step_s
    everything = frozenset(range(len(losses)))
    starts = [one for one in (everything - found_too, everything) if len(one) > 1 and savings.hidden_s(one) >= least_s]
    if not starts:
        return None
    chosen = starts[0]
    for place in range(len(losses)):
        if savings.hidden_s(chosen - {place}) >= NEEDED * savings.hidden_s(chosen):
            chosen -= {place}
    if len(chosen) < 2 or savings.hidden_s(chosen) < least_s:
        return None
    members = [losses[place] for place in chosen]
    return Hidden(
        candidate=together(members, savings.saved_s(chosen), facts),
        members=tuple(one.candidate for one in members),
    )


def _size_s(loss: Loss) -> float:
    """The size of a fault itself where its first evidence is a time, s per step."""
    evidence = loss.candidate.evidence
    return evidence[0].value if evidence and evidence[0].unit == "s" else 0.0


def _is_work(one: Candidate, facts: Facts) -> bool:
    """Whether ``one`` is a loss of ranks of which at least a part is certain, and none of the exchange of gradients."""
    if one.without is None or (one.bounds is not None and one.bounds[0] is as_recorded):
        return False
    before, after = facts.window.reductions, one.without(facts.window).reductions
    return before is None or (after is not None and after.seconds is before.seconds)
