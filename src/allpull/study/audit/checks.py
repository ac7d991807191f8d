"""The checks: each takes one published series and returns what does not follow from its own numbers.

All arithmetic is done on intervals: a number stands for every value that rounds to it, and only what no such values
can explain is a slip.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from statistics import median

from allpull.published.figures import Figure, hull
from allpull.published.tables import Point, Published
from allpull.schema.audited import AuditFinding, Check, Range
from allpull.units import counted

FEWEST, MOST = (
    0.98,
    1.5,
)  # times the samples of an epoch that rate x time may give: the rest of an epoch is not training
GROWTH = 0.05  # of the share that is not training, over a series
LINEAR = 0.8  # the least efficiency that may be called near linear (the POP Centre's mark of acceptable efficiency)
SHORT = 0.005  # by which a total time may be under epochs x time of an epoch
SLOW_START = 0.9  # of the median rate, under which a first epoch is named
Checker = Callable[[Sequence[Point], Published], Iterable[AuditFinding]]


def samples(series: Sequence[Point], _: Published) -> Iterable[AuditFinding]:
    """Images/s times the seconds of an epoch are the images of an epoch, or somewhat more.

    The seconds are those of training alone (note ``epoch_training_s``) where they are stated, else ``epoch_time_s``.
    """
    factors: list[tuple[Point, Figure]] = []
    for point in series:
        epoch_s = point.note("epoch_training_s") or point.note("epoch_time_s")
        if epoch_s is not None and point.rate is not None and point.samples:
            factors.append((point, point.rate * epoch_s / Figure.exactly(point.samples)))
    wrong = [(point, factor) for point, factor in factors if factor.low > MOST or factor.high < FEWEST]
    if wrong:
        computed = hull([factor for _, factor in wrong])
        yield _finding(
            "samples",
            [point for point, _ in wrong],
            computed,
            f"images/s × the time of an epoch give {_span(computed, '{:.2f}')} times the {wrong[0][0].samples:,} "
            f"images of the data set, in {len(wrong)} of {counted(len(factors), 'row')}: the rates, the "
            "times or the data set are not those stated",
            claimed=Figure.exactly(1.0),
        )


def share_not_training(series: Sequence[Point], published: Published) -> Iterable[AuditFinding]:
    """1 − epochs × samples ÷ (images/s × training time): the share of the time in which no image was trained on.

    A time that is too short for its recorded epochs (``extrapolated``) counts as they take at their pace.
    """
    shares: list[tuple[Point, Figure]] = []
    for point in series:
        if point.rate is not None and point.seconds is not None and point.samples and point.epochs:
            pace_s = _at_recorded_pace(point, published)
            is_short = pace_s is not None and _is_short(point.seconds, pace_s)
            seconds = Figure.exactly(pace_s) if pace_s is not None and is_short else point.seconds
            trained = Figure.exactly(point.epochs * point.samples) / (point.rate * seconds)
            shares.append((point, Figure(1 - trained.high, 1 - trained.low)))
    few = [(point, share) for point, share in shares if share.high < FEWEST - 1]
    if few:
        computed = hull([Figure(1 - share.high, 1 - share.low) for _, share in few])
        yield _finding(
            "samples",
            [point for point, _ in few],
            computed,
            f"epochs × data set are {_span(computed, '{:.2f}')} times the images that images/s × training time give: "
            "that many epochs cannot have been trained in that time at that rate",
            claimed=Figure.exactly(1.0),
        )
    sizes = [(point, share) for point, share in shares if share.high >= FEWEST - 1]
    if len(sizes) > 1 and sizes[-1][1].low - sizes[0][1].high > GROWTH and sizes[-1][0].gpus > sizes[0][0].gpus:
        (first, least), (last, most) = sizes[0], sizes[-1]
        yield _finding(
            "share-not-training",
            [point for point, _ in sizes],
            hull([least, most]),
            f"the share of the time that is not training grows from {least.middle:.1%} on {first.size} to "
            f"{most.middle:.1%} on {last.gpus}: images/s over training alone overstate what a larger job gains",
            kind="observation",
        )


def speedups(series: Sequence[Point], published: Published) -> Iterable[AuditFinding]:
    """A stated speed-up is the ratio to its base, of images/s or of times."""
    for point, base in _with_base(series, published):
        ways = _ratios(point, base)
        if point.speedup is not None and ways and not any(way.meets(point.speedup) for way in ways.values()):
            computed = hull(list(ways.values()))
            yield _finding(
                "speed-up",
                [point],
                computed,
                f"the speed-up on {point.size} is {_span(computed, '{:.2f}')} by its own numbers "
                f"({' and '.join(ways)}), relative to {base.size}",
                claimed=point.speedup,
            )


def efficiencies(series: Sequence[Point], published: Published) -> Iterable[AuditFinding]:
    """A stated efficiency is the speed-up, stated or computed, divided by how many times more GPUs there are."""
    for point, base in _with_base(series, published):
        more = Figure.exactly(point.gpus / base.gpus)
        ways = list(_ratios(point, base).values()) + ([point.speedup] if point.speedup is not None else [])
        by_way = [way / more for way in ways]
        if point.efficiency is not None and by_way and not any(way.meets(point.efficiency) for way in by_way):
            computed = hull(by_way)
            yield _finding(
                "efficiency",
                [point],
                computed,
                f"the efficiency on {point.size} is {_span(computed, '{:.1%}')} by its own numbers, relative to "
                f"{base.size}",
                claimed=point.efficiency,
            )


def linear(series: Sequence[Point], _: Published) -> Iterable[AuditFinding]:
    """What is called linear (note ``claim``) has an efficiency of ``LINEAR`` at its largest, by rates and times."""
    if not any("linear" in point.notes.get("claim", "") for point in series) or series[-1].gpus == series[0].gpus:
        return
    more = Figure.exactly(series[-1].gpus / series[0].gpus)
    ways = {name: ratio / more for name, ratio in _ratios(series[-1], series[0]).items()}
    if ways and min(way.high for way in ways.values()) < LINEAR:
        named = ", ".join(f"{way.middle:.1%} by {name}" for name, way in ways.items())
        yield _finding(
            "linear",
            [series[0], series[-1]],
            hull(list(ways.values())),
            f"called '{series[-1].notes.get('claim', 'linear')}': the efficiency of {series[-1].size} relative to "
            f"{series[0].gpus} is {named}",
            claimed=Figure(LINEAR, 1.0),
        )


def accuracy(series: Sequence[Point], published: Published) -> Iterable[AuditFinding]:
    """Accuracies that all are said to reach (notes ``claim_top1``, ``claim_top5``, in percent) are reached by all."""
    for name, key in (("top-1", "claim_top1"), ("top-5", "claim_top5")):
        below: list[tuple[Point, Figure]] = []
        claimed = None
        for point in series:
            wanted, best = point.note(key), _best(point, published, name)
            if wanted is not None and best is not None and best.high < wanted.low:
                claimed = wanted
                below.append((point, best))
        if claimed is not None:
            sizes = ", ".join(f"{point.size}: {best.middle:.2f} %" for point, best in below)
            yield _finding(
                "accuracy",
                [point for point, _ in below],
                hull([best for _, best in below]),
                f"{name} of {claimed.middle:g} % is claimed for all sizes, and not reached at its best by {sizes}",
                claimed=claimed,
            )


def product(series: Sequence[Point], _: Published) -> Iterable[AuditFinding]:
    """POP: parallel efficiency = load balance × communication efficiency (co-design.pop-coe.eu/metrics)."""
    for point in series:
        whole, balance, communication = (
            point.note(f"POP_{name}") for name in ("parallel_efficiency", "load_balance", "comm_efficiency")
        )
        if whole is None or balance is None or communication is None:
            continue
        computed = balance * communication
        if not computed.meets(whole):
            yield _finding(
                "product",
                [point],
                computed,
                f"on {point.size} load balance × communication efficiency is {_span(computed, '{:.3f}')}, "
                "whatever was rounded: a factor or the parallel efficiency is wrong",
                claimed=whole,
            )


def gain(series: Sequence[Point], published: Published) -> Iterable[AuditFinding]:
    """The stated range of a gain over another series (notes ``gain_over``, ``gain_percent``) fits both speed-ups.

    The gain at a size is (1 + gain on one GPU) × speed-up ÷ the other's speed-up, so that the ends of the range differ
    by as much as the largest and the smallest ratio of the speed-ups.
    """
    name, stated = series[0].notes.get("gain_over"), series[0].notes.get("gain_percent", "")
    others = {point.gpus: point.speedup for point in published.series().get(name or "", [])}
    ratios = [
        point.speedup / other for point in series if point.speedup and (other := others.get(point.gpus)) is not None
    ]
    ends = re.fullmatch(r"([\d.]+)-([\d.]+)", stated)
    if not ratios or ends is None:
        return
    least, most = (Figure.printed(end) for end in ends.groups())
    claimed = Figure(1 + least.low / 100, 1 + least.high / 100) / Figure(1 + most.low / 100, 1 + most.high / 100)
    smallest, largest = (chosen(ratios, key=lambda one: one.middle) for chosen in (min, max))
    computed = smallest / largest
    if not computed.meets(claimed):
        yield _finding(
            "gain",
            series,
            computed,
            f"the smallest gain over {name} is {claimed.middle:.3f} of the largest as stated, and "
            f"{_span(computed, '{:.3f}')} by the speed-ups",
            claimed=claimed,
        )


def extrapolated(series: Sequence[Point], published: Published) -> Iterable[AuditFinding]:
    """A time for all epochs was measured over all epochs, and not over the gaps between the first and the last one."""
    for point in series:
        curve, whole_s = published.curve(point), _at_recorded_pace(point, published)
        if curve is None or point.seconds is None or point.epochs is None or whole_s is None:
            continue
        first, last = curve.epochs[0], curve.epochs[-1]
        span_s, gaps = last.end_s - first.end_s, last.number - first.number
        is_short = _is_short(point.seconds, whole_s)
        if is_short or last.number < point.epochs:
            yield _finding(
                "extrapolated",
                [point],
                Figure.exactly(whole_s),
                f"{point.seconds.middle:,.0f} s for {point.epochs:g} epochs on {point.size}: {last.number} were "
                f"recorded, and {span_s:,.0f} s lie between the ends of the first and the last: {gaps} epochs; "
                f"{point.epochs:g} take {whole_s:,.0f} s at that pace",
                claimed=point.seconds,
                kind="slip" if is_short else "observation",
            )


def first_epoch(series: Sequence[Point], published: Published) -> Iterable[AuditFinding]:
    """A first epoch that is much slower than the others (warm-up, cold page cache) is part of a mean over all."""
    for point in series:
        curve = published.curve(point)
        if curve is None or len(curve.epochs) < 3:
            continue
        usual = median(one.rate for one in curve.epochs)
        share = curve.epochs[0].rate / usual
        if share < SLOW_START:
            yield _finding(
                "first-epoch",
                [point],
                Figure.exactly(share),
                f"the first epoch on {point.size} has {share:.0%} of the median rate: leave it out of rates, and "
                "of times per epoch",
                kind="observation",
            )


CHECKS: tuple[Checker, ...] = (
    *(samples, share_not_training, speedups, efficiencies, linear),
    *(accuracy, product, gain, extrapolated, first_epoch),
)
"""All checks, in the order of their findings."""


def _at_recorded_pace(point: Point, published: Published) -> float | None:
    """Seconds of all its epochs at the pace between the ends of the first and the last one recorded."""
    curve = published.curve(point)
    if curve is None or point.epochs is None or len(curve.epochs) < 2:
        return None
    first, last = curve.epochs[0], curve.epochs[-1]
    span_s, gaps = last.end_s - first.end_s, last.number - first.number
    return span_s / gaps * point.epochs if span_s > 0 and gaps > 0 else None


def _is_short(stated: Figure, pace_s: float) -> bool:
    """Whether a total time is shorter than the recorded epochs allow."""
    return stated.high < pace_s * (1 - SHORT)


def _with_base(series: Sequence[Point], published: Published) -> Iterator[tuple[Point, Point]]:
    """Each point that has a base other than itself, and its base."""
    for point in series:
        base = _base(point, series, published)
        if base is not None and base is not point:
            yield point, base


def _base(point: Point, series: Sequence[Point], published: Published) -> Point | None:
    """What a speed-up is relative to: as the note ``speedup_base`` says, else the smallest of its setup."""
    stated = point.notes.get("speedup_base", "")
    if workers := re.search(r"(\d+) workers?", stated):
        return next((one for one in series if one.notes.get("workers") == workers[1]), None)
    if gpus := re.search(r"(\d+) GPUs?", stated):
        alike = [
            one
            for one in published.points
            if (one.gpus, one.setup) == (int(gpus[1]), point.setup)
            and all(one.notes.get(key) == point.notes.get(key) for key in ("workers", "data"))
        ]
        return next((one for one in alike if one.series == point.series), alike[0] if alike else None)
    smallest = [one for one in series if (one.gpus, one.setup) == (series[0].gpus, point.setup)]
    if not smallest:
        return None
    is_unit = smallest[0].speedup is None or smallest[0].speedup.meets(Figure.exactly(1.0))
    return smallest[0] if len(smallest) == 1 and is_unit else None


def _ratios(point: Point, base: Point) -> dict[str, Figure]:
    """How many times as fast as ``base``: by images/s, and by times."""
    ways = {}
    if point.rate is not None and base.rate is not None:
        ways["images/s"] = point.rate / base.rate
    for name, mine, other in (
        ("training time", point.seconds, base.seconds),
        ("time of an epoch", point.note("epoch_time_s"), base.note("epoch_time_s")),
    ):
        if mine is not None and other is not None:
            ways[name] = other / mine
    return ways


def _best(point: Point, published: Published, name: str) -> Figure | None:
    """The best accuracy of a point in percent: that of its epochs, or else of its note ``top1_last_max``."""
    curve = published.curve(point)
    measured = [one.top1 if name == "top-1" else one.top5 for one in curve.epochs] if curve is not None else []
    known = [one for one in measured if one is not None]
    if known:
        return Figure.exactly(max(known))
    best = point.notes.get("top1_last_max", "").rpartition("/")[2] if name == "top-1" else point.notes.get("top5", "")
    return Figure.printed(best) if re.fullmatch(r"[\d.]*\d", best) else None


def _finding(
    check: Check,
    points: Sequence[Point],
    computed: Figure,
    text: str,
    *,
    claimed: Figure | None = None,
    kind: str = "slip",
) -> AuditFinding:
    return AuditFinding.model_validate(
        {
            "check": check,
            "kind": kind,
            "series": points[0].series,
            "rows": [point.line for point in points],
            "claimed": None if claimed is None else Range(low=claimed.low, high=claimed.high),
            "computed": Range(low=computed.low, high=computed.high),
            "text": text,
        }
    )


def _span(figure: Figure, form: str) -> str:
    low, high = form.format(figure.low), form.format(figure.high)
    return low if low == high else f"{low} to {high}"
