"""What the study says, on the first screen: the best size, the efficiency at the largest, where it falls under 0.8."""

from __future__ import annotations

from collections.abc import Iterator
from operator import attrgetter

from allpull.report.html.block import Block, Notice, Part, Points, Tile, Tiles
from allpull.report.study.content import StudyReport
from allpull.report.study.lines import Series, plain_name, series
from allpull.report.study.scaling import ACCEPTABLE, bounds
from allpull.report.study.times import timed
from allpull.report.wording import joined, percent, ranged, spread, spread_parts, times, virtual_points
from allpull.schema.results import Interval
from allpull.schema.studied import StudyPoint
from allpull.study.epochs import may_be_cut, same_epochs
from allpull.study.results import WIDE, half_width
from allpull.units import counted, show_time

MOST_ITEMS = 12


def block(report: StudyReport) -> Block:
    """The answer in sentences and large numbers, with what makes it doubtful beside them."""
    lines = sentences(report)
    of_best = 2 if len(lines) == 2 else 1  # the scaling of the only series belongs to the answer
    parts: list[Part] = list(_doubts(report))
    tiles = list(_tiles(report))
    parts += [Tiles(tiles=tiles)] if tiles else []
    parts += [Points(items=lines[of_best:])] if lines[of_best:] else []
    return Block(title="What the study says", lead=" ".join(lines[:of_best]), parts=parts)


def sentences(report: StudyReport) -> list[str]:
    """The answer, most important sentence first; at least one."""
    best = best_point(report)
    if best is None:
        return ["No point has a throughput yet."]
    made = [_best(report, best)]
    for one in _scaled(report)[:MOST_ITEMS]:
        made += _scaling(one, is_only=len(_scaled(report)) == 1)
    return made


def best_point(report: StudyReport) -> StudyPoint | None:
    """The point with the shortest epoch, or where no epoch was timed the highest throughput; None: nothing measured."""
    with_epochs = [point for point in report.measured if point.epoch_s is not None]
    if _by_epoch(report):
        return min(with_epochs, key=lambda point: _value(point.epoch_s))
    return max(report.measured, key=lambda point: _value(point.throughput), default=None)


def _by_epoch(report: StudyReport) -> bool:
    """Whether the time of an epoch decides which point is best: some have a whole one, and epochs are the same work."""
    measured = report.measured
    return any(point.epoch_s is not None for point in measured) and same_epochs(measured) and not may_be_cut(measured)


def described(report: StudyReport, point: StudyPoint) -> str:
    """The ranks and hosts of a point, and its series where there are several."""
    known = series(report.study)
    own = [one.name for one in known if point.id in {other.id for other in one.points}] if len(known) > 1 else []
    hosts = f" on {counted(point.hosts, 'host')}" if point.hosts > 1 else ""
    return ", ".join([f"{counted(point.ranks, 'rank')}{hosts}", *own])


def largest(one: Series) -> StudyPoint | None:
    """The largest size of a series whose efficiency over a smaller one is known."""
    known = [point for point in one.points if point.efficiency is not None and point.ranks > base(one).ranks]
    return known[-1] if known else None


def base(one: Series) -> StudyPoint:
    """What the speed-ups of a series are relative to: its smallest point that was measured."""
    return next((point for point in one.points if point.speedup is not None), one.points[0])


def sped_up(point: StudyPoint) -> str:
    """The speed-up of a point, and that none is shown where its interval includes 1."""
    none = ", none shown" if point.speedup is not None and point.speedup.includes(1.0) else ""
    return f"{ranged(point.speedup)}{none}"


def falls(one: Series) -> str:
    """At which size the efficiency of a series is under ``ACCEPTABLE``, as the end of a sentence."""
    known = [point for point in one.points if point.efficiency is not None]
    under = next((point for point in known if _value(point.efficiency) < ACCEPTABLE), None)
    enough = percent(ACCEPTABLE)
    if under is None:
        doubtful = [point for point in known if point.efficiency is not None and point.efficiency.includes(ACCEPTABLE)]
        unsure = f", and on {counted(doubtful[0].ranks, 'rank')} the interval includes it" if doubtful else ""
        return f"it is at least {enough} at every size{unsure}"
    before = [point for point in known if point.ranks < under.ranks]
    where = f"under {enough} from the first larger size on, {counted(under.ranks, 'rank')}"
    if len(before) > 1:
        kept = counted(before[-1].ranks, "rank")
        where = f"at least {enough} up to {kept}, and under that on {counted(under.ranks, 'rank')}"
    value = "" if under is largest(one) else f": {bounds(under.efficiency)}"
    is_unsure = under.efficiency is not None and under.efficiency.includes(ACCEPTABLE)
    return f"it is {where}{value}{f'; the interval includes {enough}' if is_unsure else ''}"


def _scaled(report: StudyReport) -> list[Series]:
    return [one for one in series(report.study) if one.is_scaled and largest(one) is not None]


def _best(report: StudyReport, best: StudyPoint) -> str:
    value = f"an epoch takes {timed(best.epoch_s)}, at " if _by_epoch(report) else ""
    unsure = _indistinct(report, best)
    equals = f"; {joined(unsure)} cannot be told apart from it" if unsure else ""
    runs = sum(run.metrics is not None for run in best.runs)
    repeats = f" ({counted(runs, 'repeat')})" if runs else ""
    return f"Best: {described(report, best)}: {value}{spread(best.throughput)} samples/s{repeats}{equals}."


def _indistinct(report: StudyReport, best: StudyPoint) -> list[str]:
    """The points whose interval of what decides overlaps that of the best, three at most."""
    deciding = attrgetter("epoch_s" if _by_epoch(report) else "throughput")
    others = [point for point in report.measured if point is not best and _overlap(deciding(best), deciding(point))]
    named = [described(report, point) for point in others[:3]]
    return named if len(others) <= 3 else [*named[:2], f"{len(others) - 2} more"]


def _overlap(one: Interval | None, other: Interval | None) -> bool:
    if one is None or other is None or one.low is None or one.high is None or other.low is None or other.high is None:
        return False
    return one.low <= other.high and other.low <= one.high


def _scaling(one: Series, *, is_only: bool) -> Iterator[str]:
    point = largest(one)
    if point is None:
        return
    kind = f" ({one.scaling} scaling)" if one.scaling else ""
    line = (
        f"on {counted(point.ranks, 'rank')}, the largest size, efficiency is {bounds(point.efficiency)} relative to "
        f"{counted(base(one).ranks, 'rank')}, and speed-up {sped_up(point)}{kind}; {falls(one)}."
    )
    yield f"{line[0].upper()}{line[1:]}" if is_only else f"{one.name}: {line}"


def _tiles(report: StudyReport) -> Iterator[Tile]:
    best = best_point(report)
    if best is None:
        return
    value, half_width = spread_parts(best.throughput)
    yield Tile(
        value=value,
        label="samples per second",
        detail=", ".join(part for part in (f"± {half_width}" if half_width else "", described(report, best)) if part),
    )
    if best.epoch_s is not None and _by_epoch(report):
        yield Tile(value=show_time(best.epoch_s.value), label="shortest epoch", detail=_range(best.epoch_s))
    widest = max(((one, point) for one in _scaled(report) if (point := largest(one))), key=_rank, default=None)
    if widest is not None and widest[1].speedup is not None:
        one, point = widest
        ranks = counted(point.ranks, "rank")
        perfect = f"{point.ranks / base(one).ranks:g}×"
        detail = f"over {counted(base(one).ranks, 'rank')}; perfect would be {perfect}"
        yield Tile(value=times(_value(point.speedup)), label=f"speed-up on {ranks}", detail=detail)
        interval = bounds(point.efficiency).partition(" (")[2].removesuffix(")")
        detail = f"95 % interval {interval}" if interval else ""
        yield Tile(value=percent(_value(point.efficiency)), label=f"efficiency on {ranks}", detail=detail)
    done = sum(point.throughput is not None for point in report.study.points)
    yield Tile(value=f"{done} of {len(report.study.points)}", label="points measured", detail=_repeats(report))


def _rank(pair: tuple[Series, StudyPoint]) -> tuple[int, float]:
    return pair[1].ranks, _value(pair[1].speedup)


def _repeats(report: StudyReport) -> str:
    counts = sorted({sum(run.metrics is not None for run in point.runs) for point in report.measured})
    if not counts:
        return ""
    return f"{counts[0]} to {counts[-1]} repeats each" if len(counts) > 1 else f"{counted(counts[0], 'repeat')} each"


def _range(interval: Interval) -> str:
    if interval.low is None or interval.high is None:
        return ""
    return f"95 % interval {show_time(interval.low)} to {show_time(interval.high)}"


def _doubts(report: StudyReport) -> Iterator[Notice]:
    failed = [point for point in report.study.points if point.throughput is None and _ended(point)]
    if failed:
        items = [f"{described(report, point)}: {_reason(point)}" for point in failed[:MOST_ITEMS]]
        yield Notice(title=f"{counted(len(failed), 'point')} without a measurement", items=items, bad=True)
    items = list(virtual_points(report.study))
    if report.changed:
        names = dict.fromkeys(plain_name(one.what) for one in report.changed)
        items.append(f"This study was fitted to this machine: {joined(list(names)[:6])} differ from the full study.")
    single = [point for point in report.measured if sum(run.metrics is not None for run in point.runs) == 1]
    if single:
        items.append(
            f"{counted(len(single), 'point')} ran once: their intervals hold the variation within a run, and not that "
            "between runs."
        )
    wide = [point for point in report.measured if (half_width(point.throughput) or 0.0) > WIDE]
    if wide:
        known = f"known to no better than ± {100 * WIDE:g} %"
        items.append(f"{counted(len(wide), 'point')} {known}: more repeats narrow that, three at least.")
    items += [f"{finding.check}: {finding.text}" for finding in report.findings if finding.kind == "slip"][:MOST_ITEMS]
    if items:
        yield Notice(title="Read with care", items=items)


def _ended(point: StudyPoint) -> bool:
    return any(run.state not in {"missing", "completed"} for run in point.runs)


def _reason(point: StudyPoint) -> str:
    return next((f"{run.state}: {run.reason}" for run in point.runs if run.reason), "") or point.runs[-1].state


def _value(interval: Interval | None) -> float:
    return interval.value if interval is not None else 0.0
