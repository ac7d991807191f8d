"""Cut steps with several reductions into segments, each with the phases up to its own reduction.

Where gradients accumulate, a step goes through forward and backward several times. Its record has what it had spent in
each phase when a reduction was done, so the work between two reductions is known. A segment then has at most one
reduction, and its phases are in the order of a step.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from allpull.analyse.steps.grid import Floats
from allpull.replay.recording.calls import Moments
from allpull.replay.recording.meetings import Events
from allpull.replay.window import REDUCE
from allpull.rundir.read.reductions import SPENT

BEFORE = ("evaluation", "checkpoint")
"""Phases that come before all others of a step."""


def in_segments(
    events: Events, recorded: Moments, phases: dict[str, Floats], host_s: Floats | None
) -> tuple[Events, Floats, dict[str, Floats], Floats | None]:
    """The arguments of ``lay_out_work``, with segments instead of steps where a step has several reductions.

    ``phases`` (steps, ranks) become (segments, ranks), and so does ``host_s``.
    """
    begin_s, reduced = recorded.begin_s[0], recorded.reductions
    ends_segment = _ends_segment(recorded)
    if not ends_segment.any():
        return events, begin_s, phases, host_s
    at = np.flatnonzero(events.kind == REDUCE)[ends_segment]
    new = np.zeros(events.kind.size, dtype=np.intp)
    new[at + 1] = 1  # the event after a reduction begins a segment: a step ends with an event of its own
    segment = events.step_of + np.cumsum(new)
    count, ranks = int(segment[-1]) + 1, begin_s.size
    last = np.zeros(count, dtype=np.bool_)
    last[segment[np.flatnonzero(np.append(np.diff(events.step_of) != 0, [True]))]] = True
    cut = {name: np.zeros((count, ranks)) for name in phases}
    firsts = np.flatnonzero(np.append([True], last[:-1]))
    blocked_s = np.maximum(reduced.done_s - reduced.arrival_s, 0)
    is_first = np.append([True], np.diff(reduced.step_of) != 0)
    for name, seconds in phases.items():
        if name in BEFORE or f"{name}_ns" not in SPENT:
            cut[name][firsts] = seconds
            continue
        spent_s = reduced.spent_s[SPENT.index(f"{name}_ns")]
        since_s = spent_s - np.where(is_first[:, None], 0, np.concatenate([np.zeros((1, ranks)), spent_s[:-1]]))
        since_s = np.maximum(since_s - blocked_s if name == "backward" else since_s, 0)
        inside = segment[at]
        cut[name][inside] = since_s[ends_segment]
        before_s = np.zeros_like(seconds)
        np.add.at(before_s, reduced.step_of[ends_segment], since_s[ends_segment])
        cut[name][last] = np.maximum(seconds - before_s, 0)
    return replace(events, step_of=segment), begin_s, cut, None if host_s is None else _spread(host_s, segment, events)


def _ends_segment(recorded: Moments) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    """Which reductions are followed by another one in their step, where it is known what each of them had spent."""
    reduced = recorded.reductions
    followed = np.append(np.diff(reduced.step_of) == 0, [False])[: reduced.step_of.size]
    is_known = ~np.isnan(reduced.spent_s).any(axis=(0, 2))
    unknown_steps = np.unique(reduced.step_of[~is_known])
    ends: np.ndarray[tuple[int], np.dtype[np.bool_]] = followed & ~np.isin(reduced.step_of, unknown_steps)
    return ends


def _spread(host_s: Floats, segment: np.ndarray[tuple[int], np.dtype[np.intp]], events: Events) -> Floats:
    """``host_s`` of each step in its last segment."""
    spread_s = np.zeros((int(segment[-1]) + 1, host_s.shape[1]))
    ends = np.flatnonzero(np.append(np.diff(events.step_of) != 0, [True]))
    spread_s[segment[ends]] = host_s
    return spread_s
