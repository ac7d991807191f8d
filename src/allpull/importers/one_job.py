"""Refuse files of several jobs: those that state different world sizes, or were recorded days apart."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime

from allpull.errors import BadInput
from allpull.importers.part import Part
from allpull.units import NS_PER_S

WHOLE = frozenset({"0", "default_pg"})
"""Names that versions of torch give to the group of all ranks."""
MOST_SHOWN = 4
DAY_NS = 86_400 * NS_PER_S
RANKS_APART_NS = DAY_NS  # ranks of one job record the same steps; wall clocks of hosts are not wrong by days
FILES_APART_NS = 30 * DAY_NS  # of one rank: a profiler that records again in a long job does so sooner
REAL_NS = 10**9 * NS_PER_S  # September 2001: earlier stamps count from boot, and are no dates


def check(parts: Sequence[Part]) -> None:
    """Check that all of ``parts`` that state a world size state the same.

    Raises:
        BadInput: they differ.
    """
    files_by_size: dict[int, list[str]] = {}
    for part in parts:
        size = job_ranks(part)
        if size is not None:
            files_by_size.setdefault(size, []).append(part.source.shown)
    if len(files_by_size) < 2:
        return
    shown = [f"{files[0]}{_more(len(files) - 1)}: {size:,}" for size, files in sorted(files_by_size.items())]
    raise BadInput(
        "\n  ".join(["these files belong to several jobs: they state different world sizes", *shown[:MOST_SHOWN]]),
        hint="import the files of one job at a time: allpull import FILES…",
    )


def check_times(by_rank: Mapping[int, Sequence[Part]]) -> None:
    """Check that all files could have been recorded by one job; ``by_rank`` holds the files of each rank.

    Files that follow each other in time may be a month apart, but only a day where no rank occurs both before and
    after: then they have no step in common. Stamps that are no dates are ignored.

    Raises:
        BadInput: they are too far apart.
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
        "\n  ".join([f"these files belong to several jobs: they were recorded {days} apart", *shown]),
        hint="import the files of one job at a time: allpull import FILES…",
    )


def _began_ns(part: Part) -> int:
    return part.steps[0].begin_ns


def job_ranks(part: Part) -> int | None:
    """The world size of the job of ``part``: as the trace states, or by the group of all ranks; None: unknown."""
    if part.ranks is not None and not part.is_dump:
        return part.ranks
    sizes = {call.use.group_ranks for call in part.calls if call.use.group.partition(" ")[0] in WHOLE}
    return max(sizes, default=0) or None


def _more(files: int) -> str:
    return f" and {files:,} more" if files else ""
