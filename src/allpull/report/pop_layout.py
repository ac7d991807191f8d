"""The efficiencies of the POP Centre in the layout of its audits: a line per efficiency, a column per size."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from allpull.report.wording import ABSENT, joined, labels, percent
from allpull.schema.pop import PopEfficiencies
from allpull.schema.results import RunMetrics
from allpull.units import counted

GOOD, FAIR = 0.9, 0.8  # POP: above 0.8 is acceptable
MOST_COLUMNS = 6  # runs; of more, one per size is shown
WORTH = 0.01  # of the run time: a smaller share changes no second decimal that matters
LINES = (
    ("Global efficiency", "global_"),
    ("  Parallel efficiency", "parallel"),
    ("    Load balance", "load_balance"),
    ("    Communication efficiency", "communication"),
    ("      Serialisation efficiency", "serialisation"),
    ("      Transfer efficiency", "transfer"),
    ("  Computational scaling", "computational"),
)
"""Name and field of each line, in POP's order; an efficiency is the product of those one level below it."""
MAPPING = (
    "Of the efficiency tree, transfer and load balance are POP's; POP's serialisation is the product of input, "
    "sequential, orchestration and serialisation"
)
USEFUL = (
    "Useful time is forward, backward, optimizer, and evaluation by all ranks; an evaluation or checkpoint on a few "
    "ranks is not: it lowers serialisation"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """The efficiencies of one run under its label."""

    label: str
    ranks: int
    pop: PopEfficiencies


def columns(runs: Sequence[RunMetrics], most: int = MOST_COLUMNS) -> list[Column]:
    """The runs with efficiencies: each, or of more than ``most`` one per size, by its median parallel efficiency."""
    known = [
        Column(label=label, ranks=run.ranks, pop=run.pop)
        for label, run in zip(labels(runs), runs, strict=True)
        if run.pop is not None
    ]
    if len(known) <= most:
        return known
    return [_median([one for one in known if one.ranks == ranks]) for ranks in sorted({one.ranks for one in known})]


def lines(shown: Sequence[Column]) -> Iterator[tuple[str, list[float | None]]]:
    """Name, indented by its level, and values of each line; one that no column has is left out."""
    for name, field in LINES:
        values: list[float | None] = [getattr(column.pop, field) for column in shown]
        if any(value is not None for value in values):
            yield name, values


def cell(value: float | None) -> str:
    """An efficiency to two decimals, as POP audits print it.

    >>> cell(0.3349), cell(1.0), cell(None)
    ('0.33', '1.00', '–')
    """
    return ABSENT if value is None else f"{value:.2f}"


def basis(runs: Sequence[RunMetrics], reference: str | None) -> str:
    """The reference of computational scaling, as a sentence; empty without one."""
    run = next((one for one in runs if one.run == reference), None)
    if run is None or run.pop is None or run.pop.computational is None:
        return ""
    return f"Computational scaling is useful time per sample against {counted(run.ranks, 'rank')}."


def choice(runs: Sequence[RunMetrics], shown: Sequence[Column]) -> str:
    """How the columns ``shown`` were chosen among ``runs``, as a sentence; empty where each is shown."""
    if len(shown) == sum(run.pop is not None for run in runs):
        return ""
    return "Of several runs on as many ranks, the one with the median parallel efficiency is shown."


def sentences(one: PopEfficiencies) -> list[str]:
    """The efficiencies of one run in a line, and those by another count of useful time where that differs."""
    whole = f"POP: parallel efficiency {cell(one.parallel)} = load balance {cell(one.load_balance)}"
    parts = f"serialisation {cell(one.serialisation)} × transfer {cell(one.transfer)}"
    line = f"{whole} × communication {cell(one.communication)} ({parts})."
    return [line, *other_count(one)]


def other_count(one: PopEfficiencies) -> list[str]:
    """What a tool that records communication alone shows of ``one``; [] where that is nearly the same."""
    outside = one.outside_communication
    largest = {name: share for name, share in outside.added.items() if share >= WORTH}
    if not largest:
        return []
    named = joined([f"{name} {percent(share)}" for name, share in sorted(largest.items(), key=lambda item: -item[1])])
    product = f"load balance {cell(outside.load_balance)} × communication {cell(outside.communication)}"
    counted_too = f"A tool that counts all work outside communication as useful ({named} of the time)"
    return [f"{counted_too} shows {cell(outside.parallel)} = {product}."]


def _median(repeats: Sequence[Column]) -> Column:
    middle = sorted(repeats, key=lambda one: one.pop.parallel)[(len(repeats) - 1) // 2]
    label = counted(middle.ranks, "rank")
    return Column(label=label, ranks=middle.ranks, pop=middle.pop)
