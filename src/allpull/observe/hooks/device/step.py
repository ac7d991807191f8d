"""What one step was on an accelerator, from moments that its stream passed: phases, boundaries, and how busy it was.

The host runs ahead, so a step lives on the device later than the program's own words for it. It reaches from the last
moment of the step before to its own last one, on one stream, and is divided as the recorder divides the host's time:
each stretch between two moments belongs to the phase that was innermost at the first.

- Phases that issue work (``ISSUING``) take what they take on the device. What lies between them is a gap.
- Phases in which the host does something of its own (``HOST_ONLY``) cost what of them falls into gaps: a batch that
  was fetched while the device still worked cost nothing.
- ``done`` is when the stream passed the end of the last backward, where autograd had it wait for the reduction.

Moments around phases cannot show each kernel. What they do show: from when the host asked for a moment until the
stream passed it, the stream had work, for that moment was in it. In the rest of a phase (``paced``) the host was still
issuing what the device worked on, which may have been empty for any part of it; where that is most of a step, it is
launch-bound. So ``busy`` lies within ``paced``, and what is so in gaps, below what is told, and is told only where
that is little; never for a launch-bound step, which needs a profiler window.
"""

from __future__ import annotations

from typing import Any, Dict, List, NamedTuple, Optional, Sequence, Tuple

from ...recording.step_line import BACKWARD, CHECKPOINT, COLLECTIVE, COPY, EVALUATION, FORWARD, INPUT, OPTIMIZER

ISSUING = {FORWARD: "forward_ns", BACKWARD: "backward_ns", OPTIMIZER: "optimizer_ns", COLLECTIVE: "collective_ns"}
HOST_ONLY = {INPUT: "input_ns", COPY: "copy_ns", EVALUATION: "evaluation_ns", CHECKPOINT: "checkpoint_ns"}
"""Phases by their places, and what they are called in a record."""
MOST_UNDECIDED = 0.1  # of a step: what ``busy`` may be too high by; a smaller loss is not worth a finding

Stretch = Tuple[int, int]
"""From when to when, in ns of the host's clock."""


class Moment(NamedTuple):
    """Where the program's phases changed: ``place`` is innermost from here on; all in ns of the host's clock.

    ``passed_ns`` is when the stream passed it; None: only the host did.
    """

    asked_ns: int
    place: int
    passed_ns: Optional[int]


class _Division:
    """A step's time on its stream, divided."""

    def __init__(self) -> None:
        self.spans: Dict[int, int] = {}
        self.gaps: List[Stretch] = []
        self.unqueued_in_gaps_ns = 0
        self.paced_ns = 0
        self.done_ns: Optional[int] = None

    def add(self, earlier: Moment, later: Moment, begin: int, end: int) -> None:
        """The stretch from ``begin`` to ``end``, when the stream passed two moments that follow each other."""
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
    told: Dict[str, Any] = {name: division.spans.get(place) for place, name in ISSUING.items()}
    told["paced_ns"] = division.paced_ns
    if arrival_ns is not None and division.done_ns is not None and arrival_ns <= division.done_ns:
        told.update(arrival_ns=arrival_ns, done_ns=division.done_ns)
    if before is not None and before.passed_ns is not None:
        end_ns = passed[-1][1]
        told.update(_whole_step(division, costs(known, division.gaps), (before.passed_ns, end_ns)))
    return {name: value for name, value in told.items() if value is not None}


def _whole_step(division: _Division, cost_ns: Dict[int, int], step: Stretch) -> Dict[str, Optional[int]]:
    begin, end = step
    told: Dict[str, Optional[int]] = {"begin_ns": begin, "end_ns": end}
    told.update((name, cost_ns.get(place)) for place, name in HOST_ONLY.items())
    lost = sum(cost_ns.values())
    undecided = division.paced_ns + max(0, division.unqueued_in_gaps_ns - lost)
    if undecided <= MOST_UNDECIDED * (end - begin):
        told["busy_ns"] = max(0, end - begin - lost - division.spans.get(COLLECTIVE, 0))
    return told


def costs(moments: Sequence[Moment], gaps: Sequence[Stretch]) -> Dict[int, int]:
    """What of each of the ``HOST_ONLY`` phases that there were fell into ``gaps``, in ns."""
    found: Dict[int, int] = {}
    for at, following in enumerate(moments[1:]):
        moment = moments[at]
        if moment.place in HOST_ONLY:
            inside = [min(following.asked_ns, end) - max(moment.asked_ns, begin) for begin, end in gaps]
            found[moment.place] = found.get(moment.place, 0) + sum(length for length in inside if length > 0)
    return found
