"""Losses hide each other: without one of them the others still take that time, and without all of them nothing does.

What it is
    Rank 0 saves for 500 ms while another rank evaluates for 500 ms longer; or a rank is late by as much as the loaders
    of all ranks are. Whoever mends one of the two gains nothing, and concludes that it did not matter.

How it is found
    Among what other rules suspect and what costs less than 5 % of a step by itself: if removing all of it, with the
    other findings if need be, saves at least 2 % of a step more than these findings do and each of the others does by
    itself. What is not needed for nine tenths of that is left out again, findings first. Late ranks that hide each
    other are no case of it, as each is priced with the others corrected; nor is what the exchange of gradients hides,
    or what is only bounded from above.

What it costs
    The replay without any of them.

What to do
    All that is said of each of them, in any order: the gain comes with the last.

When it is wrong
    Each of the losses may be wrong for the reasons of its own rule, and then the others gain nothing either.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

from allpull.explain.candidate import MIN_SHARE, Candidate, Removal, seconds
from allpull.explain.evidence.facts import Facts
from allpull.explain.pricing.price import without_all
from allpull.explain.remedy import joined, sentence
from allpull.explain.rules import names
from allpull.replay.window import Bools, Window
from allpull.schema.gap import named_ranks
from allpull.units import show_time

ORDER = ("late", "rest", "job")
"""Kinds of candidates, as their removals follow each other: what a rank is late by is relative to the others."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Loss:
    """One of the losses, its price, and what its own removal saves, both s per step.

    They differ for late ranks, which are priced with the others corrected.
    """

    candidate: Candidate
    loss_s: float
    alone_s: float


def find(_: Facts) -> list[Candidate]:
    """None: it takes prices of other rules, see ``explain.hiding``."""
    return []


def in_order(candidates: Sequence[Candidate]) -> list[Candidate]:
    """As their removals follow each other: what is uneven before what is common, as in the manual."""
    slugs = names()
    return sorted(candidates, key=lambda one: (ORDER.index(one.kind), slugs.index(one.rule)))


def together(losses: Sequence[Loss], saved_s: float, facts: Facts) -> Candidate:
    """The candidate that all ``losses`` are gone, which saves ``saved_s`` per step."""
    parts = in_order([loss.candidate for loss in losses])
    without = partial(without_all, removals=[one.without for one in parts if one.without is not None])
    most_s = max(max(0.0, loss.alone_s) for loss in losses)
    nothing = most_s < MIN_SHARE * facts.step_s
    source = f"a replay of {facts.span} without this alone"
    return Candidate(
        rule="hidden-losses",
        kind=parts[0].kind,
        title=f"{len(losses)} losses hide each other: one alone costs "
        f"{'next to nothing' if nothing else f'at most {show_time(most_s)} per step'}, together they cost "
        f"{show_time(saved_s)}: {', and '.join(_named(one) for one in parts)}",
        remedy=sentence("all of this, as one alone gains little: ", joined("; ", *(one.remedy for one in parts))),
        evidence=(
            seconds("cost of them together", saved_s, f"a replay of {facts.span} without any of them"),
            *(
                seconds(f"gain per step if only {one.candidate.rule} is fixed: {one.candidate.title}", gain_s, source)
                for one in losses
                for gain_s in [max(0.0, one.alone_s)]
            ),
        ),
        without=without,
        ranks=tuple(sorted({rank for one in parts for rank in one.ranks})),
        hosts=tuple(dict.fromkeys(host for one in parts for host in one.hosts)),
        least_share=max((one.least_share for one in parts if one.kind in ("late", "rest")), default=MIN_SHARE),
        bounds=_bounds(parts, without),
        rare=_rare(parts, facts.window),
    )


def _named(one: Candidate) -> str:
    """Its rule, and the ranks that it blames where it is not the whole job."""
    return f"{one.rule} of {named_ranks(one.ranks)}" if one.ranks else one.rule


def _bounds(parts: Sequence[Candidate], without: Removal) -> tuple[Removal, Removal] | None:
    """The certain removal of all ``parts`` and the largest possible one; None where all are estimates."""
    if all(one.bounds is None for one in parts):
        return None
    least, most = ([one.without if one.bounds is None else one.bounds[end] for one in parts] for end in (0, 1))
    is_most = all(given is one.without for given, one in zip(most, parts, strict=True))
    ends = [partial(without_all, removals=[one for one in end if one is not None]) for end in (least, most)]
    return ends[0], without if is_most else ends[1]


def _rare(parts: Sequence[Candidate], window: Window) -> Bools | None:
    """The few steps in which any of ``parts`` is, with those that are unusual anyway."""
    rare = [one.rare for one in parts if one.rare is not None]
    if not rare:
        return None
    steps = window.odd.copy()
    for one in rare:
        steps |= one > 0
    return steps
