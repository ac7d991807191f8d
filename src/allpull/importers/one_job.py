"""Files of several jobs make no run: refuse those that tell other numbers of ranks, or were recorded days apart."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime

from allpull.errors import BadInput
from allpull.importers.part import Part
from allpull.units import NS_PER_S

WHOLE = frozenset({"0", "default_pg"})
"""Names that torch has given to the group of all ranks."""
MOST_SHOWN = 4
DAY_NS = 86_400 * NS_PER_S
RANKS_APART_NS = DAY_NS  # ranks of one job record the same steps; wall clocks of hosts are not wrong by days
FILES_APART_NS = 30 * DAY_NS  # of one rank: a profiler that comes back in a long job comes back sooner
REAL_NS = 10**9 * NS_PER_S  # September 2001: what is earlier counts from the start of a machine, and is no date


def check(parts: Sequence[Part]) -> None:
    """All of ``parts`` that tell the size of their job tell the same.

    Raises:
        BadInput: they do not.
    """
    told: dict[int, list[str]] = {}
    for part in parts:
        size = job_ranks(part)
        if size is not None:
            told.setdefault(size, []).append(part.source.shown)
    if len(told) < 2:
        return
    shown = [f"{files[0]}{_more(len(files) - 1)}: {size:,}" for size, files in sorted(told.items())]
    raise BadInput(
        "\n  ".join(["these are of several jobs: they tell different numbers of ranks", *shown[:MOST_SHOWN]]),
        hint="import the files of one job at a time: allpull import FILES…",
    )


def check_times(by_rank: Mapping[int, Sequence[Part]]) -> None:
    """All files were recorded within what a job may last; ``by_rank`` are those of each rank.

    Between two files in the order of time there may be a month, and a day where none of the ranks before is there
    afterwards: these have no step in common. Stamps that are no dates are left out.

    Raises:
        BadInput: they were not.
    """
    dated = sorted(
        (
            (part, rank)
            for rank, parts in by_rank.items()
            for part in parts
            if part.steps and _began_ns(part) >= REAL_NS
        ),
        key=lambda one: _began_ns(one[0]),
    )
    ended_ns = 0
    for place, (part, _) in enumerate(dated):
        apart_ns = _began_ns(part) - ended_ns
        if place and apart_ns > RANKS_APART_NS:
            sides = (dated[:place], dated[place:])
            before, after = ({rank for _, rank in side} for side in sides)
            if apart_ns > FILES_APART_NS or not before & after:
                _refuse(apart_ns, sides)
        ended_ns = max(ended_ns, part.steps[-1].end_ns)


def _refuse(apart_ns: int, sides: Sequence[Sequence[tuple[Part, int]]]) -> None:
    shown = [
        f"{datetime.fromtimestamp(_began_ns(part) // NS_PER_S, UTC):%Y-%m-%d}: {part.source.shown}{_more(len(its) - 1)}"
        for its in sides
        for part, _ in its[:1]
    ]
    days = f"{apart_ns / DAY_NS:,.0f} days"
    raise BadInput(
        "\n  ".join([f"these are of several jobs: {days} lie between their recordings", *shown]),
        hint="import the files of one job at a time: allpull import FILES…",
    )


def _began_ns(part: Part) -> int:
    return part.steps[0].begin_ns


def job_ranks(part: Part) -> int | None:
    """How many ranks the job of ``part`` had: as the trace says, or by the group of all ranks; None: it is not told."""
    if part.ranks is not None and not part.is_dump:
        return part.ranks
    sizes = {call.use.group_ranks for call in part.calls if call.use.group.partition(" ")[0] in WHOLE}
    return max(sizes, default=0) or None


def _more(files: int) -> str:
    return f" and {files:,} more" if files else ""
