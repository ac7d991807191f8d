"""What a report draws of an explanation: lateness by step, which rank waited for which, and a timeline."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from allpull.analyse.statistics import evenly
from allpull.analyse.steps.grid import Floats
from allpull.replay.blame import Blame
from allpull.replay.engine import EventTimes, event_times
from allpull.replay.window import STEP, WORK, Window
from allpull.schema.explained import CausedWaiting, ExplainDetail, ExplainResult, LatenessMap, TimelinePart, Waiting

MAP_STEPS, MAP_RANKS = 200, 64  # what a page can draw and an eye can distinguish
TABLE_RANKS = 16
MOST_PAIRS = 32  # of many ranks that waited for each other
LEAST_PAIR = 1e-3  # of all waiting: less is noise
DRAWN_STEPS, DRAWN_RANKS = 3, 16
MOST_LATEST = 2  # by lateness, and by what they cost
SHORT_S = 1e-6  # a shorter part is invisible


def detail(result: ExplainResult, window: Window | None, blame: Blame | None) -> ExplainDetail:
    """What a report draws of ``result``, which rests on ``window`` and ``blame``."""
    if window is None or not window.steps.size:
        return ExplainDetail(result=result, lateness=None, caused_s_per_step=None, timeline=[])
    waited = None if blame is None else waiting(window, blame)
    culprits = sorted({rank for finding in result.findings for rank in finding.ranks})
    latest = [] if blame is None else latest_ranks(blame)
    return ExplainDetail(
        result=result,
        lateness=None if blame is None else lateness(window, blame, culprits),
        caused_s_per_step=None if waited is None else waited.caused_s_per_step,
        timeline=list(timeline(window, [*latest, *culprits][: DRAWN_RANKS // 2])),
    )


def waiting(window: Window, blame: Blame) -> Waiting | None:
    """Which rank waited for which in ``window``, and for what phase.

    None where none did, and where all may have waited for a rank without records instead.
    """
    if not blame.caused_s.any() or not window.complete:
        return None
    steps = max(1, window.steps.size)
    caused_s = blame.caused_s / steps
    largest = np.argsort(caused_s, axis=None)[::-1][:MOST_PAIRS]
    culprits, victims = np.unravel_index(largest, caused_s.shape)
    return Waiting(
        caused_s_per_step=caused_s.tolist() if window.ranks <= TABLE_RANKS else None,
        pairs=[
            CausedWaiting(culprit=culprit, victim=victim, seconds=float(caused_s[culprit, victim]))
            for culprit, victim in zip(culprits.tolist(), victims.tolist(), strict=True)
            if caused_s[culprit, victim] > LEAST_PAIR * caused_s.sum()
        ],
        phases={name: (seconds / steps).tolist() for name, seconds in blame.by_phase.items() if seconds.any()},
        unattributed=(blame.unattributed_s / steps).tolist(),
    )


def lateness(window: Window, blame: Blame, culprits: Sequence[int] = ()) -> LatenessMap:
    """Lateness of at most ``MAP_RANKS`` ranks, ``culprits`` and the latest among them, in ``MAP_STEPS``."""
    rows = np.array(evenly(list(range(window.steps.size)), MAP_STEPS), dtype=np.intp)
    ranks = shown_ranks(window.ranks, MAP_RANKS, [*latest_ranks(blame), *culprits])
    late_s = blame.late_s[np.ix_(rows, ranks)]
    return LatenessMap(steps=window.steps[rows].tolist(), ranks=ranks.tolist(), late_s=late_s.round(9).tolist())


def latest_ranks(blame: Blame) -> list[int]:
    """The ranks that are latest on average, and those that made others wait most: those that a sample must not miss."""
    late_s, caused_s = np.nan_to_num(blame.late_s).mean(axis=0), blame.caused_s.sum(axis=1)
    latest = [*np.argsort(-late_s, kind="stable")[:MOST_LATEST], *np.argsort(-caused_s, kind="stable")[:MOST_LATEST]]
    return [int(rank) for rank in dict.fromkeys(latest)]


def shown_ranks(ranks: int, most: int, wanted: Sequence[int] = ()) -> NDArray[np.intp]:
    """At most ``most`` of ``ranks`` ranks, ascending, spread evenly, those ``wanted`` first of all.

    >>> shown_ranks(100, 4, [17]).tolist()
    [0, 17, 50, 99]
    """
    kept = list(dict.fromkeys(rank for rank in wanted if 0 <= rank < ranks))[:most]
    spread = evenly(list(range(ranks)), max(1, most - len(kept)))
    return np.array(sorted({*kept, *spread}), dtype=np.intp)


def timeline(window: Window, culprits: Sequence[int] = ()) -> Iterator[TimelinePart]:
    """The phases of ranks in ``DRAWN_STEPS`` consecutive ordinary steps: those nearest to the median length."""
    chosen = ordinary_steps(window)
    times = event_times(window)
    wait_s = times.wait_s(window)
    ranks = shown_ranks(window.ranks, DRAWN_RANKS, culprits)
    ends = times.leave_s[window.kind == STEP]
    from_s = ends[chosen[0] - 1].min() if chosen[0] else window.begin_s.min()
    for event in np.flatnonzero((window.step_of >= chosen[0]) & (window.step_of <= chosen[-1])):
        step = int(window.steps[window.step_of[event]])
        for rank, name, begin_s, end_s in _rank_parts(window, times, wait_s[event], int(event), ranks):
            if end_s - begin_s > SHORT_S:
                yield _part(rank, step, name, begin_s - from_s, end_s - from_s)
        for begin_s, end_s in _bucket_parts(window, times, int(event)):
            yield _part(None, step, "bucket", begin_s - from_s, end_s - from_s)


def ordinary_steps(window: Window) -> NDArray[np.intp]:
    """Rows of consecutive steps, none of them odd if possible, that together are closest to the median step."""
    length_s = window.wall_s.max(axis=1)
    steps = min(DRAWN_STEPS, length_s.size)
    starts = np.arange(length_s.size - steps + 1)
    rows = starts[:, None] + np.arange(steps)
    plain = ~window.odd[rows].any(axis=1)
    usual_s = np.median(length_s[~window.odd]) if (~window.odd).any() else np.median(length_s)
    far = np.abs(length_s[rows] - usual_s).sum(axis=1) + np.where(plain, 0.0, length_s.sum())
    ordinary: NDArray[np.intp] = rows[int(far.argmin())]
    return ordinary


def _rank_parts(
    window: Window, times: EventTimes, wait_s: Floats, event: int, ranks: NDArray[np.intp]
) -> Iterator[tuple[int, str, float, float]]:
    """Work before ``event`` and blocked time in it, for each of ``ranks``: rank, part, begin, end."""
    for rank in ranks.tolist():
        stand_s, leave_s = float(times.stand_s[event, rank]), float(times.leave_s[event, rank])
        at_s = stand_s - sum(float(seconds[event, rank]) for seconds in window.work.values())
        for name in WORK:
            length_s = float(window.work[name][event, rank]) if name in window.work else 0.0
            yield rank, name, at_s, at_s + length_s
            at_s += length_s
        met_s = min(stand_s + float(wait_s[rank]), leave_s)
        yield rank, "wait", stand_s, met_s
        yield rank, "transfer", met_s, leave_s


def _bucket_parts(window: Window, times: EventTimes, event: int) -> Iterator[tuple[float, float]]:
    """Begin and end of each bucket of the reduction at ``event``; nothing where buckets are not known."""
    lane, place = window.reductions, int(times.reduction[event])
    if lane is None or place < 0 or window.level != "bucket":
        return
    end_s = -np.inf
    ready_s = (times.stand_s[event][None, :] - lane.lead_s[place]).max(axis=1)
    for bucket, length_s in enumerate(lane.seconds[place].tolist()):
        begin_s = max(float(ready_s[bucket]), end_s)
        end_s = begin_s + length_s
        yield begin_s, end_s


def _part(rank: int | None, step: int, part: str, begin_s: float, end_s: float) -> TimelinePart:
    return TimelinePart(rank=rank, step=step, part=part, begin_s=round(begin_s, 9), end_s=round(end_s, 9))
