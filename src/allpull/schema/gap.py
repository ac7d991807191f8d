"""What is missing from a run or could not be used: a kind that code decides by, and a sentence for people."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import islice
from typing import Literal

SHOWN_RANKS = 3  # named in one gap; the others are counted

GapKind = Literal[
    # of the run directory
    "recorded",  # written into run.json by an import, as text
    "unfinished",
    "rank count",
    "foreign files",
    "no rank",
    "processes left out",  # their rank number was taken
    # of the records of ranks and hosts
    "step records",
    "event records",
    "observation off",
    "rank ended",
    "restarted",
    "remark",  # of the rank itself, as text
    "recording stopped",
    "thinned",
    "host description",
    "host counters",
    # of what was measured
    "rates",
    "phase",
    "arrivals",
    "same samples",  # of several ranks, which samples/s counts on each
    "repeated samples",  # of several workers of a loader
    "no exchange",  # of gradients: the ranks are unrelated trainings
    "blocked in other",  # time in collectives that is in the phase `other`: that phase is not a rank's own work
    "contradictions",
    "clock resolution",
    "profiler windows",
    "reading",
    "accuracy",
    "replicas",
    # of the recorded window
    "steps left out",
    "bucket times",
    "reductions",
    "earlier reductions",  # of a step, whose waiting is then part of `backward`: a run with it is not called healthy
    "local exchange",  # of gradients, among some ranks only: nobody waits for all others there
    "CPU waiting",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Gap:
    """One thing that is missing from a run, or that could not be used.

    Code decides by ``kind``, never by ``text``. ``ranks``: those concerned; empty: all, or none in particular.
    ``seconds``: how long per step and rank, where the gap is an amount of time; else None.
    """

    kind: GapKind
    text: str
    ranks: tuple[int, ...] = ()
    seconds: float | None = None


def of_ranks(kind: GapKind, ranks: Iterable[int], text: str) -> Gap:
    """A gap of ``ranks``, whose names begin its sentence: ``text`` follows them.

    >>> of_ranks("thinned", [3], ": records were thinned").text
    'rank 3: records were thinned'
    """
    concerned = tuple(ranks)
    return Gap(kind=kind, text=f"{named_ranks(concerned)}{text}", ranks=concerned)


def texts(gaps: Iterable[Gap]) -> list[str]:
    """The sentences of ``gaps``, as every result carries them."""
    return [gap.text for gap in gaps]


def named_ranks(ranks: Iterable[int], count: int | None = None) -> str:
    """``rank 3``, or ``ranks 0, 1, 2 and 61 more``; ``count``: how many ``ranks`` there are, where iterating is costly.

    >>> named_ranks([3]), named_ranks(range(64)), named_ranks(range(10**9), 10**9)
    ('rank 3', 'ranks 0, 1, 2 and 61 more', 'ranks 0, 1, 2 and 999,999,997 more')
    """
    total = len(list(ranks)) if count is None else count
    shown = ", ".join(str(rank) for rank in islice(ranks, SHOWN_RANKS))
    more = f" and {total - SHOWN_RANKS:,} more" if total > SHOWN_RANKS else ""
    return f"rank{'s' if total > 1 else ''} {shown}{more}"
