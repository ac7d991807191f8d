"""The checks of published tables on a study's own numbers, and those for which a table has no column.

Own numbers have measured intervals, where those of others are known to their rounding.
"""

from __future__ import annotations

from collections.abc import Iterator

from allpull.published.figures import Figure
from allpull.published.tables import Point, Published
from allpull.schema.audited import AuditFinding, AuditResult, Check, Range
from allpull.schema.base import tag
from allpull.schema.results import Interval
from allpull.schema.studied import StudyPoint, StudyResult
from allpull.study.audit.checks import CHECKS, SLOW_START, extrapolated, first_epoch
from allpull.study.epochs import epoch_of, epochs_of, metrics_of, samples_per_epoch
from allpull.units import counted

MARGIN = 0.02  # by which samples/s of steady steps and of whole epochs may differ: ragged batches, first batches
CACHED = 0.05  # of what was read, under which storage was hardly used


def audit_study(study: StudyResult) -> AuditResult:
    """What the numbers of a study contradict, or a reader has to know; lines are those of its ``points.csv``."""
    points = [point for point in study.points if point.throughput is not None and point.throughput.value > 0]
    published = Published(points=[_point(line, point) for line, point in enumerate(points, start=2)], curves={})
    checks = [check for check in CHECKS if check not in {extrapolated, first_epoch}]  # times and epochs are measured
    findings = [
        finding for series in published.series().values() for check in checks for finding in check(series, published)
    ]
    findings += [*_ways(points), *_first_epochs(points), *_warm_up(points), *_page_cache(points)]
    return AuditResult(
        schema=tag("audit"),
        files=[study.directory],
        rows=len(points),
        findings=findings,
        notes=list(_unchecked(points)),
    )


def _point(line: int, point: StudyPoint) -> Point:
    epoch, samples, epochs = epoch_of(point), samples_per_epoch(point), epochs_of(point)
    notes = {"samples": samples, "epochs": epochs, "epoch_training_s": epoch.training if epoch is not None else None}
    return Point(
        line=line,
        series=_series(point),
        setup=(_series(point),),
        gpus=point.ranks,
        nodes=point.hosts,
        rate=_figure(point.throughput, MARGIN),
        speedup=_figure(point.speedup),
        efficiency=_figure(point.efficiency),
        seconds=_figure(point.time_to_solution_s),
        notes={
            name: f"{value:.6g}" if isinstance(value, float) else str(value) for name, value in notes.items() if value
        },
        unit="rank",
    )


def _series(point: StudyPoint) -> str:
    return ", ".join(f"{name}={value}" for name, value in sorted(point.series.items())) or "all"


def _figure(interval: Interval | None, margin: float = 0.0) -> Figure | None:
    """All values that an interval allows, and ``margin`` of the value more."""
    if interval is None or interval.value <= 0:
        return None
    low, high = interval.low or interval.value, interval.high or interval.value
    return Figure(max(low - margin * interval.value, 0.0), high + margin * interval.value)


def _ways(points: list[StudyPoint]) -> Iterator[AuditFinding]:
    """The efficiency by time of an epoch against that by samples/s, where both are known and differ."""
    smallest: dict[str, StudyPoint] = {}
    for point in sorted(points, key=lambda one: one.ranks):
        smallest.setdefault(_series(point), point)
    for line, point in enumerate(points, start=2):
        base = smallest[_series(point)]
        by_rate, speedup = _figure(point.efficiency), _figure(point.epoch_speedup)
        if point.ranks == base.ranks or by_rate is None or speedup is None:
            continue
        by_time = speedup / Figure.exactly(point.ranks / base.ranks)
        if not by_time.meets(by_rate):
            yield _finding(
                "efficiency-by-time",
                point,
                line,
                by_time,
                f"on {counted(point.ranks, 'rank')} efficiency is {by_time.middle:.1%} by the time of an epoch and "
                f"{by_rate.middle:.1%} by samples/s of steady steps: the first includes evaluation, checkpoints and "
                "starts",
                claimed=by_rate,
            )


def _first_epochs(points: list[StudyPoint]) -> Iterator[AuditFinding]:
    """A first epoch that is much slower than the others: warm-up and a cold page cache."""
    for line, point in enumerate(points, start=2):
        epoch = epoch_of(point)
        if epoch is None or epoch.first is None or len(epoch.each) < 3 or epoch.first.total <= 0:
            continue
        share = epoch.total / epoch.first.total
        if share < SLOW_START:
            yield _finding(
                "first-epoch",
                point,
                line,
                Figure.exactly(share),
                f"the first epoch on {counted(point.ranks, 'rank')} has {share:.0%} of the rate of the others; it is "
                "not in the mean time of an epoch, and it is in the time to solution",
            )


def _warm_up(points: list[StudyPoint]) -> Iterator[AuditFinding]:
    """Runs of which rates leave out no first step."""
    lines = [
        (line, point)
        for line, point in enumerate(points, start=2)
        if any(not one.steady.left_out.get("warmup") for one in metrics_of(point))
    ]
    if lines:
        line, point = lines[0]
        yield _finding(
            "warm-up",
            point,
            line,
            Figure.exactly(0.0),
            f"no step is left out as warm-up in {counted(len(lines), 'point')}: warm-up is in the mean, or was not "
            "recorded",
            lines=[number for number, _ in lines],
        )


def _page_cache(points: list[StudyPoint]) -> Iterator[AuditFinding]:
    """Runs that read, and hardly from storage: the page cache had the data."""
    lines: list[tuple[int, StudyPoint, float]] = []
    for line, point in enumerate(points, start=2):
        for one in metrics_of(point)[:1]:
            read, stored = one.io.read_bytes_per_s, one.io.storage_read_bytes_per_s
            if read and stored is not None and stored < CACHED * read:
                lines.append((line, point, stored / read))
    if lines:
        line, point, _ = lines[0]
        share = max(one for _, _, one in lines)
        yield _finding(
            "page-cache",
            point,
            line,
            Figure.exactly(share),
            f"at most {share:.1%} of what was read came from storage in {counted(len(lines), 'point')}: these rates "
            "are those of data in the page cache",
            lines=[number for number, _, _ in lines],
        )


def _unchecked(points: list[StudyPoint]) -> Iterator[str]:
    lacking = {
        "no complete epoch (samples/s × training time)": [one for one in points if not samples_per_epoch(one)],
        "no time of an epoch (efficiency by time)": [one for one in points if one.epoch_s is None],
        "no measurement of reading (page cache)": [one for one in points if not _is_read_measured(one)],
    }
    for what, without in lacking.items():
        if without:
            yield f"{what} in {counted(len(without), 'point')}"


def _is_read_measured(point: StudyPoint) -> bool:
    return any(one.io.read_bytes_per_s is not None for one in metrics_of(point))


def _finding(
    check: Check,
    point: StudyPoint,
    line: int,
    computed: Figure,
    text: str,
    *,
    claimed: Figure | None = None,
    lines: list[int] | None = None,
) -> AuditFinding:
    return AuditFinding(
        check=check,
        kind="observation",
        series=_series(point),
        rows=lines or [line],
        claimed=None if claimed is None else Range(low=claimed.low, high=claimed.high),
        computed=Range(low=computed.low, high=computed.high),
        text=text,
    )
