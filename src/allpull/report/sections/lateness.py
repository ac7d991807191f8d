"""Who is late, and when: ranks by steps as a heat map, and who waited for whom."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from itertools import count

import altair as alt

from allpull.report.html.block import Block, Chart, Part, Table
from allpull.report.html.chart import data, spec, time_unit
from allpull.report.html.largest_run import explained
from allpull.report.html.page_limits import evenly
from allpull.report.wording import ABSENT
from allpull.schema.explained import LatenessMap
from allpull.schema.reported import ScalingReport
from allpull.units import counted, show_time

TITLE = "Who is late, and when"
ROW_PX, FRAME_PX, MOST_PX = 18, 80, 620
TABLE_RANKS = 16
MOST_LABELS = 24  # of ranks: more would overlap
FEW_STEPS = 8  # labels of steps that a phone has room for
EDGE = 0.05  # of the steps: a label this close would extend beyond the end of the axis
MOST_CELLS = 4000  # of the map: its picture and its data take 150 bytes each
CALM_S = 1e-3  # a map of noise alone keeps a scale that shows it as such


def block(report: ScalingReport) -> Block | None:
    """Lateness of the run with the most ranks; None if unknown."""
    detail = explained(report)
    if detail is None or detail.lateness is None or len(detail.lateness.ranks) < 2:
        return None
    parts: list[Part] = [_chart(detail.lateness, detail.result.ranks)]
    if detail.caused_s_per_step is not None and len(detail.caused_s_per_step) <= TABLE_RANKS:
        parts.append(_caused(detail.caused_s_per_step))
    return Block(title=TITLE, lead=_lead(detail.lateness), parts=parts)


def _lead(lateness: LatenessMap) -> str:
    place, mean_s = _latest(lateness)
    if mean_s < CALM_S:
        return "No rank is late for long: all meet within a millisecond of each other on average."
    late = f"{show_time(mean_s)} after the median of the others, on average"
    return f"Rank {lateness.ranks[place]} is the latest: {late}."


def _latest(lateness: LatenessMap) -> tuple[int, float]:
    """The place of the rank that is latest on average, and by how many seconds."""
    means = [sum(column) / len(column) for column in zip(*lateness.late_s, strict=True)]
    worst = max(range(len(means)), key=means.__getitem__)
    return worst, means[worst]


def labelled_ranks(count: int, latest: int) -> list[int]:
    """Places of ``count`` ranks that have a label: that of the latest, and others, spread, that leave it room.

    >>> labelled_ranks(4, 1), labelled_ranks(64, 1)[:4]
    ([0, 1, 2, 3], [1, 3, 5, 8])
    """
    if count <= MOST_LABELS:
        return list(range(count))
    return sorted({latest, *(place for place in evenly(count, MOST_LABELS) if abs(place - latest) > 1)})


def labelled(steps: Sequence[int]) -> list[int]:
    """Of ``steps``, ascending, those that have a label: some, spread evenly, none so near an end that it is cut off.

    >>> labelled(range(5, 65)), labelled([3, 4])
    ([10, 20, 30, 40, 50, 60], [3, 4])
    """
    if len(steps) <= FEW_STEPS:
        return list(steps)
    apart = next(size for size in _round_numbers() if (steps[-1] - steps[0]) / size <= FEW_STEPS)
    margin = len(steps) * EDGE
    near = {bisect_left(steps, number) for number in range(steps[0] // apart * apart, steps[-1] + 1, apart)}
    return [steps[place] for place in sorted(near) if margin <= place < len(steps) - margin]


def _round_numbers() -> Iterator[int]:
    """1, 2, 5, 10, 20, 50 and so on."""
    return (digit * 10**power for power in count() for digit in (1, 2, 5))


def _chart(lateness: LatenessMap, ranks_of_run: int) -> Chart:
    highest = max((late for row in lateness.late_s for late in row), default=0.0)
    factor, unit = time_unit(max(highest, CALM_S))
    drawn = evenly(len(lateness.steps), max(2, MOST_CELLS // len(lateness.ranks)))
    steps = [lateness.steps[place] for place in drawn]
    rows = [
        {"step": step, "rank": rank, "late": float(f"{max(late, 0.0) * factor:.3g}")}
        for step, row in zip(steps, (lateness.late_s[place] for place in drawn), strict=True)
        for rank, late in zip(lateness.ranks, row, strict=True)
    ]
    ranks = [lateness.ranks[place] for place in labelled_ranks(len(lateness.ranks), _latest(lateness)[0])]
    colours = alt.Scale(scheme="oranges", domain=[0, max(highest, CALM_S) * factor])
    chart = (
        alt.Chart(data(rows))
        .mark_rect(stroke=None)
        .encode(
            x=alt.X("step:O", title="Step", axis=alt.Axis(values=labelled(steps), labelAngle=0)),
            y=alt.Y("rank:O", title="Rank", axis=alt.Axis(values=ranks)),
            color=alt.Color("late:Q", scale=colours, legend=alt.Legend(title=f"Late ({unit})", gradientLength=180)),
            tooltip=[
                alt.Tooltip("rank:O", title="rank"),
                alt.Tooltip("step:O", title="step"),
                alt.Tooltip("late:Q", title=f"late ({unit})"),
            ],
        )
    )
    some = [
        f"{shown:,} of {of:,} {what}"
        for shown, of, what in (
            (len(lateness.ranks), ranks_of_run, "ranks, the latest among them"),
            (len(steps), len(lateness.steps), "steps"),
        )
        if shown < of
    ]
    fewer = f" It shows {', and '.join(some)}." if some else ""
    return Chart(
        slug="lateness",
        title="How late each rank arrives at collectives",
        caption=f"A dark row is one slow rank; scattered dark spots are a different late rank in each step.{fewer}",
        height_px=min(MOST_PX, FRAME_PX + ROW_PX * len(lateness.ranks)),
        axis_characters=4,
        spec=spec(chart),
    )


def _caused(caused_s: list[list[float]]) -> Table:
    ranks = range(len(caused_s))
    rows = [
        (f"rank {culprit}", *(_cell(caused_s[culprit][victim]) for victim in ranks), show_time(sum(caused_s[culprit])))
        for culprit in ranks
    ]
    return Table(
        caption=f"Waiting per step that each of {counted(len(caused_s), 'rank')} caused (row) for each other (column)",
        columns=("Late", *(f"rank {rank}" for rank in ranks), "in all"),
        rows=rows,
    )


def _cell(seconds: float) -> str:
    return show_time(seconds) if seconds > 1e-6 else ABSENT
