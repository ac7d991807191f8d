"""Make lines of steps: what was put aside of each, as the JSON of a ``StepRecord``.

Many steps are made into lines at once, in a row: that costs half of what it would one by one, after work of the
program's own.
"""

from __future__ import annotations

import json
from typing import Any, List, Optional, Tuple

from .cost import Cost

KNOWN = ("input", "copy", "forward", "backward", "optimizer", "evaluation", "checkpoint")
INPUT, COPY, FORWARD, BACKWARD, OPTIMIZER, EVALUATION, CHECKPOINT, COLLECTIVE = range(8)
OWN = COLLECTIVE + 1  # places from here on are the user's words
NULL = "null"

Count = Optional[int]
Collective = Tuple[int, int, int, Count, Count]
"""Kind, number in its group, begin, how long it blocked, end; the last two None where nobody waited for it."""

Cut = Tuple[Any, ...]
"""Where a step ended, when its gradients were ``Ready`` and done, its samples, backward passes, for how long its thread
had no CPU, tags and collectives, and the time by place; all times in ns.

A plain tuple, like ``Step``, of what no garbage collector follows: thousands of anything else, kept and freed over and
over, would make it go through all the objects of the program now and then, for 4 µs a step.
"""

Step = Tuple[Any, ...]
"""Number, epoch and begin of a step, how many phases ended in it, and the fields of its ``Cut``."""


def both(one: Cut, other: Cut) -> Cut:
    """A step that was cut twice: it ends where it was cut last, and what was added up until then is its own.

    >>> both((5, (3,), 4, 16, 1, 2, ("a",), (), 2, 0), (9, None, None, None, 1, 3, (), (), 1, 3, 7))
    (9, (3,), 4, 16, 2, 5, ('a',), (), 3, 3, 7)
    """
    _, ready, done, samples, passes, queued, tags, collectives, *totals = one
    end, late_ready, late_done, more_samples, more_passes, more_queued, more_tags, more_collectives, *later = other
    if late_ready is not None:
        ready, done = late_ready, late_done
    totals += [0] * (len(later) - len(totals))  # the user's words may have become more
    counts = (
        _sum(samples, more_samples),
        _sum(passes, more_passes),
        None if queued is None or more_queued is None else queued + more_queued,
    )
    sums = (spent + more for spent, more in zip(totals, later))  # noqa: B905  Python 3.9 has no strict
    return (end, ready, done, *counts, tags + more_tags, collectives + more_collectives, *sums)


class Lines:
    """Makes lines; a phase that no step was in yet is null, and 0 in later steps that are not.

    ``names`` are those of all places, to which words of the user's are added as they come.
    """

    def __init__(self, names: List[str]) -> None:
        self._names = names
        self._unseen = list(range(OWN))
        self._recorded_ns: Count = None  # what recording the step before took
        self.cost: Optional[Cost] = None

    def line(self, step: Step) -> str:
        """The line of one step; they come in their order."""
        number, epoch, begin, phases, end, ready, done, samples, passes, queued, tags, collectives, *spent = step
        for place in self._unseen:
            if spent[place]:
                self._unseen = [other for other in self._unseen if not spent[other]]
                break
        for place in self._unseen:
            spent[place] = NULL
        recorded = self._recorded_ns
        self._recorded_ns = None if self.cost is None else self.cost.of(phases, end - begin)
        line = (
            f'{{"step":{number},"epoch":{epoch},"begin_ns":{begin},"end_ns":{end},'
            f'"samples":{NULL if samples is None else samples},"input_ns":{spent[0]},"copy_ns":{spent[1]},'
            f'"forward_ns":{spent[2]},"backward_ns":{spent[3]},"optimizer_ns":{spent[4]},"evaluation_ns":{spent[5]},'
            f'"checkpoint_ns":{spent[6]},"arrival_ns":{NULL if ready is None else ready[-1]},'
            f'"done_ns":{NULL if done is None else done},"recording_ns":{NULL if recorded is None else recorded}'
        )
        if queued is not None and queued <= end - begin:  # else it began before the step did
            line += f',"queued_ns":{queued}'
        if ready is not None and len(ready) > 1:
            line += f',"ready_ns":[{",".join(map(str, ready))}]'
        if tags:
            line += ',"tags":["' + '","'.join(tags) + '"]'
        if passes is not None:
            line += f',"backward_passes":{passes}'
        if spent[COLLECTIVE] != NULL:
            line += f',"collective_ns":{spent[COLLECTIVE]}'
        if collectives:
            line += f',"collectives":[{",".join([_collective(*one) for one in collectives])}]'
        if len(spent) > OWN:
            line += ',"named":' + json.dumps(dict(zip(self._names[OWN:], spent[OWN:])))  # noqa: B905
        return line + "}"


def _collective(kind: int, number: int, begin: int, blocked: Count, end: Count) -> str:
    waited = "null,null" if blocked is None else f"{blocked},{end}"
    return f"[{kind},{number},{begin},{waited}]"


def _sum(one: Count, other: Count) -> Count:
    return other if one is None else one + (other or 0)
