"""One snapshot of a running job as a page for a terminal."""

from __future__ import annotations

from collections.abc import Iterator

from rich.console import Group, RenderableType
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from allpull.report.printable import printable, short
from allpull.schema.results import RankWatched, Trouble, WatchResult
from allpull.units import percent, show_count, show_time

MOST_RANKS = 24  # rows of the table; ranks in trouble come first
TITLES = {"collective": "blocked in collectives"}
COLOURS = {"dead": "bold red", "hung": "bold red", "slow": "yellow"}


def page(result: WatchResult) -> RenderableType:
    """Progress, problems, phases and ranks; output of other programs is shown as plain text."""
    return Group(*_parts(result))


def _parts(result: WatchResult) -> Iterator[RenderableType]:
    state = "killed, with the allpull that ran it" if result.is_over else result.status
    yield Text(f"{short(result.run, 80)}: {state}", style="bold")
    yield from _progress(result)
    if not result.ranks:
        yield Text("no rank has recorded anything yet")
        return
    for trouble in result.troubles:
        yield from _trouble(trouble)
    if result.status == "running" and not result.troubles:
        yield Text("no rank is slow, dead or hung", style="green")
    yield _phases(result)
    yield _ranks(result)


def _progress(result: WatchResult) -> Iterator[RenderableType]:
    steps = f"step {result.steps_done:,}" + (f" of {result.steps_total:,}" if result.steps_total else "")
    parts = [steps]
    if result.epoch is not None:
        parts.append(f"epoch {result.epoch + 1}")
    if result.samples_per_s is not None:
        parts.append(f"{show_count(result.samples_per_s)} samples/s")
    if result.step_s is not None:
        parts.append(f"{show_time(result.step_s)} per step (median)")
    if result.left_s is not None:
        parts.append(f"{show_time(result.left_s)} left")
    yield Text(" · ".join(parts))
    if result.steps_total:
        yield ProgressBar(total=result.steps_total, completed=min(result.steps_done, result.steps_total), width=60)


def _trouble(trouble: Trouble) -> Iterator[RenderableType]:
    yield Text(printable(trouble.words), style=COLOURS[trouble.kind])
    for frame in trouble.stack:
        yield Text(f"    {printable(frame)}", style="dim")


def _phases(result: WatchResult) -> Text:
    total = sum(result.phases.values())
    parts = sorted(result.phases.items(), key=lambda item: (item[0] == "other", -item[1]))
    shown = [f"{TITLES.get(name, name)} {percent(seconds / total)}" for name, seconds in parts if total and seconds > 0]
    return Text("mean of the last steps: " + (", ".join(shown) or "nothing yet"))


def _ranks(result: WatchResult) -> Table:
    table = Table(box=None, pad_edge=False, header_style="dim")
    for heading in ("rank", "host", "step", "own work", "now"):
        table.add_column(heading, justify="right" if heading in {"rank", "step", "own work"} else "left")
    named = {trouble.rank: COLOURS[trouble.kind] for trouble in result.troubles}
    ordered = sorted(result.ranks, key=lambda rank: (rank.rank not in named, rank.rank))
    for rank in ordered[:MOST_RANKS]:
        own = "" if rank.own_s is None else show_time(rank.own_s)
        cells = (str(rank.rank), short(rank.host, 24), f"{rank.steps_done:,}", own, _now(rank))
        table.add_row(*(Text(cell) for cell in cells), style=named.get(rank.rank, ""))
    if len(ordered) > MOST_RANKS:
        table.add_row(Text("…"), Text(f"and {len(ordered) - MOST_RANKS:,} more"))
    return table


def _now(rank: RankWatched) -> str:
    if rank.ended:
        return "has ended"
    if rank.alive is False:
        return "is dead"
    what = rank.operation or rank.phase or "between phases"
    long = rank.phase_for_s is not None and rank.phase_for_s >= 1
    return f"{what}, for {show_time(rank.phase_for_s)}" if long and rank.phase_for_s is not None else what
