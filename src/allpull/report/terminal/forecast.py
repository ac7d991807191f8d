"""A forecast from runs on a terminal: a line per size with its interval and its terms, and what would narrow it."""

from __future__ import annotations

from collections.abc import Iterator

from rich.box import SIMPLE_HEAD
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from allpull.report.printable import printable
from allpull.report.terminal.table import bullets
from allpull.report.terminal.targets import targets
from allpull.report.wording import ABSENT
from allpull.schema.forecast import ForecastParameter, ForecastResult, ForecastSize
from allpull.schema.interval import Interval
from allpull.units import counted, percent, show_count, show_time

SMALL = 0.001  # of a step: a term below it in every size has no column


def forecast(result: ForecastResult) -> RenderableType:
    """The sizes, what a step consists of, and what is not measured."""
    if result.refused is not None:
        parts: list[RenderableType] = [Text(printable(f"{result.program}: no forecast. {_sentence(result.refused)}"))]
    else:
        parts = [Text(printable(_headline(result))), Text(), _sizes(result), Text(), _terms(result)]
    if any(one.epoch is not None for one in result.predictions):
        parts += [Text(), _epochs(result)]
    if result.waterfall:
        parts += [Text(), Text("What if:"), _what_ifs(result)]
    if result.targets:
        parts += [Text(), targets(result.targets)]
    if result.refused_sizes and result.refused is None:
        parts += [Text(), Text("Not predicted:")]
        parts.append(bullets([f"{counted(one.ranks, 'rank')}: {one.reason}" for one in result.refused_sizes]))
    if lines := list(_unknown(result)):
        parts += [Text(), Text("What is not measured:"), bullets(lines)]
    if result.next_measurement is not None:
        parts += [Text(), Text(printable(_next(result)))]
    if result.notes:
        parts += [Text(), bullets(result.notes)]
    return Group(*parts)


def _headline(result: ForecastResult) -> str:
    runs = sorted({(one.ranks, one.hosts) for one in result.calibration if one.kind == "run"})
    places = " and ".join(f"{counted(ranks, 'rank')} on {counted(hosts, 'host')}" for ranks, hosts in runs)
    probes = sum(one.kind == "probe" for one in result.calibration)
    more = f" and {counted(probes, 'probe')}" if probes else ""
    batch = result.predictions[0].batch
    is_one = all(one.batch == batch for one in result.predictions)
    samples = f", {show_count(batch)} samples per rank and step" if is_one else ""
    return f"{result.program}, from {places}{more}{samples}; intervals cover 90 %."


def _sizes(result: ForecastResult) -> Table:
    held_back = any(one.measured_step_s is not None for one in result.predictions)
    table = _bare("ranks", "hosts", "step", "90 % interval", "samples/s", "efficiency")
    if held_back:
        table.add_column("held back", justify="right", no_wrap=True)
        table.add_column("error", justify="right", no_wrap=True)
    for one in result.predictions:
        cells = [
            f"{one.ranks:,}",
            f"{one.hosts:,}",
            show_time(one.step_s.value),
            _bounds(one.step_s),
            show_count(one.throughput.value),
            percent(one.efficiency.value),
        ]
        table.add_row(*cells, *(_compared(one) if held_back else ()))
    return table


def _compared(one: ForecastSize) -> tuple[str, str]:
    measured_s = one.measured_step_s
    return (
        (ABSENT, ABSENT) if measured_s is None else (show_time(measured_s), f"{one.step_s.value / measured_s - 1:+.1%}")
    )


def _terms(result: ForecastResult) -> Table:
    names = [
        name
        for name in dict.fromkeys(name for one in result.predictions for name in one.terms)
        if any(one.terms.get(name, 0.0) >= SMALL * one.step_s.value for one in result.predictions)
    ]
    table = _bare("ranks", *names)
    for one in result.predictions:
        table.add_row(
            f"{one.ranks:,}", *(show_time(one.terms[name]) if name in one.terms else ABSENT for name in names)
        )
    return table


def _epochs(result: ForecastResult) -> Table:
    known = [(one.ranks, one.epoch) for one in result.predictions if one.epoch is not None]
    names = [
        name
        for name in dict.fromkeys(name for _, epoch in known for name in epoch.terms)
        if any(epoch.terms.get(name, 0.0) >= SMALL * epoch.seconds.value for _, epoch in known)
    ]
    table = _bare("ranks", "epoch", "90 % interval", "steps", *names)
    for ranks, epoch in known:
        of_terms = [show_time(epoch.terms[name]) if name in epoch.terms else ABSENT for name in names]
        table.add_row(
            f"{ranks:,}", show_time(epoch.seconds.value), _bounds(epoch.seconds), f"{epoch.steps:,}", *of_terms
        )
    return table


def _what_ifs(result: ForecastResult) -> Table:
    """By how much each term changes, and what costs most afterwards, beside compute."""
    before = {one.ranks: one for one in result.predictions}
    names = [
        name
        for name in dict.fromkeys(name for one in result.waterfall for name in one.change_s)
        if any(abs(one.change_s.get(name, 0.0)) >= SMALL * before[one.ranks].step_s.value for one in result.waterfall)
    ]
    table = _bare("ranks", "change", "step", "90 % interval", "samples/s", *names, "then most")
    for one in result.waterfall:
        gain = one.throughput.value / before[one.ranks].throughput.value - 1
        changes = [_signed(one.change_s.get(name, 0.0)) for name in names]
        cells = [f"{one.ranks:,}", printable(one.change), show_time(one.step_s.value), _bounds(one.step_s)]
        table.add_row(*cells, f"{gain:+.0%}", *changes, one.bottleneck)
    return table


def _signed(change_s: float) -> str:
    return f"{'−' if change_s < 0 else '+'}{show_time(abs(change_s))}" if abs(change_s) > 1e-9 else ABSENT


def _bare(*titles: str) -> Table:
    table = Table(box=SIMPLE_HEAD, pad_edge=False, show_edge=False, collapse_padding=True)
    for title in titles:
        table.add_column(title, justify="right", no_wrap=True)
    return table


def _unknown(result: ForecastResult) -> Iterator[str]:
    for one in result.parameters:
        if one.state != "measured" and one.reason is not None:
            yield f"{one.name} ({one.state}, {_value(one)}): {one.reason}"


def _value(one: ForecastParameter) -> str:
    if one.unit == "s":
        return f"{show_time(one.value.value)}, {_bounds(one.value)}"
    if one.unit == "s/byte":
        low, high = (f"{show_count(1 / bound)}B/s" for bound in (one.value.high or 1.0, one.value.low or 1.0))
        return f"{low} to {high}"
    return f"{one.value.low:.2g} to {one.value.high:.2g} {one.unit}"


def _next(result: ForecastResult) -> str:
    measurement = result.next_measurement
    assert measurement is not None
    narrows = f"of the interval's variance, {percent(measurement.share)} is {measurement.parameter}"
    reason = f" ({narrows})" if result.predictions else ""
    return f"Measure next, to narrow the interval most: {measurement.command}{reason}."


def _bounds(interval: Interval) -> str:
    assert interval.low is not None
    assert interval.high is not None
    return f"{show_time(interval.low)} to {show_time(interval.high)}"


def _sentence(text: str) -> str:
    return f"{text[:1].upper()}{text[1:]}."
