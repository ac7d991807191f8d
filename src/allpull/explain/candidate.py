"""A fault that a rule suspects, before it is priced: its ranks, its evidence, and the window without it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from allpull.explain.remedy import Action
from allpull.replay.window import Bools, Kinds, Window
from allpull.schema.explained import Evidence
from allpull.schema.results import Interval

Removal = Callable[[Window], Window]
"""A window → the same without a fault."""
Kind = Literal["late", "rest", "job", "advice"]

MIN_SHARE = 0.02  # of a step: a smaller gain is not worth a day's work, and may be none on another day


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Candidate:
    """One fault, not yet priced.

    ``kind`` decides what it is priced against. ``late``: a rank that keeps the others waiting; several of them hide
    each other, so each is priced with the others gone. ``rest``: what remains when all late ranks are gone. ``job``:
    all ranks wait alike for it, and it is priced against the window as recorded. ``advice``: it has no price.

    ``ranks`` and ``hosts`` are the culprits; empty: all of them. The first of ``evidence`` is the size of the fault
    itself. ``least_share``: the least share of a step that is reported.

    ``bounds``: where ``without`` is an estimate, the certain removal and the largest possible one. The interval of the
    gain then reaches from the one to the other; where the second is ``without`` itself, its value is the upper end.

    ``rare``, (steps,): the few steps in which the fault is, or their kinds, 0 for ordinary steps. The interval takes
    their number as it is, and resamples each kind of them; None: the steps with an evaluation, a checkpoint or a first
    batch.

    ``foremost``: it comes before all priced findings, because what is trained matters more than how fast.
    """

    rule: str
    kind: Kind
    title: str
    remedy: Action
    evidence: tuple[Evidence, ...]
    without: Removal | None = None
    ranks: tuple[int, ...] = ()
    hosts: tuple[str, ...] = ()
    least_share: float = MIN_SHARE
    bounds: tuple[Removal, Removal] | None = None
    rare: Bools | Kinds | None = None
    foremost: bool = False


def as_recorded(window: Window) -> Window:
    """The lower of ``bounds`` where no removal is certain."""
    return window


def seconds(what: str, value: Interval | float, source: str) -> Evidence:
    """Evidence in s per step."""
    if isinstance(value, Interval):
        return Evidence(what=what, value=value.value, unit="s", low=value.low, high=value.high, source=source)
    return Evidence(what=what, value=float(value), unit="s", source=source)


def share(what: str, value: float, source: str) -> Evidence:
    """Evidence as a fraction of 1."""
    return Evidence(what=what, value=float(value), unit="share", source=source)


def times(what: str, value: float, source: str) -> Evidence:
    """Evidence as a multiple of something else."""
    return Evidence(what=what, value=float(value), unit="times", source=source)


def count(what: str, value: float, source: str) -> Evidence:
    """Evidence that is a number of things."""
    return Evidence(what=what, value=float(value), unit="count", source=source)


def rate(what: str, bytes_per_s: float, source: str) -> Evidence:
    """Evidence in bytes/s."""
    return Evidence(what=what, value=float(bytes_per_s), unit="bytes/s", source=source)


def size(what: str, size_bytes: float, source: str) -> Evidence:
    """Evidence in bytes."""
    return Evidence(what=what, value=float(size_bytes), unit="bytes", source=source)
