"""Predict the next sizes of a published or measured table of rates from its smallest ones."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from allpull.errors import BadInput, UnknownName
from allpull.predict.table.growth import Growth, Size, fitted
from allpull.predict.table.series_errors import GROUPED_BY, Widths, groups, held_back, learned, owner_of
from allpull.published import tables
from allpull.published.tables import Point, read_tables
from allpull.schema.base import tag
from allpull.schema.predicted import CalibratedSize, PredictedSize, PredictResult, RefusedSize
from allpull.schema.results import Interval
from allpull.units import counted, percent, show_count

PUBLISHED = Path(tables.__file__).parent / "scaling.csv"
MOST_CALIBRATED = 3  # sizes: with more, too few published series are left to learn from
MISFIT = 0.03  # of a calibrated rate: runs of one size differ by less
BATCH = GROUPED_BY.index("batch_per_gpu")
ONE_SIZE = "one size cannot tell how the step grows with the ranks"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Setup:
    """The sizes of one setup of the series: the smallest are calibrated, the others held back."""

    name: str
    unit: str
    batch: float | None
    owner: str
    calibrated: Sequence[Size]
    others: Sequence[Size]


@dataclass(slots=True)
class _Answers:
    predicted: list[PredictedSize] = field(default_factory=list)
    refused: list[RefusedSize] = field(default_factory=list)


def predict_series(table: Path, series: str, *, calibrate: int = 2, ranks: Sequence[int] = ()) -> PredictResult:
    """The sizes of ``series`` in ``table`` beyond its ``calibrate`` smallest, and those in ``ranks``.

    Rows of one series with another model, framework, device, precision or batch are calibrated apart. Widths come
    from published series of other owners than those of ``table``, and of this name.

    Raises:
        UnknownName: the table has no such series.
        BadInput: it is no table, or ``calibrate`` or ``ranks`` make no sense.
    """
    if calibrate < 2:
        raise BadInput(f"--calibrate {calibrate}: {ONE_SIZE}", hint="two at least")
    if any(number < 1 for number in ranks):
        raise BadInput("--ranks: a number of ranks is 1 or more", hint="such as --ranks 64,128")
    known = read_tables([table]).points
    points = [point for point in known if point.series == series]
    if not points:
        raise UnknownName("series", series, {point.series for point in known})
    setups = [_setup(key, sizes, calibrate) for key, sizes in groups(points).items()]
    if not setups:
        return _refusal(series, f"{ONE_SIZE}, and no setup of this series has rates of two")
    published = read_tables([PUBLISHED]).points
    answers = _Answers()
    widths: Widths | None = None
    for setup in setups:
        widths = _widths(published, setup, series)
        _answer(setup, widths, ranks, answers)
    if not answers.predicted:
        return _refusal(series, "; ".join(dict.fromkeys(one.reason for one in answers.refused)), answers.refused)
    shown = next(one for one in setups if one.name == answers.predicted[0].setup)
    within = _within_one_host(shown)
    return PredictResult(
        schema=tag("predict"),
        series=series,
        unit=shown.unit,
        calibration=[
            CalibratedSize(ranks=one.ranks, hosts=one.hosts, throughput=one.rate.middle) for one in shown.calibrated
        ],
        unidentified=list(_unidentified(shown, within=within)),
        next_measurement=_next_measurement(shown, within=within),
        predictions=answers.predicted,
        refused=None,
        refused_sizes=answers.refused,
        learned_from=widths.series if widths is not None else 0,
        notes=list(_notes(setups, shown)),
    )


def _setup(key: tuple[str, ...], sizes: Sequence[Size], calibrate: int) -> _Setup:
    _, unit, *columns = key
    return _Setup(
        name=", ".join(filter(None, columns)) or "not stated",
        unit=unit,
        batch=_number(columns[BATCH]),
        owner=sizes[0].owner,
        calibrated=sizes[:calibrate],
        others=sizes[calibrate:],
    )


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None


def _widths(published: Iterable[Point], setup: _Setup, series: str) -> Widths:
    """What published series of others teach; a series that is itself published does not judge itself."""
    owners = {owner_of(point.setup[0]) for point in published if point.series == series} | {setup.owner}
    others = [point for point in published if owner_of(point.setup[0]) not in owners]
    return learned(held_back(others, min(len(setup.calibrated), MOST_CALIBRATED)))


def _answer(setup: _Setup, widths: Widths, ranks: Sequence[int], answers: _Answers) -> None:
    """Add a prediction, or the reason why not, for every held-back and every requested size of ``setup``."""
    growth = fitted(setup.calibrated)
    known = {one.ranks: one.rate.middle for one in setup.others}
    requested = sorted({*known, *(number for number in ranks if number > growth.largest)})
    if not requested:
        answers.refused.append(RefusedSize(setup=setup.name, ranks=None, reason="no size beyond the calibrated ones"))
    for number in requested:
        if growth.doublings(number) > widths.doublings:
            furthest = show_count(growth.largest * 2**widths.doublings)
            reason = f"no published series was followed further than {furthest} ranks would be from this calibration"
            answers.refused.append(RefusedSize(setup=setup.name, ranks=number, reason=reason))
        else:
            answers.predicted.append(_predicted(setup, growth, widths, number, known.get(number)))


def _predicted(setup: _Setup, growth: Growth, widths: Widths, ranks: int, measured: float | None) -> PredictedSize:
    smallest = setup.calibrated[0]
    rate = growth.rate(ranks)
    low, high = widths.interval(growth, ranks)
    throughput = Interval(value=rate, low=low, high=high)
    speedup = throughput.scaled(1 / smallest.rate.middle)
    total = ranks / rate
    samples = None if setup.batch is None or setup.unit != "images/s" else setup.batch * ranks
    return PredictedSize(
        setup=setup.name,
        ranks=ranks,
        extrapolation=ranks / growth.largest,
        throughput=throughput,
        speedup=speedup,
        efficiency=speedup.scaled(smallest.ranks / ranks),
        step_s=None if samples is None else Interval(value=samples / rate, low=samples / high, high=samples / low),
        terms={"base": growth.base / total, "growth": 1 - growth.base / total},
        measured=measured,
    )


def _within_one_host(setup: _Setup) -> bool:
    return all(one.hosts == 1 for one in setup.calibrated)


def _unidentified(setup: _Setup, *, within: bool) -> Iterable[str]:
    yield "whether the exchange or the input grows: rates alone cannot tell them apart"
    if within:
        yield "the network between hosts: every calibrated size is within one"
    if setup.batch is not None or setup.unit == "images/s":
        yield "which part of a step grows with the batch: every calibrated size has the same batch per rank"


def _next_measurement(setup: _Setup, *, within: bool) -> str:
    largest = setup.calibrated[-1]
    if within:
        return "the same training on two hosts"
    return f"the same training on {2 * largest.ranks:,} ranks"


def _notes(setups: Sequence[_Setup], shown: _Setup) -> Iterable[str]:
    if len(setups) > 1:
        yield f"{counted(len(setups), 'setup')} of this series are calibrated apart; shown is that of {shown.name}"
    if any(one.unit != shown.unit for one in setups):
        yield "some of them have rates in images/s, others speed-ups alone"
    for one in setups:
        growth = fitted(one.calibrated)
        misses = {size.ranks: growth.rate(size.ranks) / size.rate.middle - 1 for size in one.calibrated}
        worst = max(misses, key=lambda ranks: abs(misses[ranks]))
        if abs(misses[worst]) >= MISFIT:
            yield (
                f"{'the fit' if len(setups) == 1 else f'the fit of {one.name}'}, whose step grows alike with each "
                f"doubling, is {percent(abs(misses[worst]), 1)} {'above' if misses[worst] > 0 else 'below'} what was "
                f"measured on {worst:,} ranks: its steps grow otherwise, and larger sizes may lie outside the intervals"
            )


def _refusal(series: str, reason: str, sizes: Sequence[RefusedSize] = ()) -> PredictResult:
    return PredictResult(
        schema=tag("predict"),
        series=series,
        unit="images/s",
        calibration=[],
        unidentified=[],
        next_measurement="the same training on one more number of ranks",
        predictions=[],
        refused=reason,
        refused_sizes=list(sizes),
        learned_from=0,
        notes=[],
    )
