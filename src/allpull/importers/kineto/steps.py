"""Cut a trace into steps: at ``prof.step()``, else at optimizers or backward, else by repeating collectives.

``prof.step()`` leaves ``ProfilerStep#N``, numbered by the program. Otherwise a step ends with its optimizer, or
with its backward pass if the trace shows no optimizer. A flight-recorder dump has neither; there, a step is the
shortest repeating sequence of operations and sizes, and begins after the longest pause in it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise, zip_longest

import numpy as np
from numpy.typing import NDArray

from allpull.importers.kineto.calls import Call
from allpull.importers.kineto.step_parts import Parts
from allpull.traces.intervals import NONE
from allpull.traces.trace import Trace

MAX_STEPS = 1_000_000  # of one trace
MAX_PERIOD = 5_000  # collectives of one step
MAX_LOOKED_AT = 20_000  # last collectives used to find the period: first steps are atypical
LEAST_LOOKED_AT = 32
LEAST_PERIODS = 3  # needed for a sequence to count as a step
LEAST_EQUAL = 0.8  # of the collectives must be the same one period later: an evaluation may intervene
AS_GOOD = 0.995  # of the best: buckets of equal size also repeat after one, except for the last of a step
NO_BOUNDARY = "nothing: the whole recording is one"

Token = tuple[str, int, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Cut:
    """One step of the host; ``number`` is the program's own, None: unknown."""

    number: int | None
    begin_ns: int
    end_ns: int

    @property
    def span_ns(self) -> tuple[int, int]:
        """Begin and end."""
        return self.begin_ns, self.end_ns


@dataclass(frozen=True, slots=True, kw_only=True)
class Cuts:
    """The steps of one trace in order, and ``boundary``: what delimits them."""

    steps: tuple[Cut, ...]
    boundary: str


def cut(trace: Trace, parts: Parts, calls: Sequence[Call], pattern: Sequence[Token] | None = None) -> Cuts | None:
    """The steps of ``trace``; None where nothing marks them.

    ``pattern``: the collectives of a step, from another rank.
    """
    steps_of_profiler = by_profiler(trace)
    if steps_of_profiler:
        return Cuts(steps=_ending_before_pauses(steps_of_profiler, parts), boundary="ProfilerStep")
    for ends, boundary in ((_optimized(parts), "optimizer.step"), ([one.end_ns for one in parts.passes], "backward")):
        steps = _ending_at(ends, _earliest(parts))
        if steps:
            return Cuts(steps=steps, boundary=boundary)
    return by_calls(calls, pattern) or _as_one(trace)


def by_calls(calls: Sequence[Call], pattern: Sequence[Token] | None = None) -> Cuts | None:
    """The steps that repeat in ``calls``; where nothing repeats, all is one step."""
    period = pattern or pattern_of(calls)
    steps = by_collectives(calls, period) if period else ()
    if steps:
        return Cuts(steps=steps, boundary="collectives")
    if not calls or calls[-1].called_ns <= calls[0].called_ns:
        return None
    one = Cut(number=None, begin_ns=calls[0].called_ns, end_ns=calls[-1].called_ns + 1)
    return Cuts(steps=(one,), boundary=NO_BOUNDARY)


def _as_one(trace: Trace) -> Cuts | None:
    """All that was recorded as one step."""
    begin, end, _ = (trace.ops if len(trace.ops) else trace.kernels).arrays()
    if not begin.size or end.max() <= begin.min():
        return None
    one = Cut(number=None, begin_ns=int(begin.min()), end_ns=int(end.max()))
    return Cuts(steps=(one,), boundary=NO_BOUNDARY)


def by_profiler(trace: Trace) -> tuple[Cut, ...]:
    """Steps as ``prof.step()`` marked them: each number once, each ending where the next one begins at the latest."""
    steps: list[Cut] = []
    for one in trace.of("step"):
        if one.number is None or one.end_ns <= one.begin_ns:
            continue
        if steps and (one.number <= (steps[-1].number or 0) or one.begin_ns <= steps[-1].begin_ns):
            continue
        if steps and one.begin_ns < steps[-1].end_ns:  # some drivers stamp ends too late (TraceLens 669)
            steps[-1] = replace(steps[-1], end_ns=one.begin_ns)
        steps.append(Cut(number=one.number, begin_ns=one.begin_ns, end_ns=one.end_ns))
    return tuple(steps[:MAX_STEPS])


def _ending_before_pauses(steps: Sequence[Cut], parts: Parts) -> tuple[Cut, ...]:
    """``steps`` without the evaluation or checkpoint at the end of one, with which the next one begins instead.

    Programs call ``prof.step()`` before or after it; in a run directory it is before the batch of a step.
    """
    pauses = parts.evaluation | parts.checkpoint
    trains = (parts.optimizer | parts.backward | parts.forward) - pauses
    ended: list[Cut] = []
    begin_ns = steps[0].begin_ns
    for one, following in zip_longest(steps, steps[1:]):
        trained_until_ns = trains.last_end_before(one.end_ns)
        after = NONE
        if following is not None and trained_until_ns is not None and trained_until_ns > one.begin_ns:
            after = pauses.within(max(begin_ns, trained_until_ns), one.end_ns)
        ended.append(replace(one, begin_ns=begin_ns, end_ns=int(after.begin[0]) if after else one.end_ns))
        if following is not None:
            begin_ns = ended[-1].end_ns if after else following.begin_ns
    return tuple(ended)


def pattern_of(calls: Sequence[Call]) -> tuple[Token, ...] | None:
    """The collectives of one step, in their order from its begin; None where nothing repeats often enough."""
    last = calls[-min(MAX_LOOKED_AT, max(LEAST_LOOKED_AT, len(calls) // 2)) :]
    tokens = [token_of(call) for call in last]
    codes = _coded(tokens)
    period = _period(codes)
    if period is None:
        return None
    repeats = np.convolve(codes[period:] == codes[:-period], np.ones(period, dtype=np.int64), mode="valid") == period
    if not repeats.any():
        return None
    start = int(np.flatnonzero(repeats)[-1])  # two periods follow each other from here on
    moments = np.array([call.called_ns for call in last], dtype=np.int64)
    pauses = np.diff(moments, prepend=moments[0])[start : start + 2 * period].reshape(2, period)
    first = start + int(pauses.mean(axis=0).argmax())
    return tuple(tokens[first : first + period])


def by_collectives(calls: Sequence[Call], pattern: Sequence[Token]) -> tuple[Cut, ...]:
    """Steps that begin where ``pattern`` does; the last one has no end, and is left out."""
    code = {token: place for place, token in enumerate(dict.fromkeys(pattern))}
    codes = np.array([code.get(token_of(call), -1) for call in calls], dtype=np.int64)
    wanted = np.array([code[token] for token in pattern], dtype=np.int64)
    begins: list[int] = []
    place = 0
    candidates = np.flatnonzero(codes == wanted[0]).tolist() if wanted.size else []
    for at in candidates:
        if at >= place and np.array_equal(codes[at : at + wanted.size], wanted):
            begins.append(at)
            place = at + wanted.size
    moments = [calls[at].called_ns for at in begins]
    return _between(moments)[:MAX_STEPS]


def token_of(call: Call) -> Token:
    """The properties of a call that recur in every step."""
    return (call.use.family, call.use.size_bytes, call.use.group)


def _optimized(parts: Parts) -> list[int]:
    """Ends of optimizers after which another backward pass began, and the last one."""
    ends = parts.optimizer.end
    if not ends.size or not parts.passes:
        return [int(end) for end in ends]
    begins = np.array([one.begin_ns for one in parts.passes], dtype=np.int64)
    passes_before = np.searchsorted(begins, ends)
    is_last = np.append(np.diff(passes_before) > 0, True)
    return [int(end) for end, before in zip(ends[is_last], passes_before[is_last], strict=True) if before]


def _earliest(parts: Parts) -> int | None:
    """When the first part of the first step began."""
    begins = [int(one.begin[0]) for one in (parts.input, parts.forward) if one]
    begins += [one.begin_ns for one in parts.passes[:1]]
    return min(begins, default=None)


def _ending_at(ends: Sequence[int], begin_ns: int | None) -> tuple[Cut, ...]:
    if begin_ns is not None and ends and begin_ns < ends[0]:
        return _between([begin_ns, *ends])[:MAX_STEPS]
    return _between(ends)[:MAX_STEPS]


def _between(moments: Sequence[int]) -> tuple[Cut, ...]:
    return tuple(Cut(number=None, begin_ns=begin, end_ns=end) for begin, end in pairwise(moments) if end > begin)


def _coded(tokens: Sequence[Token]) -> NDArray[np.int64]:
    code: dict[Token, int] = {}
    return np.array([code.setdefault(token, len(code)) for token in tokens], dtype=np.int64)


def _period(codes: NDArray[np.int64]) -> int | None:
    """The shortest period, in collectives, after which about as many are equal as after any other."""
    periods = range(1, min(MAX_PERIOD, codes.size // LEAST_PERIODS) + 1)
    equal = np.array([float((codes[period:] == codes[:-period]).mean()) for period in periods])
    if not equal.size or equal.max() < LEAST_EQUAL:
        return None
    return int(np.argmax(equal >= AS_GOOD * equal.max())) + 1
