"""Time to a target on a terminal: a line per size with epochs, time, energy and cost, then what failures do to it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from rich.box import SIMPLE_HEAD
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from allpull.report.printable import printable
from allpull.report.terminal.table import bullets
from allpull.report.wording import ABSENT
from allpull.schema.target import NOTED_CHANCE, Bounds, TargetForecast
from allpull.units import counted, percent, show_count, show_time

FROM = {"stated": "stated", "runs": "epochs of these runs", "published": "epochs of the published recipe"}


def targets(forecasts: Sequence[TargetForecast]) -> RenderableType:
    """The sizes to one target; there is one at least."""
    first = forecasts[0]
    recipe = f" {first.recipe}" if first.recipe else ""
    table = Table(box=SIMPLE_HEAD, pad_edge=False, show_edge=False, collapse_padding=True)
    titles = ["ranks", "global batch", "epochs", "time", "90 % interval"]
    titles += ["kWh"] if first.energy_kwh is not None else []
    titles += ["cost"] if first.cost is not None else []
    for title in titles:
        table.add_column(title, justify="right", no_wrap=True)
    for one in forecasts:
        cells = [f"{one.ranks:,}", show_count(one.global_batch), _value(one.epochs, _plain)]
        cells += [_value(one.time_s, show_time), _interval(one.time_s, show_time)]
        cells += [_value(of, show_count) for of in (one.energy_kwh, one.cost) if of is not None]
        table.add_row(*cells)
    title = f"Time to {first.target} ({FROM[first.epochs_from]}{recipe}):"
    parts: list[RenderableType] = [Text(printable(title)), table]
    if lines := [*_bounded(forecasts), *_interrupted(forecasts)]:
        parts += [Text(), bullets(lines)]
    return Group(*parts)


def _plain(number: float) -> str:
    return f"{number:.3g}"


def _value(of: Bounds, show: Callable[[float], str]) -> str:
    """The estimate, else the bound that is known."""
    if of.value is not None:
        return show(of.value)
    if of.low is not None and of.high is not None:
        return f"{show(of.low)} to {show(of.high)}"
    if of.low is not None:
        return f"≥ {show(of.low)}"
    return ABSENT if of.high is None else f"≤ {show(of.high)}"


def _interval(of: Bounds, show: Callable[[float], str]) -> str:
    if of.value is None or of.low is None or of.high is None:
        return ABSENT
    return f"{show(of.low)} to {show(of.high)}"


def _bounded(forecasts: Sequence[TargetForecast]) -> Iterator[str]:
    for reason in dict.fromkeys(one.bounded for one in forecasts if one.bounded is not None):
        sizes = ", ".join(f"{one.ranks:,}" for one in forecasts if one.bounded == reason)
        yield f"bounds alone on {sizes} ranks: {reason}"


def _interrupted(forecasts: Sequence[TargetForecast]) -> Iterator[str]:
    """Of the largest size, which is interrupted most often."""
    largest = max(forecasts, key=lambda one: one.ranks)
    found = largest.interruptions
    if found.mean_between_s.value is None or (found.chance.value or 0) < NOTED_CHANCE:
        return
    assert found.chance.value is not None
    line = (
        f"{counted(largest.ranks, 'rank')}: interrupted every {show_time(found.mean_between_s.value)} on average, this"
        f" training with a probability of {percent(found.chance.value, 1)}"
    )
    interval, useful = found.checkpoint_interval_s, found.useful_share
    if interval is not None and useful is not None and interval.value is not None and useful.value is not None:
        line += (
            f"; with a checkpoint every {show_time(interval.value)}, {percent(useful.value, 1)} of the time is useful"
        )
    yield line
