"""Loader rates from the probe's windows, and the knee: the number of threads beyond which more help little."""

from __future__ import annotations

from collections.abc import Sequence

from allpull.analyse.probes.repetitions import spread
from allpull.schema.base import tag
from allpull.schema.probed import LoaderKnee, LoaderPoint, LoaderResult
from allpull.schema.probes import LoaderAnswer, LoaderMeasured

NEAR = 0.95  # of the highest rate: the difference is smaller than the variation of rates from day to day


def loaded(answer: LoaderAnswer, run: str) -> LoaderResult:
    """The loader probe's results as rates."""
    points = [_point(one, answer) for one in answer.points]
    shared = LoaderAnswer.model_fields.keys() & LoaderResult.model_fields.keys() - {"schema_", "points"}
    return LoaderResult(
        schema=tag("loader"),
        run=run,
        hosts=-(-answer.ranks // answer.ranks_per_host),
        points=points,
        knees=knees(points),
        **{name: getattr(answer, name) for name in shared},
    )


def knees(points: Sequence[LoaderPoint]) -> list[LoaderKnee]:
    """For each number of ranks and state the fewest threads that reach ``NEAR`` of the highest median rate.

    The knee is None where only the largest number of threads tried reaches it: more might be faster still. A single
    number of threads gives no knee.
    """
    groups: dict[tuple[int, str], list[LoaderPoint]] = {}
    for point in points:
        groups.setdefault((point.ranks, point.state), []).append(point)
    per_group = []
    for group in [one for one in groups.values() if len(one) > 1]:
        best = max(one.samples_per_s.median for one in group)
        enough = min(one.threads for one in group if one.samples_per_s.median >= NEAR * best)
        most = max(one.threads for one in group)
        knee = enough if enough < most else None
        per_group.append(LoaderKnee(ranks=group[0].ranks, state=group[0].state, threads=knee, samples_per_s=best))
    return per_group


def _point(measured: LoaderMeasured, answer: LoaderAnswer) -> LoaderPoint:
    """Rates of all ranks: the sum over ranks of their rates in each window."""
    windows = min(len(draw.windows) for draw in measured.draws)
    rates = [
        sum(draw.windows[number].samples / draw.windows[number].seconds for draw in measured.draws)
        for number in range(windows)
        if all(draw.windows[number].seconds > 0 for draw in measured.draws)
    ]
    total = spread(rates)
    cpu_s = sum(draw.cpu_s for draw in measured.draws)
    return LoaderPoint(
        ranks=measured.ranks,
        hosts=-(-measured.ranks // answer.ranks_per_host),
        threads=measured.threads,
        state=measured.state,
        resident=measured.resident,
        samples=sum(window.samples for draw in measured.draws for window in draw.windows),
        samples_per_s=total,
        samples_per_cpu_s=sum(draw.samples for draw in measured.draws) / cpu_s if cpu_s > 0 else None,
        read_bytes_per_s=total.median * answer.bytes_per_sample,
    )
