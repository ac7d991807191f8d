"""Files of several jobs make no run: refuse them where they contradict each other in how many ranks there were."""

from __future__ import annotations

from collections.abc import Sequence

from allpull.errors import BadInput
from allpull.importers.part import Part

WHOLE = frozenset({"0", "default_pg"})
"""Names that torch has given to the group of all ranks."""
MOST_SHOWN = 4


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


def job_ranks(part: Part) -> int | None:
    """How many ranks the job of ``part`` had: as the trace says, or by the group of all ranks; None: it is not told."""
    if part.ranks is not None and not part.is_dump:
        return part.ranks
    sizes = {call.use.group_ranks for call in part.calls if call.use.group.partition(" ")[0] in WHOLE}
    return max(sizes, default=0) or None


def _more(files: int) -> str:
    return f" and {files:,} more" if files else ""
