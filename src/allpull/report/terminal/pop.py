"""The POP table on a terminal: a line per efficiency, a column per run, or per size where runs do not fit."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from rich.box import SIMPLE_HEAD
from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.table import Table
from rich.text import Text

from allpull.report import pop_layout
from allpull.report.pop_layout import FAIR, GOOD, Column, cell, columns, lines
from allpull.report.terminal.table import bullets
from allpull.schema.results import ShowResult

NAME_COLUMNS = 30


def pop_table(show: ShowResult) -> RenderableType | None:
    """The POP table of several runs, the reference and how useful time is counted; None if none has efficiencies."""
    return _Pop(show) if columns(show.runs) else None


@dataclass(frozen=True, slots=True)
class _Pop:
    """The table, laid out for the width of the console."""

    show: ShowResult

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        shown = columns(self.show.runs)
        if len(shown) > _room(shown, options):
            shown = columns(self.show.runs, most=1)
        room = _room(shown, options)
        for begin in range(0, len(shown), room):
            yield _table(shown[begin : begin + room])
        yield bullets(list(self._notes(shown)))

    def _notes(self, shown: Sequence[Column]) -> Iterator[str]:
        if chosen := pop_layout.choice(self.show.runs, shown):
            yield chosen
        basis = pop_layout.basis(self.show.runs, self.show.reference)
        if basis:
            yield basis
        yield f"{pop_layout.USEFUL}."


def _room(shown: Sequence[Column], options: ConsoleOptions) -> int:
    """The number of columns as wide as the widest of ``shown`` that fit beside the names."""
    return max(1, (options.max_width - NAME_COLUMNS) // (max(len(one.label) for one in shown) + 2))


def _table(shown: Sequence[Column]) -> Table:
    result = Table(box=SIMPLE_HEAD, pad_edge=False, show_edge=False, collapse_padding=True)
    result.add_column("POP efficiencies", no_wrap=True)
    for column in shown:
        result.add_column(Text(column.label), justify="right", overflow="fold")
    for name, values in lines(shown):
        result.add_row(Text(name), *(Text(cell(value), style=_tone(value)) for value in values))
    return result


def _tone(value: float | None) -> str:
    if value is None or value >= GOOD:
        return ""
    return "yellow" if value >= FAIR else "red"
