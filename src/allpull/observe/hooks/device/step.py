"""One step on an accelerator, from the moments that its stream passed: phases, boundaries, and busy time.

The host runs ahead, so a step runs on the device later than on the host. It lasts from the last moment of the step
before to its own last one, on one stream, and is divided as the recorder divides the time of the host: each interval
between two moments belongs to the phase that was innermost at the first.

- Phases that issue work (``ISSUING``) take their time on the device. The time between them is a gap.
- Phases of the host alone (``HOST_ONLY``) cost the part of them that falls into gaps: fetching a batch while the device
  is busy costs nothing.
- A backward pass is ``done`` when the stream passed its end, where autograd had it wait for the reduction. When each
  bucket was ready is known from events that are no phase changes.

Moments around phases do not show single kernels. They do show this: from when the host enqueued a moment until the
stream passed it, the stream had work. In the rest of a phase (``paced``) the host was still issuing work, and the
device may have been idle for any part of it; if that is most of a step, the step is launch-bound. The
true busy time is below ``busy`` by at most ``paced`` and the same time in gaps, and ``busy`` is given only where these
are small: never for a launch-bound step, which needs a profiler window.
"""

from __future__ import annotations

import itertools
from typing import Any, Dict, List, NamedTuple, Optional, Sequence, Tuple

from ....rundir.live.activity import NOTHING
from ...recording.step_line import BACKWARD, CHECKPOINT, COLLECTIVE, COPY, EVALUATION, FORWARD, INPUT, OPTIMIZER

ISSUING = {FORWARD: "forward_ns", BACKWARD: "backward_ns", OPTIMIZER: "optimizer_ns", COLLECTIVE: "collective_ns"}
HOST_ONLY = {INPUT: "input_ns", COPY: "copy_ns", EVALUATION: "evaluation_ns", CHECKPOINT: "checkpoint_ns"}
"""Phases by place, with their names in a record."""
MOST_UNDECIDED = 0.1  # of a step: the most by which ``busy`` may be too high; a smaller loss is no finding

Interval = Tuple[int, int]
"""Begin and end, in ns of the host's clock."""


class Bucket(NamedTuple):
    """Gradients that are reduced together: of which network of the rank, and which of its ``buckets``.

    The last one is the arrival; of a single one, only that is known.
    """

    network: int
    place: int
    buckets: int


class Moment(NamedTuple):
    """A phase change: ``place`` is the innermost phase from here on; times in ns of the host's clock.

    ``passed_ns`` is when the stream passed it; None: only the host did. ``ready``: no phase changed, but this bucket
    was ready; not ``on_stream``: another stream of the device passed it.
    """

    asked_ns: int
    place: int
    passed_ns: Optional[int]
    ready: Optional[Bucket] = None
    on_stream: bool = True


class _Pass:
    """One backward pass: when it began and was done, and when its buckets were ready, by network."""

    def __init__(self, begin_ns: int) -> None:
        self.begin_ns = self.done_ns = begin_ns
        self.ready: Dict[int, Dict[int, int]] = {}
        self.buckets: Dict[int, int] = {}
        self.spans: Dict[int, int] = {}  # of the step, when this was done
        self.gaps = 0  # of the step, how many then

    def add(self, ready: Bucket, passed_ns: int) -> None:
        """The stream passed this; of several times the last counts, as where gradients accumulate."""
        self.ready.setdefault(ready.network, {})[ready.place] = passed_ns
        self.buckets[ready.network] = ready.buckets

    def reduced(self) -> Dict[int, List[int]]:
        """When each bucket was ready, by network: a bucket is reduced after those before it.

        A single moment where buckets lack: the arrival. Networks without an arrival are left out.
        """
        known = {}
        for network, ready in self.ready.items():
            buckets = self.buckets[network]
            if len(ready) == buckets:
                known[network] = list(itertools.accumulate((ready[place] for place in range(buckets)), max))
            elif buckets - 1 in ready:
                known[network] = [max(ready.values())]
        return known

    def is_possible(self) -> bool:
        """Whether all of that happened between begin and end."""
        return all(
            self.begin_ns <= moment <= self.done_ns for ready in self.ready.values() for moment in ready.values()
        )


class _Division:
    """A step's time on its stream, divided."""

    def __init__(self) -> None:
        self.spans: Dict[int, int] = {}
        self.gaps: List[Interval] = []
        self.unqueued_in_gaps_ns = 0
        self.paced_ns = 0
        self.passes: List[_Pass] = []
        self._open: Optional[_Pass] = None

    def walk(self, moments: Sequence[Moment]) -> Optional[int]:
        """Divide the time between ``moments`` in their order; when the stream passed the last one."""
        begin: Optional[int] = None
        earlier = NOTHING
        for asked_ns, place, passed_ns, ready, on_stream in moments:
            if passed_ns is None:
                continue
            if ready is not None and self._open is not None:
                self._open.add(ready, passed_ns)
            if not on_stream:
                continue
            if begin is not None:
                self._add(earlier, begin, max(begin, passed_ns), asked_ns)
            begin, earlier = passed_ns, place
            if place == BACKWARD or self._open is not None:
                self._in_pass(place, passed_ns)
        return begin

    def _in_pass(self, place: int, now: int) -> None:
        """The stream passed a moment at which phase ``place`` begins, or goes on."""
        if self._open is None:
            self._open = _Pass(now)
        elif place not in (BACKWARD, COLLECTIVE):  # it may call collectives, as SyncBN does
            done, self._open = self._open, None
            done.done_ns, done.spans, done.gaps = now, dict(self.spans), len(self.gaps)
            self.passes.append(done)

    def _add(self, place: int, begin: int, end: int, asked_ns: int) -> None:
        """Add the interval of phase ``place`` from ``begin`` to ``end``; the host asked for its end at ``asked_ns``."""
        unqueued = max(0, min(asked_ns, end) - begin)
        if place not in ISSUING:
            self.gaps.append((begin, end))
            self.unqueued_in_gaps_ns += unqueued
            return
        self.spans[place] = self.spans.get(place, 0) + end - begin
        if place != COLLECTIVE:
            self.paced_ns += unqueued


def device_step(moments: Sequence[Moment], *, before: Optional[Moment]) -> Dict[str, Any]:
    """The times of one step, by the names of ``schema.events.DeviceStep``; what is not known is left out.

    Args:
        moments: of this step, in their order; the last one was passed by the stream.
        before: the last moment of the step before; None: not known, nor then where this one begins.
    """
    known = [*([] if before is None else [before]), *moments]
    division = _Division()
    end_ns = division.walk(known)
    times: Dict[str, Any] = {ISSUING[place]: length_ns for place, length_ns in division.spans.items()}
    times["paced_ns"] = division.paced_ns
    if any(one.ready for one in division.passes):
        times.update(_reductions(division, known, is_whole=before is not None))
    if before is not None and before.passed_ns is not None and end_ns is not None:
        times.update(_whole_step(division, costs(known, division.gaps), (before.passed_ns, end_ns)))
    return times


def _reductions(division: _Division, known: Sequence[Moment], *, is_whole: bool) -> Dict[str, Any]:
    """The last reduction of a step, and all of them where there may be several, as in a ``StepRecord``."""
    passes = [(one, one.reduced()) for one in division.passes]
    reducing = [(one, reduced) for one, reduced in passes if reduced]
    if not reducing or not reducing[-1][0].is_possible():
        return {}
    last, reduced = reducing[-1]
    times: Dict[str, Any] = {"arrival_ns": max(ready[-1] for ready in reduced.values()), "done_ns": last.done_ns}
    (network, ready), *others = reduced.items()
    if not others and len(ready) > 1:
        times["ready_ns"] = ready
    if not is_whole or (len(passes) == 1 and not others and not network):
        return times
    if all(one.is_possible() for one, _ in reducing):
        times["reductions"] = [
            [number, one.begin_ns, one.done_ns, *_spent(one, known, division.gaps), *ready]
            for one, reduced in reducing
            for number, ready in sorted(reduced.items())
        ]
    return times


def _spent(done: _Pass, known: Sequence[Moment], gaps: Sequence[Interval]) -> List[int]:
    """What the step had spent in input, copy, forward, backward and optimizer when a pass was done, ns."""
    waited = costs(known, gaps[: done.gaps])
    return [waited.get(place, done.spans.get(place, 0)) for place in (INPUT, COPY, FORWARD, BACKWARD, OPTIMIZER)]


def _whole_step(division: _Division, cost_ns: Dict[int, int], step: Interval) -> Dict[str, int]:
    begin, end = step
    times = {"begin_ns": begin, "end_ns": end}
    times.update((HOST_ONLY[place], length_ns) for place, length_ns in cost_ns.items())
    lost = sum(cost_ns.values())
    undecided = division.paced_ns + max(0, division.unqueued_in_gaps_ns - lost)
    if undecided <= MOST_UNDECIDED * (end - begin):
        times["busy_ns"] = max(0, end - begin - lost - division.spans.get(COLLECTIVE, 0))
    return times


def costs(moments: Sequence[Moment], gaps: Sequence[Interval]) -> Dict[int, int]:
    """The part of each ``HOST_ONLY`` phase that fell into ``gaps``, in ns."""
    lengths_ns: Dict[int, int] = {}
    for at, following in enumerate(moments[1:]):
        moment = moments[at]
        if moment.place in HOST_ONLY:
            inside = [min(following.asked_ns, end) - max(moment.asked_ns, begin) for begin, end in gaps]
            lengths_ns[moment.place] = lengths_ns.get(moment.place, 0) + sum(length for length in inside if length > 0)
    return lengths_ns
