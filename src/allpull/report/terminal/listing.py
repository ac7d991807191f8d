"""The runs of a folder on a terminal, a line each."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rich.box import SIMPLE_HEAD
from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.table import Table
from rich.text import Text

from allpull.report.printable import short
from allpull.report.terminal.table import bullets
from allpull.report.wording import ABSENT, spread
from allpull.schema.results import ListedRun, ListResult
from allpull.units import show_time

NAME_CHARACTERS = 20
MIN_FINDING, GAPS = 20, 20  # columns of a terminal: of a finding, and between columns with the room of their titles
SILENT_S = 600.0  # from which a running job is said to write nothing
WIDE = 110  # columns from which the first finding fits
NARROW = 76  # columns below which the program does not
PROGRAM = 2  # its place among the cells


def listing(result: ListResult) -> RenderableType:
    """One line per run, the latest first; without its first finding below ``WIDE``, its program below ``NARROW``."""
    parts: list[RenderableType] = [_Runs(result.runs)] if result.runs else []
    if result.damaged:
        parts += [Text(), "Not readable:", bullets(result.damaged)]
    return Group(*parts)


@dataclass(frozen=True, slots=True)
class _Runs:
    """The table, laid out for the width of the console."""

    runs: Sequence[ListedRun]

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        is_wide, is_narrow = options.max_width >= WIDE, options.max_width < NARROW
        table = Table(box=SIMPLE_HEAD, pad_edge=False, show_edge=False, collapse_padding=True)
        table.add_column("run", no_wrap=True, style="bold")
        table.add_column("name", overflow="fold")
        if not is_narrow:
            table.add_column("program", overflow="fold")
        for title in ("ranks", "took", "samples/s"):
            table.add_column(title, justify="right", no_wrap=True)
        if is_wide:
            taken = sum(max(len(cell) for cell in column) for column in zip(*map(_cells, self.runs), strict=True))
            room = max(MIN_FINDING, options.max_width - taken - GAPS)
            table.add_column("first finding", overflow="ellipsis", no_wrap=True, max_width=room)
        for run in self.runs:
            cells = [Text(cell) for at, cell in enumerate(_cells(run)) if at != PROGRAM or not is_narrow]
            table.add_row(*cells, *([Text(_finding(run))] if is_wide else []))
        yield table


def _cells(run: ListedRun) -> tuple[str, ...]:
    state = "" if run.status == "completed" else f" ({_state(run)})"
    return (
        short(run.run.partition("_")[0], NAME_CHARACTERS),
        short(run.name, NAME_CHARACTERS) + state,
        short(run.program, NAME_CHARACTERS),
        f"{run.ranks:,}",
        ABSENT if run.seconds is None or run.seconds < 0 else show_time(run.seconds),  # below 0: the clock was set back
        spread(run.throughput),
    )


def _state(run: ListedRun) -> str:
    if run.is_over:
        return "killed"
    is_silent = run.silent_s is not None and run.silent_s > SILENT_S
    return short(run.status, 12) + (f", silent for {show_time(run.silent_s or 0.0)}" if is_silent else "")


def _finding(run: ListedRun) -> str:
    return short(run.finding or ABSENT, 200)
