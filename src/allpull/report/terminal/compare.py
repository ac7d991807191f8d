"""A comparison on the terminal: decision, metrics, follow-up of remedies, gates and differences."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from itertools import chain

from rich.box import SIMPLE_HEAD
from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.table import Table
from rich.text import Text

from allpull.report.printable import printable, short
from allpull.report.terminal.table import bullets
from allpull.report.wording import ABSENT, joined, percent, times
from allpull.schema.compared import Change, CompareResult, Difference, GateResult, NewFinding, RemedyFollowUp
from allpull.schema.results import Interval
from allpull.units import counted, show_count, show_time

WIDE = 76  # columns from which both values fit next to the change
VALUE_CHARACTERS = 60  # of one differing fact; --json has all of it
MOST_RANKS = 4  # named per finding
MOST_DIFFERENCES = 12  # shown; --json has all
STYLES = {"slower": "red", "worse": "red", "failed": "red", "faster": "green", "better": "green", "passed": "green"}

STATES = {
    "gone": "it is gone",
    "not found": "it is not found any more, which a larger loss that is new may hide",
    "smaller": "it is smaller",
    "still there": "it is still there",
    "not known": "not known whether it is gone: run allpull explain on the runs after",
}
AGREEMENT = {"kept": "as predicted", "more": "more than predicted", "less": "less than predicted"}


class Comparison:
    """``result``, laid out for the width of the console."""

    def __init__(self, result: CompareResult) -> None:
        self.result = result

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        result = self.result
        yield headline(result)
        yield bullets(list(_basis(result)))
        yield _metrics(result, wide=options.max_width >= WIDE)
        promised = [_follow_up(one, alone=len(result.promised) == 1) for one in result.promised]
        promises = _titled("Predictions of explain:", promised)
        appeared = _titled("Findings of explain that only the runs after have:", [_new(one) for one in result.appeared])
        yield from chain(*((appeared, promises) if result.is_worse else (promises, appeared)))
        if result.gates:
            yield Text("Gates:")
            yield from (_gate(one) for one in result.gates)
        yield from _titled("The runs after differ in:", list(_differences(result.differences)))
        yield from _titled("Note:", result.notes)


def headline(result: CompareResult) -> Text:
    """The decision in one line, with the change that it rests on."""
    line = Text(result.decision, style=f"bold {STYLES.get(result.decision, '')}".strip())
    primary = next((one for one in result.metrics if one.metric == result.metric), None)
    return line.append(
        f": {result.metric} {_level(primary, result.confidence)}" if primary else "", style="not bold default"
    )


def change(one: Change) -> str:
    """The change of a metric with its interval.

    >>> interval = Interval(value=0.951, low=0.938, high=0.9641)
    >>> unset = dict(before=None, after=None, within_runs=None, decision="slower", basis="both sides")
    >>> change(Change(metric="throughput", unit="samples/s", scale="ratio", change=interval, **unset))
    '−4.9 % (−6.2 to −3.6 %)'
    """
    if one.change is None:
        return ABSENT
    if one.scale == "difference" and one.unit == "s":
        return _of_times(one.change)
    if one.scale == "ratio":
        parts = [None if part is None else 100 * (part - 1) for part in _parts(one.change)]
        return _signed(parts, "%")
    return _signed([None if part is None else 100 * part for part in _parts(one.change)], "pp")


def _level(one: Change, confidence: float) -> str:
    bounded = one.change is not None and one.change.low is not None
    return f"{change(one)}, {100 * confidence:g} % interval" if bounded else f"{change(one)}, interval not known"


def _parts(interval: Interval) -> tuple[float, float | None, float | None]:
    return interval.value, interval.low, interval.high


def _signed(parts: Sequence[float | None], unit: str) -> str:
    """Value and bounds, to the digit that half the width of the interval allows."""
    value, low, high = parts
    assert value is not None  # an interval always has a value
    if low is None or high is None:
        return _minus(f"{value:+.1f} {unit}")
    half = (high - low) / 2
    digits = min(3, max(0, 1 - math.floor(math.log10(half)))) if half > 0 else 1
    digits = digits - 1 if digits and half * 10 ** (digits - 1) >= 2 else digits
    value, low, high = (round(part, digits) + 0.0 for part in (value, low, high))  # + 0.0: never "-0"
    return _minus(f"{value:+,.{digits}f} {unit} ({low:+,.{digits}f} to {high:+,.{digits}f} {unit})")


def _of_times(interval: Interval) -> str:
    value, low, high = (None if part is None else _plus(show_time(part), part) for part in _parts(interval))
    return _minus(f"{value}" if low is None else f"{value} ({low} to {high})")


def _plus(text: str, value: float) -> str:
    return f"+{text}" if value > 0 else text


def _minus(text: str) -> str:
    return text.replace("-", "−")


def _basis(result: CompareResult) -> Iterator[str]:
    """The number of runs, and the smallest change that such data show."""
    for name, side in (("before", result.before), ("after", result.after)):
        fewest, most = min(run.steps for run in side), max(run.steps for run in side)
        steps = f"{fewest:,}" if fewest == most else f"{fewest:,} to {most:,}"
        yield f"{counted(len(side), 'run')} {name}, of {steps} steady steps{' each' if len(side) > 1 else ''}."
    primary = next((one for one in result.metrics if one.metric == result.metric), None)
    if primary is None:
        return
    if primary.smallest is not None:
        size = percent(primary.smallest) if primary.scale == "ratio" else _absolute(primary, primary.smallest)
        yield f"Such data show a change of {size} four times in five."
    elif primary.within_runs is not None:
        within = primary.model_copy(update={"change": primary.within_runs})
        yield f"From the variation within these runs alone: {change(within)}; run-to-run variation adds to it."


def _absolute(one: Change, value: float) -> str:
    return show_time(value) if one.unit == "s" else f"{100 * value:.2g} pp"


def _metrics(result: CompareResult, *, wide: bool) -> Table:
    table = Table(box=SIMPLE_HEAD, pad_edge=False, show_edge=False, collapse_padding=not wide)
    table.add_column("metric", overflow="fold", no_wrap=wide, style="bold")
    for title in ("before", "after") if wide else ():
        table.add_column(title, justify="right", overflow="fold")
    table.add_column(f"change ({100 * result.confidence:g} %)", justify="right", overflow="fold")
    table.add_column("", overflow="fold")
    for one in shown_metrics(result):
        both = [value(one, one.before), value(one, one.after)] if wide else []
        table.add_row(one.metric, *both, change(one), _shown(one))
    return table


def shown_metrics(result: CompareResult) -> list[Change]:
    """The metrics of a comparison without those that are 0 on both sides, such as checkpoints that nobody wrote."""
    return [one for one in result.metrics if one.before or one.after or one.metric == result.metric]


def _shown(one: Change) -> Text:
    return Text(one.decision if one.decision in STYLES else "", style=STYLES.get(one.decision, ""))


def value(one: Change, number: float | None) -> str:
    """One side's mean of a metric with its unit.

    >>> unset = dict(after=None, change=None, within_runs=None, decision="slower", basis="unknown")
    >>> value(Change(metric="step_s", unit="s", scale="ratio", before=0.2, **unset), 0.2)
    '200 ms'
    """
    if number is None:
        return ABSENT
    if one.unit == "share":
        return percent(number)
    return show_time(number) if one.unit == "s" else show_count(number)


def _follow_up(one: RemedyFollowUp, *, alone: bool) -> str:
    named_ranks = [str(rank) for rank in one.ranks[:MOST_RANKS]] + ["…"] * (len(one.ranks) > MOST_RANKS)
    ranks = f" (rank{'s' if len(one.ranks) > 1 else ''} {joined(named_ranks)})" if one.ranks else ""
    measured = _speedup(one.came) if one.came else ABSENT
    outcome = ""
    if one.kept != "not decidable":
        outcome = f", {measured} measured, {AGREEMENT[one.kept]}"
    elif one.changed or one.state in {"gone", "smaller"}:
        outcome = f", {measured} measured{': cannot tell' if alone and one.came else ' for all changes together'}"
    named = f"; changed: {joined(one.changed)}" if one.changed else ""
    return f"{one.rule}{ranks}: {_speedup(one.promised)} predicted{outcome}; {STATES[one.state]}{named}"


def _new(one: NewFinding) -> str:
    return f"{one.title}: {show_time(one.loss_s)} per step; without it {_speedup(one.gain)} [{one.rule}]"


def _speedup(interval: Interval) -> str:
    if interval.low is None or interval.high is None:
        return times(interval.value)
    return f"{times(interval.value)} ({interval.low:.2f} to {interval.high:.2f})"


def _gate(one: GateResult) -> Text:
    line = Text("  ")
    line.append(one.outcome, style=STYLES.get(one.outcome, "yellow"))
    return line.append(printable(f": {one.gate}: {one.words}"))


def _differences(differences: Sequence[Difference]) -> Iterator[str]:
    for one in differences[:MOST_DIFFERENCES]:
        must = " (must agree)" if one.key else ""
        before, after = (short(value, VALUE_CHARACTERS) for value in (one.before, one.after))
        yield f"{short(one.fact, VALUE_CHARACTERS)}{must}: {before} → {after}"
    if len(differences) > MOST_DIFFERENCES:
        yield f"and {len(differences) - MOST_DIFFERENCES:,} more, listed by --json"


def _titled(title: str, lines: Sequence[str]) -> Iterator[RenderableType]:
    if lines:
        yield Text(title)
        yield bullets(lines)
