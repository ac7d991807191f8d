"""How efficient is each size? The efficiencies of the POP Centre, a column per size, as its audits print them."""

from __future__ import annotations

from allpull.report import pop_layout
from allpull.report.html.block import Block, Part, Table, Text, Tone
from allpull.report.pop_layout import FAIR, GOOD, Column, cell, columns, lines
from allpull.schema.reported import ScalingReport
from allpull.units import counted, percent

TITLE = "POP efficiencies"


def block(report: ScalingReport) -> Block | None:
    """The POP table of the runs; None if none has efficiencies."""
    shown = columns(report.show.runs)
    if not shown:
        return None
    rows: list[tuple[str, ...]] = []
    tones: dict[tuple[int, int], Tone] = {}
    for name, values in lines(shown):
        tones |= {(len(rows), 1 + at): tone(value) for at, value in enumerate(values) if value is not None}
        rows.append((name, *(cell(value) for value in values)))
    table = Table(
        caption="Efficiencies by the definitions of the POP Centre",
        columns=("Efficiency", *(one.label for one in shown)),
        rows=[*rows, ("Steps", *(f"{one.pop.steps:,}" for one in shown))],
        tones=tones,
    )
    notes = [
        pop_layout.choice(report.show.runs, shown),
        pop_layout.basis(report.show.runs, report.show.reference),
        f"{pop_layout.USEFUL}.",
        f"{pop_layout.MAPPING}.",
        *_other_count(shown),
    ]
    texts: list[Part] = [Text(text=note, quiet=True) for note in notes if note]
    return Block(title=TITLE, lead=_lead(max(shown, key=lambda one: one.ranks)), parts=[table, *texts])


def _lead(largest: Column) -> str:
    pop = largest.pop
    parts = {"load balance": pop.load_balance, "serialisation": pop.serialisation, "transfer": pop.transfer}
    worst = min(parts, key=lambda name: parts[name])
    whole = f"{counted(largest.ranks, 'rank').capitalize()} compute {percent(pop.parallel)} of the time"
    return f"{whole}; the lowest of the three factors is {worst}: {cell(parts[worst])}."


def _other_count(shown: list[Column]) -> list[str]:
    return [f"{one.label}: {line[0].lower()}{line[1:]}" for one in shown for line in pop_layout.other_count(one.pop)]


def tone(value: float) -> Tone:
    """Good, fair or poor by the marks of the POP Centre."""
    return "good" if value >= GOOD else "fair" if value >= FAIR else "poor"
