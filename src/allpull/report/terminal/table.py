"""The scaling table, the phases and the sentences, on a terminal of any width.

Nothing is passed to rich as markup, so that a name in brackets is unchanged; control characters are removed.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from rich.box import SIMPLE_HEAD
from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.table import Table
from rich.text import Text

from allpull.report.colours import in_order
from allpull.report.printable import printable, short
from allpull.report.wording import ABSENT, efficiencies, labels, percent, spread, times
from allpull.schema.results import RunMetrics, ShowResult
from allpull.units import show_time

WIDE = 96  # columns from which phases fit next to the numbers
NARROW = 54  # columns below which a table would break its numbers
PHASE_COLUMNS, RUN_COLUMNS, BOUND_COLUMNS = 14, 15, 10
ALWAYS = 2  # columns that stay where no run has a value: throughput and step
LARGEST = 3  # phases named in the compact form
CLOCKED = ("wait", "transfer")  # phases that compare the clocks of hosts


def table(show: ShowResult, *, with_phases: bool = True) -> RenderableType:
    """One line per run: ranks, samples/s ± spread, median step, speed-up, efficiency, test accuracy and phases.

    A column that no run has a value for is left out.

    On a terminal narrower than ``WIDE`` the phases appear below the table, and nowhere without
    ``with_phases``; below ``NARROW`` there are sentences.
    """
    return _Scaling(show, with_phases)


def phases(show: ShowResult) -> RenderableType:
    """Time per step of each measured phase by run, in as many tables as the terminal needs."""
    return _Phases(show)


def bullets(sentences: Sequence[str]) -> RenderableType:
    """The interpretation: one sentence per bullet, with a hanging indent."""
    grid = Table.grid(padding=(0, 1))
    grid.add_column(width=1)
    grid.add_column()
    for sentence in sentences:
        grid.add_row(Text("•"), Text(printable(sentence)))
    return grid


def compact_phases(run: RunMetrics) -> str:
    """The largest phases of a step with their shares, the rest summed: ``backward 52%, forward 28%, rest 20%``.

    Empty if no phase was measured.
    """
    measured = {name: time_s for name, time_s in run.phases.items() if time_s is not None}
    total_s = sum(measured.values())
    if total_s <= 0:
        return ""
    ordered = sorted(measured, key=lambda name: -measured[name])
    parts = [(short(name, 20), measured[name] / total_s) for name in ordered[:LARGEST]]
    if len(ordered) > LARGEST:
        parts.append(("rest", sum(measured[name] for name in ordered[LARGEST:]) / total_s))
    return ", ".join(f"{name} {100 * share:.0f}%" for name, share in parts)


@dataclass(frozen=True, slots=True)
class _Scaling:
    """The scaling table, laid out for the width of the console."""

    show: ShowResult
    with_phases: bool

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        named = list(zip(labels(self.show.runs), self.show.runs, strict=True))
        is_wide = options.max_width >= WIDE
        if options.max_width < NARROW:
            for (label, run), share in zip(named, efficiencies(self.show.runs), strict=True):
                yield Text.assemble(_name(label, run), ": ", _sentence(run, share))
        else:
            yield _scaling_table(named, is_wide=is_wide, with_phases=is_wide and self.with_phases)
        if self.with_phases and not is_wide:
            yield from (Text(f"{label}: {line}") for label, run in named if (line := compact_phases(run)))


def _scaling_table(named: Sequence[tuple[str, RunMetrics]], *, is_wide: bool, with_phases: bool) -> Table:
    titles = (
        *("samples/s", "median step", "speed-up"),
        *(("efficiency", "test top-1") if is_wide else ("effic.", "top-1")),
    )
    shares = efficiencies([run for _, run in named])
    rows = [list(_numbers(run, share)) for (_, run), share in zip(named, shares, strict=True)]
    measured = [at for at in range(len(titles)) if at < ALWAYS or any(row[at] != ABSENT for row in rows)]
    result = _bare_table(collapse_padding=not is_wide)
    result.add_column("run", overflow="fold", style="bold")
    for at in measured:
        result.add_column(titles[at], justify="right", overflow="fold")
    if with_phases:
        result.add_column("phases of a mean step", overflow="fold")
    for (label, run), row in zip(named, rows, strict=True):
        phases_cell = [Text(compact_phases(run) or ABSENT)] if with_phases else []
        result.add_row(_name(label, run), *(Text(row[at]) for at in measured), *phases_cell)
    return result


def _bare_table(*, collapse_padding: bool = False) -> Table:
    return Table(box=SIMPLE_HEAD, pad_edge=False, show_edge=False, collapse_padding=collapse_padding)


def _name(label: str, run: RunMetrics) -> Text:
    name = Text(label)
    if run.status != "completed":
        name.append(f" {short(run.status, 20)}", style="red")
    return name


def _numbers(run: RunMetrics, efficiency: float | None) -> Iterator[str]:
    yield spread(run.throughput)
    yield show_time(run.step_s.median) if run.step_s else ABSENT
    yield times(run.speedup)
    yield percent(efficiency)
    yield percent(run.accuracy)


def _sentence(run: RunMetrics, efficiency: float | None) -> str:
    rate, step, speedup, share, accuracy = _numbers(run, efficiency)
    parts = (("median step", step), ("speed-up", speedup), ("efficiency", share), ("test top-1", accuracy))
    return ", ".join([f"{rate} samples/s", *(f"{name} {value}" for name, value in parts if value != ABSENT)])


@dataclass(frozen=True, slots=True)
class _Phases:
    """The table of phases, split into groups of runs that fit the width of the console."""

    show: ShowResult

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        named = list(zip(labels(self.show.runs), self.show.runs, strict=True))
        names = in_order(n for _, run in named for n, time_s in run.phases.items() if time_s is not None)
        if not names:
            yield Text("No phase was measured.")
            return
        run_columns = max([RUN_COLUMNS, *(len(label) + 3 for label, _ in named)])
        run_columns += BOUND_COLUMNS * any(run.clock_error_s for _, run in named)
        room = max(1, (options.max_width - PHASE_COLUMNS) // run_columns)
        for begin in range(0, len(named), room):
            yield _phase_table(names, named[begin : begin + room])


def _phase_table(names: Sequence[str], named: Sequence[tuple[str, RunMetrics]]) -> Table:
    result = _bare_table(collapse_padding=True)
    result.add_column("mean step", overflow="fold", style="bold")
    for label, _ in named:
        result.add_column(Text(label), justify="right", overflow="fold")
    for name in names:
        result.add_row(Text(short(name, 40)), *(Text(_cell(run, name)) for _, run in named))
    return result


def _cell(run: RunMetrics, name: str) -> str:
    time_s = run.phases.get(name)
    if time_s is None:
        return ABSENT
    total_s = sum(value for value in run.phases.values() if value is not None)
    bound = f" ± {show_time(run.clock_error_s)}" if run.clock_error_s and name in CLOCKED else ""
    return f"{show_time(time_s)}{bound} {100 * time_s / total_s:3.0f}%" if total_s > 0 else show_time(time_s)
