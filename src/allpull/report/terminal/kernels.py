"""The work in profiler windows on a terminal: classes with their shares, and the largest kernels and operators."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich.box import SIMPLE_HEAD
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from allpull.report.printable import short
from allpull.report.terminal.table import bullets
from allpull.report.wording import percent
from allpull.schema.operators import ClassTime, KernelResult, KernelTime, KernelWindow
from allpull.units import counted, show_count, show_time

NAME_CHARACTERS = 64
TITLES = {
    "device": ("work on the device", "kernel or copy", "share of device time"),
    "cpu": ("work on the CPU", "operator", "share of operators"),
}
"""Where → title of its classes, of its names, and of their share."""


def tables(result: KernelResult) -> RenderableType:
    """Classes of work, then the largest kernels and operators; the device first."""
    parts: list[RenderableType] = [Text(headline(result.windows), style="bold")]
    for on, (classes, names, share) in TITLES.items():
        of_class = [one for one in result.classes if one.on == on]
        of_name = [one for one in result.top if one.on == on]
        if of_class:
            parts += [Text(), _table((classes, "", "per step", "calls", share), of_class)]
            parts += [Text(), _table((names, "class", "per step", "calls", "share"), of_name)]
    parts += [Text(), bullets([*_meaning(result), *result.notes])]
    return Group(*parts)


def headline(windows: Sequence[KernelWindow]) -> str:
    """The windows that were read: ranks and steps."""
    ranks = [str(one.rank) for one in windows]
    of = f"rank {ranks[0]}" if len(ranks) == 1 else f"ranks {', '.join(ranks)}"
    steps = sum(one.steps for one in windows)
    return f"Profiler windows of {of}: {counted(steps, 'step')} from step {min(one.first_step for one in windows):,}"


def _table(titles: Sequence[str], rows: Sequence[ClassTime]) -> Table:
    result = Table(box=SIMPLE_HEAD, pad_edge=False, show_edge=False, collapse_padding=True)
    result.add_column(titles[0], overflow="fold", style="bold")
    if titles[1]:
        result.add_column(titles[1], overflow="fold")
    for title in titles[2:]:
        result.add_column(title, justify="right", overflow="fold")
    for row in rows:
        name = [short(row.name, NAME_CHARACTERS), row.work] if isinstance(row, KernelTime) else [row.work]
        numbers = (show_time(row.s_per_step), show_count(row.calls_per_step), percent(row.share))
        result.add_row(*(Text(cell) for cell in (*name, *numbers)))
    return result


def _meaning(result: KernelResult) -> Iterator[str]:
    if any(one.on == "device" for one in result.classes):
        yield "A kernel is of the class of the operator that launched it; times of streams that overlap add up."
        yield "Communication on the device includes waiting: its kernels run until the last rank has come."
    else:
        yield "No kernel of a device was traced: these are operators on the CPU, by self time."
    yield "The profiler makes the steps of its windows longer, short operators most."
