"""Format the numbers and names of a report for readers, identically on a page, a figure and a terminal."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from allpull.report.printable import short
from allpull.schema.results import Interval, RunDetail, RunMetrics, Scaling, ShowResult
from allpull.schema.studied import StudyResult
from allpull.units import counted, show_count, show_spread_parts

ABSENT = "–"
"""Shown for a value that was not measured; never a 0."""

_RATES = ((1e9, "GB/s"), (1e6, "MB/s"), (1e3, "kB/s"))
LABEL_CHARACTERS = 28  # a label must fit next to a chart 8 cm wide
NAME_CHARACTERS = 80

SCALING_WORDS: dict[Scaling, str] = {
    "weak": "Weak scaling: every rank keeps its share, so more ranks make a larger batch",
    "strong": "Strong scaling: one fixed batch, split over more ranks",
    "mixed": "Mixed scaling: both the batch and the share of a rank change between the runs",
}


def joined(items: Sequence[str]) -> str:
    """A list as part of a sentence.

    >>> joined(["copy"]), joined(["copy", "host", "other"])
    ('copy', 'copy, host and other')
    """
    return " and ".join([", ".join(items[:-1]), items[-1]]) if len(items) > 1 else "".join(items)


def efficiencies(runs: Sequence[RunMetrics]) -> list[float | None]:
    """Scaling efficiency of each of ``runs``; None for as many ranks as the reference: that is a change, or chance."""
    ranks = {run.run: run.ranks for run in runs}
    smallest = min(runs, key=lambda run: run.ranks, default=None)
    references = [run.reference or (smallest.run if smallest else "") for run in runs]
    scaled = [ranks.get(name) != run.ranks for run, name in zip(runs, references, strict=True)]
    used = {name for name, is_scaled in zip(references, scaled, strict=True) if is_scaled}
    shown = [is_scaled or run.run in used for run, is_scaled in zip(runs, scaled, strict=True)]
    return [run.efficiency if is_shown else None for run, is_shown in zip(runs, shown, strict=True)]


def largest(runs: Sequence[RunMetrics]) -> RunMetrics:
    """The newest of ``runs`` with the most ranks; they are in order of ranks, then of time."""
    return max(reversed(runs), key=lambda run: run.ranks)


def percent(share: float | None) -> str:
    """A fraction as a percentage to a tenth, or to two significant digits below 1 %.

    >>> percent(0.97), percent(0.00214), percent(None)
    ('97.0 %', '0.21 %', '–')
    """
    if share is None:
        return ABSENT
    return f"{show_count(float(f'{100 * share:.2g}')) if abs(share) < 0.01 else f'{100 * share:,.1f}'} %"


def times(ratio: float | None) -> str:
    """A ratio such as a speed-up, with the digits used in a column of ratios.

    >>> times(2.934), times(3.0), times(45.67)
    ('2.93×', '3.00×', '45.7×')
    """
    return ABSENT if ratio is None else f"{ratio:,.{2 if abs(ratio) < 10 else 1}f}×"


def ranged(interval: Interval | None) -> str:
    """A ratio with its 95 % interval, to as many digits as distinguish the bounds, four at most.

    For an upper bound it adds the certain part, if that is a gain.

    >>> ranged(Interval(value=1.2695, low=1.2662, high=1.2711)), ranged(Interval(value=1.3, low=None, high=None))
    ('1.270× (1.266× to 1.271×)', '1.30×')
    >>> ranged(Interval(value=2.44, low=1.0, high=2.44))
    'at most 2.44×'
    >>> ranged(Interval(value=2.44, low=1.31, high=2.44))
    'at most 2.44× (surely 1.31×)'
    """
    if interval is None or interval.low is None or interval.high is None:
        return times(None if interval is None else interval.value)
    if interval.is_at_most and interval.value > 1:
        return f"{bounded(interval)}{certain_part(interval)}"
    if interval.low == interval.high:  # by definition, such as of the base
        return times(interval.value)
    for digits in range(2 if abs(interval.value) < 10 else 1, 5):
        shown = [f"{bound:,.{digits}f}×" for bound in (interval.low, interval.high)]
        if shown[0] != shown[1]:
            return f"{interval.value:,.{digits}f}× ({shown[0]} to {shown[1]})"
    return f"{times(interval.value)} (known to four digits)"


def bounded(bound: Interval) -> str:
    """A ratio that is an upper bound.

    >>> bounded(Interval(value=2.44, low=1.0, high=2.44))
    'at most 2.44×'
    """
    return f"at most {times(bound.value)}"


def certain_part(bound: Interval) -> str:
    """The certain part of a ratio that is an upper bound, as text to follow it; empty if that is no gain.

    >>> [certain_part(Interval(value=2.44, low=low, high=2.44)) for low in (1.31, 1.001)]
    [' (surely 1.31×)', '']
    """
    return f" (surely {times(bound.low)})" if bound.low is not None and round(bound.low, 2) > 1 else ""


def spread(interval: Interval | None) -> str:
    """A value ± half the width of its 95 % interval; the value alone if the interval is unknown.

    >>> spread(Interval(value=980.4, low=968.0, high=992.0))
    '980 ± 12'
    """
    value, half_width = spread_parts(interval)
    return f"{value} ± {half_width}" if half_width else value


def spread_parts(interval: Interval | None) -> tuple[str, str]:
    """A value and half the width of its 95 % interval, to the same digits; the second is empty if unknown.

    >>> spread_parts(Interval(value=980.4, low=968.0, high=992.0))
    ('980', '12')
    """
    if interval is None:
        return ABSENT, ""
    if interval.low is None or interval.high is None:
        return show_count(interval.value), ""
    return show_spread_parts(interval.value, (interval.high - interval.low) / 2)


def labels(runs: Sequence[RunMetrics]) -> list[str]:
    """One short name for each run, all different: its ranks, and precision, name, begin or a number where those repeat.

    If every run has its own number of ranks, labels contain no user input.
    """
    by_ranks = [counted(run.ranks, "rank") for run in runs]
    if _distinct(by_ranks):
        return by_ranks
    precise = [f"{ranks} · {run.precision or ABSENT}" for ranks, run in zip(by_ranks, runs, strict=True)]
    if _distinct(precise):
        return precise
    named = [
        f"{ranks} · {short(run.name, LABEL_CHARACTERS - len(ranks) - 3)}"
        for ranks, run in zip(by_ranks, runs, strict=True)
    ]
    if _distinct(named):
        return named
    begun = [f"{ranks} · {run.run.partition('_')[0]}" for ranks, run in zip(by_ranks, runs, strict=True)]
    if _distinct(begun) and max(map(len, begun)) <= LABEL_CHARACTERS:
        return begun
    return [f"{ranks} · run {number}" for number, ranks in enumerate(by_ranks, start=1)]


def without_steps(run: RunDetail) -> str:
    """One line on a probe, or on a job that made no step."""
    state = run.metrics.status if run.exit is None or not run.exit.code else run.exit.describe()
    return f"{run.metrics.run}: {state}"


def listed_gaps(show: ShowResult) -> list[str]:
    """The missing data of each run, each line with the run's label."""
    return [f"{label}: {gap}" for label, run in zip(labels(show.runs), show.runs, strict=True) for gap in run.gaps]


def _distinct(names: Sequence[str]) -> bool:
    return len(set(names)) == len(names)


def subject(runs: Sequence[RunMetrics]) -> str:
    """A common name of the runs: their name, or the first few if they differ."""
    names = list(Counter(short(run.name, NAME_CHARACTERS) for run in runs))
    shown = names[:3]
    return joined(shown) if len(names) == len(shown) else f"{', '.join(shown)} and {len(names) - len(shown)} more"


def rank_counts(runs: Sequence[RunMetrics]) -> str:
    """The numbers of ranks of the runs, in order.

    >>> rank_counts([])
    ''
    """
    counts = sorted({run.ranks for run in runs})
    return f"{joined([f'{count:,}' for count in counts])} rank{'' if counts == [1] else 's'}" if counts else ""


def rate(bytes_per_s: float | None) -> str:
    """A rate in readable form, in decimal units as for links and file systems.

    >>> rate(3.3e9), rate(890941.0), rate(12.0), rate(None)
    ('3.3 GB/s', '891 kB/s', '12 B/s', '–')
    """
    if bytes_per_s is None:
        return ABSENT
    for bound, unit in _RATES:
        if bytes_per_s >= bound:
            return f"{show_count(bytes_per_s / bound)} {unit}"
    return f"{show_count(bytes_per_s)} B/s"


def virtual_points(study: StudyResult) -> Iterator[str]:
    """What of a study no real cluster did: a sentence for each kind."""
    whole = sum(point.throughput is not None for point in study.points)
    for count, what in (
        (study.rehearsed, "rehearsed: compute is a timed sleep, hosts and links are virtual"),
        (study.virtual_network, "measured on virtual hosts of one machine, whose links have a set rate"),
    ):
        if count:
            share = "All points were" if count == whole else f"{count} of {counted(whole, 'point')} were"
            yield f"{share} {what}. No real cluster has these rates."
