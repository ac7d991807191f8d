"""Format steps as lines: the JSON of a ``StepRecord`` from the numbers that the recorder kept of each.

Many steps are formatted in one batch, which costs half as much as formatting each between the program's own work.
"""

from __future__ import annotations

import json
from typing import Any, Callable, List, Optional, Sequence, Tuple

KNOWN = ("input", "copy", "forward", "backward", "optimizer", "evaluation", "checkpoint")
INPUT, COPY, FORWARD, BACKWARD, OPTIMIZER, EVALUATION, CHECKPOINT, COLLECTIVE = range(8)
OWN = COLLECTIVE + 1  # places from here on are phases that the user named
NULL = "null"

BLOCKS = 5
PAIRS = 40  # in each block; the fastest block counts, as the one least disturbed
TIMES = ((20_000, 11), (35_000, 14), (300_000, 28))
"""How many times its cost in a tight loop a phase costs, by the ns of other work per phase."""

Count = Optional[int]
Collective = Tuple[int, int, int, Count, Count]
"""Kind, number in its group, begin, blocked time, end, in ns; the last two None if the program did not wait for it."""

Reduction = Tuple[int, ...]
"""A reduction of gradients in backward: the numbers of ``schema.steps.Reduction``."""

SPENT_IN = slice(3, 8)  # of a reduction: what the step had spent in the first five phases when it was done
READY_FROM = 8  # in a reduction

Step = Tuple[Any, ...]
"""Number, epoch and begin of a step, the phases that ended in it, then the fields of ``EndedStep`` in their order, with
``spent`` unpacked.

A plain tuple of values that the garbage collector does not track: if thousands of any other object were kept and freed
repeatedly, it would occasionally visit all objects of the program, at 4 µs per step.
"""


BEGIN, END = 2, 4  # the places of its moments in a ``Step``
QUEUED = 8  # the place of ``EndedStep.queued_ns``
LATER = -1  # instead of it: it is part of what a later step has, for all steps since the read before


class EndedStep:
    """The numbers of a step that has ended and may still be extended; one object serves every step. Times in ns."""

    __slots__ = ("collectives", "elements", "end_ns", "passes", "queued_ns", "reductions", "samples", "spent", "tags")

    def __init__(self) -> None:
        self.end_ns = 0
        self.reductions: Optional[Tuple[Reduction, ...]] = ()
        """None: one of them is not known."""
        self.samples: Count = None
        self.elements: Count = None
        """Of the largest tensor of each batch."""
        self.passes: Count = None
        """Backward passes."""
        self.queued_ns: Count = None
        """For how long the thread was ready to run and had no CPU, or ``LATER``."""
        self.tags: Tuple[str, ...] = ()
        self.collectives: Tuple[Collective, ...] = ()
        self.spent: List[int] = []
        """Time in each phase, by place."""

    def extend(self, later: EndedStep) -> None:
        """The step ends with ``later`` instead, whose numbers count since this end.

        >>> step, later = EndedStep(), EndedStep()
        >>> step.end_ns, step.samples, step.spent = 5, 16, [2, 0]
        >>> later.end_ns, later.spent = 9, [1, 3, 7]
        >>> step.extend(later)
        >>> step.end_ns, step.samples, step.spent
        (9, 16, [3, 3, 7])
        """
        self.end_ns = later.end_ns
        if self.reductions is None or later.reductions is None:
            self.reductions = None
        elif later.reductions:
            self.reductions += tuple(_after(self.spent, one) for one in later.reductions)
        self.samples = _sum(self.samples, later.samples)
        self.elements = _sum(self.elements, later.elements)
        self.passes = _sum(self.passes, later.passes)
        if self.queued_ns == LATER:
            self.queued_ns = later.queued_ns
        elif later.queued_ns != LATER:
            known = self.queued_ns is not None and later.queued_ns is not None
            self.queued_ns = _sum(self.queued_ns, later.queued_ns) if known else None
        self.tags += later.tags
        self.collectives += later.collectives
        spent = self.spent + [0] * (len(later.spent) - len(self.spent))  # the user may have named more phases since
        self.spent = [one + more for one, more in zip(spent, later.spent)]  # noqa: B905  Python 3.9 has no strict


def with_queued(step: Step, queued_ns: Count) -> Step:
    """``step`` with another ``queued_ns``."""
    return (*step[:QUEUED], queued_ns, *step[QUEUED + 1 :])


def shared_queued(steps: Sequence[Step]) -> List[Count]:
    """How long each step waited, where what was read for several is shared out by their lengths.

    The last step has no ``LATER``.

    >>> steps = [(0, 0, 10, 0, end, 0, 0, 0, queued) for end, queued in ((20, 7), (20, LATER), (30, 9), (20, None))]
    >>> shared_queued(steps)
    [7, 3, 6, None]
    """
    queued: List[Count] = [step[QUEUED] for step in steps]
    first = 0  # of those that were read together
    for last, together_ns in enumerate(queued):
        if together_ns == LATER:
            continue
        if first < last:
            lengths = [step[END] - step[BEGIN] for step in steps[first : last + 1]]
            whole = max(sum(lengths), 1)
            queued[first : last + 1] = [None if together_ns is None else together_ns * n // whole for n in lengths]
        first = last + 1
    return queued


class Cost:
    """What recording costs here, estimated from the cost of ``pair``, which enters and leaves a phase, in a tight loop.

    In a tight loop a pair costs half a microsecond; in a training program, far more: it runs inside the functions
    that we wrap, and each call finds the caches full of the program's data and leaves them full of ours. The factor
    was measured from outside by ``benchmarks/overhead.py``, which also prints the overhead that runs report themselves.
    """

    def __init__(self, pair: Callable[[], None], clock_ns: Callable[[], int]) -> None:
        took = []
        for _ in range(BLOCKS):
            start = clock_ns()
            for _ in range(PAIRS):
                pair()
            took.append(clock_ns() - start)
        self._pair_ns = min(took) / PAIRS

    def of(self, phases: int, step_ns: int) -> int:
        """The cost of recording a step of ``step_ns`` with so many ``phases``, ns.

        >>> cost = Cost(lambda: None, iter(range(0, 10**9, 20_000)).__next__)  # 500 ns each
        >>> cost.of(4, 140_000), cost.of(4, 670_000), cost.of(4, 20_000_000)
        (28000, 42000, 56000)
        """
        count = max(phases, 1)
        work = min(max(step_ns / count, TIMES[0][0]), TIMES[-1][0])
        (less, few), (more, many) = TIMES[:2] if work < TIMES[1][0] else TIMES[1:]
        return round(count * self._pair_ns * (few + (many - few) * (work - less) / (more - less)))


class StepLines:
    """Formats steps; a phase that has not occurred yet in any step is null, and one that has is 0 where it does not.

    ``names`` are those of all places; the recorder adds the phases that the user names.
    """

    def __init__(self, names: List[str]) -> None:
        self._names = names
        self._unobserved = list(range(OWN))
        self._recorded_ns: Count = None  # what recording the step before took
        self.cost: Optional[Cost] = None
        self.hooks_ns = 0  # what hooks took in each of these steps beyond that
        self._batch: Optional[Tuple[int, int]] = None  # elements and samples of the first step
        self._varies = False

    def _tells(self, elements: int, samples: int) -> bool:
        """Whether this is the first step, or samples differ in size, now or before; those of one size are told once."""
        if not self._varies:
            first, self._batch = self._batch, self._batch or (elements, samples)
            if first is None:
                return True
            self._varies = elements * first[1] != first[0] * samples
        return self._varies

    def line(self, step: Step, queued: Count) -> str:
        """The line of one step, which waited for so long; they come in their order."""
        number, epoch, begin, phases, end, reductions, samples, passes, _, tags, collectives, elements, *spent = step
        unobserved = self._unobserved
        for place in unobserved:
            if spent[place]:
                self._unobserved = [other for other in self._unobserved if other != place]
            else:
                spent[place] = NULL
        recorded = self._recorded_ns
        self._recorded_ns = None if self.cost is None else self.cost.of(phases, end - begin) + self.hooks_ns
        last = reductions[-1] if reductions else None
        is_alone = last is None or (len(reductions) == 1 and not last[0] and (passes is None or passes == 1))
        line = (
            f'{{"step":{number},"epoch":{epoch},"begin_ns":{begin},"end_ns":{end},'
            f'"samples":{NULL if samples is None else samples},"input_ns":{spent[0]},"copy_ns":{spent[1]},'
            f'"forward_ns":{spent[2]},"backward_ns":{spent[3]},"optimizer_ns":{spent[4]},"evaluation_ns":{spent[5]},'
            f'"checkpoint_ns":{spent[6]},"arrival_ns":{NULL if last is None else _arrival(reductions)},'
            f'"done_ns":{NULL if last is None else last[2]},"recording_ns":{NULL if recorded is None else recorded}'
        )
        if queued is not None and queued <= end - begin:  # else it began before the step did
            line += f',"queued_ns":{queued}'
        if last is not None and len(last) > READY_FROM + 1 and not _is_shared(reductions):
            line += f',"ready_ns":[{",".join(map(str, last[READY_FROM:]))}]'
        if not is_alone:
            line += f',"reductions":[{",".join([_listed(one) for one in reductions])}]'
        if tags:
            line += ',"tags":["' + '","'.join(tags) + '"]'
        if passes is not None:
            line += f',"backward_passes":{passes}'
        if elements and samples and self._tells(elements, samples):
            line += f',"elements":{elements}'
        if spent[COLLECTIVE] != NULL:
            line += f',"collective_ns":{spent[COLLECTIVE]}'
        if collectives:
            line += f',"collectives":[{",".join([_collective(*one) for one in collectives])}]'
        if len(spent) > OWN:
            line += ',"named":' + json.dumps(dict(zip(self._names[OWN:], spent[OWN:])))  # noqa: B905
        return line + "}"


def _is_shared(reductions: Tuple[Reduction, ...]) -> bool:
    """Whether the last backward pass reduced several networks."""
    return len(reductions) > 1 and reductions[-2][1] == reductions[-1][1]


def _arrival(reductions: Tuple[Reduction, ...]) -> int:
    """When the last gradient of the last backward pass was ready."""
    if not _is_shared(reductions):
        return reductions[-1][-1]
    return max(one[-1] for one in reductions if one[1] == reductions[-1][1])


def _listed(reduction: Reduction) -> str:
    return f"[{','.join(map(str, reduction))}]"


def _after(spent: List[int], reduction: Reduction) -> Reduction:
    """``reduction`` in a step that had ``spent`` so much before those that it counts."""
    places = range(SPENT_IN.start, SPENT_IN.stop)
    more = tuple(spent[place - SPENT_IN.start] + reduction[place] for place in places)
    return (*reduction[: SPENT_IN.start], *more, *reduction[SPENT_IN.stop :])


def _collective(kind: int, number: int, begin: int, blocked: Count, end: Count) -> str:
    waited = "null,null" if blocked is None else f"{blocked},{end}"
    return f"[{kind},{number},{begin},{waited}]"


def _sum(one: Count, other: Count) -> Count:
    return other if one is None else one + (other or 0)
