"""Which ranks delayed the others, on a terminal: the most costly ranks, and the phase that made each late.

One rank is late, and all others wait: so each line is a late rank, with the time that each of the others waited
for it in the mean step.
"""

from __future__ import annotations

from collections.abc import Iterator

from rich.box import SIMPLE_HEAD
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from allpull.schema.explained import ExplainResult, Waiting
from allpull.units import percent, show_time

LEAST = 0.01  # of a step, by the mean rank: shorter waits are not attributed
MOST_CULPRITS = 5  # --json has all of them
MOST_REASONS = 3
LEAST_REASON = 0.05  # of what a rank caused
MOST_VICTIMS = 3
UNKNOWN = "no one phase"


def waiting(result: ExplainResult) -> RenderableType | None:
    """Late ranks with reasons, largest first; None if ranks wait too little for it to matter."""
    waiting, steps = result.waiting, result.window.steps
    if waiting is None or not steps or result.ranks < 2:
        return None
    step_s = result.window.seconds / steps
    totals = [sum(parts) for parts in zip(*waiting.phases.values(), waiting.unattributed, strict=True)]
    if sum(totals) < LEAST * step_s * result.ranks:
        return None
    order = sorted(range(len(totals)), key=lambda rank: -totals[rank])
    shown = [rank for rank in order[:MOST_CULPRITS] if totals[rank] >= LEAST * step_s]
    table = Table(box=SIMPLE_HEAD, pad_edge=False, show_edge=False, collapse_padding=True)
    table.add_column("late", no_wrap=True)
    table.add_column("each other waited", justify="right")
    table.add_column("because of")
    table.add_column("longest")
    for rank in shown:
        each_s = totals[rank] / (result.ranks - 1)
        table.add_row(
            Text(f"rank {rank}"),
            Text(f"{show_time(each_s)} per step"),
            Text(", ".join(_reasons(waiting, rank, totals[rank]))),
            Text(", ".join(_victims(waiting, rank))),
        )
    return Group(Text(), Text("Who waited for whom", style="bold"), table) if shown else None


def _reasons(waiting: Waiting, rank: int, total_s: float) -> Iterator[str]:
    """The phases that made ``rank`` late, as shares of the ``total_s`` that it caused, largest first."""
    parts = {name: by_rank[rank] for name, by_rank in waiting.phases.items()} | {UNKNOWN: waiting.unattributed[rank]}
    for name in sorted(parts, key=lambda name: -parts[name])[:MOST_REASONS]:
        if parts[name] >= LEAST_REASON * total_s:
            yield f"{name} {percent(parts[name] / total_s)}"


def _victims(waiting: Waiting, rank: int) -> Iterator[str]:
    """The rank that waited longest for ``rank``."""
    for pair in [pair for pair in waiting.pairs if pair.culprit == rank][:MOST_VICTIMS]:
        yield f"rank {pair.victim} {show_time(pair.seconds)}"
