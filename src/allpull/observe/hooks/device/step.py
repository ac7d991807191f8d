"""One step on an accelerator, from the moments that its stream passed: phases, boundaries, and busy time.

The host runs ahead, so a step runs on the device later than on the host. It lasts from the last moment of the step
before to its own last one, on one stream, and is divided as the recorder divides the time of the host: each interval
between two moments belongs to the phase that was innermost at the first.

- Phases that issue work (``ISSUING``) take their time on the device. The time between them is a gap.
- Phases of the host alone (``HOST_ONLY``) cost the part of them that falls into gaps: fetching a batch while the device
  is busy costs nothing.
- ``done`` is when the stream passed the end of the last backward, where autograd had it wait for the reduction.

Moments around phases do not show single kernels. They do show this: from when the host enqueued a moment until the
stream passed it, the stream had work. In the rest of a phase (``paced``) the host was still issuing work, and the
device may have been idle for any part of it; if that is most of a step, the step is launch-bound. The
true busy time is below ``busy`` by at most ``paced`` and the same time in gaps, and ``busy`` is given only where these
are small: never for a launch-bound step, which needs a profiler window.
"""

from __future__ import annotations

from typing import Any, Dict, List, NamedTuple, Optional, Sequence, Tuple

from ...recording.step_line import BACKWARD, CHECKPOINT, COLLECTIVE, COPY, EVALUATION, FORWARD, INPUT, OPTIMIZER

ISSUING = {FORWARD: "forward_ns", BACKWARD: "backward_ns", OPTIMIZER: "optimizer_ns", COLLECTIVE: "collective_ns"}
HOST_ONLY = {INPUT: "input_ns", COPY: "copy_ns", EVALUATION: "evaluation_ns", CHECKPOINT: "checkpoint_ns"}
"""Phases by place, with their names in a record."""
MOST_UNDECIDED = 0.1  # of a step: the most by which ``busy`` may be too high; a smaller loss is no finding

Interval = Tuple[int, int]
"""Begin and end, in ns of the host's clock."""


class Moment(NamedTuple):
    """A phase change: ``place`` is the innermost phase from here on; times in ns of the host's clock.

    ``passed_ns`` is when the stream passed it; None: only the host did.
    """

    asked_ns: int
    place: int
    passed_ns: Optional[int]


class _Division:
    """A step's time on its stream, divided."""

    def __init__(self) -> None:
        self.spans: Dict[int, int] = {}
        self.gaps: List[Interval] = []
        self.unqueued_in_gaps_ns = 0
        self.paced_ns = 0
        self.done_ns: Optional[int] = None

    def add(self, earlier: Moment, later: Moment, begin: int, end: int) -> None:
        """Add the interval from ``begin`` to ``end``, when the stream passed two consecutive moments."""
        unqueued = max(0, min(later.asked_ns, end) - begin)
        place = earlier.place
        if place not in ISSUING:
            self.gaps.append((begin, end))
            self.unqueued_in_gaps_ns += unqueued
            return
        self.spans[place] = self.spans.get(place, 0) + end - begin
        if place != COLLECTIVE:
            self.paced_ns += unqueued
        if place == BACKWARD and later.place != BACKWARD:
            self.done_ns = end


def device_step(
    moments: Sequence[Moment], *, before: Optional[Moment], arrival_ns: Optional[int]
) -> Dict[str, Optional[int]]:
    """The times of one step, by the names of ``schema.events.DeviceStep``; what is not known is left out.

    Args:
        moments: of this step, in their order; the last one was passed by the stream.
        before: the last moment of the step before; None: not known, nor then where this one begins.
        arrival_ns: when the last gradient was ready.
    """
    known = [*([] if before is None else [before]), *moments]
    division = _Division()
    passed = [(moment, moment.passed_ns) for moment in known if moment.passed_ns is not None]
    for at, (later, end) in enumerate(passed[1:]):
        earlier, begin = passed[at]
        division.add(earlier, later, begin, max(begin, end))
    times: Dict[str, Any] = {name: division.spans.get(place) for place, name in ISSUING.items()}
    times["paced_ns"] = division.paced_ns
    if arrival_ns is not None and division.done_ns is not None and arrival_ns <= division.done_ns:
        times.update(arrival_ns=arrival_ns, done_ns=division.done_ns)
    if before is not None and before.passed_ns is not None:
        end_ns = passed[-1][1]
        times.update(_whole_step(division, costs(known, division.gaps), (before.passed_ns, end_ns)))
    return {name: value for name, value in times.items() if value is not None}


def _whole_step(division: _Division, cost_ns: Dict[int, int], step: Interval) -> Dict[str, Optional[int]]:
    begin, end = step
    times: Dict[str, Optional[int]] = {"begin_ns": begin, "end_ns": end}
    times.update((name, cost_ns.get(place)) for place, name in HOST_ONLY.items())
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
