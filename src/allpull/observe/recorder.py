"""Turn what a training loop says, or is seen to do, into step records and events: the one writer of them.

The cost of a step in the rank is the point of this file: no lock, no thread, no object per phase. After a step's own
work the caches are cold, and whatever runs costs two or three times as much as it would in a row; so a step only puts
its numbers aside, and a fifth of a second's steps are made into lines at once. Measured by
``benchmarks/recording_cost.py``, and in programs that train by ``benchmarks/overhead.py``.
"""

from __future__ import annotations

import json
import math
import time
from itertools import zip_longest
from typing import Any, Callable, ContextManager, Dict, List, NamedTuple, Optional, Sequence, Tuple, Union

from ..rundir import redact
from ..rundir.live import NOTHING, PLACE, SINCE_NS, STEP, hidden_words, live_words
from ..rundir.write import FLUSH_NS
from .identity import Identity
from .journal import Journal

KNOWN = ("input", "copy", "forward", "backward", "optimizer", "evaluation", "checkpoint")
INPUT, COPY, FORWARD, BACKWARD, OPTIMIZER, EVALUATION, CHECKPOINT, COLLECTIVE = range(8)
OWN = COLLECTIVE + 1  # places from here on are the user's words
OPAQUE = (EVALUATION, CHECKPOINT)  # what happens inside belongs to them, forward passes included
CALIBRATION_MARKS = 200
NULL = "null"
MOST_COLLECTIVES = 10_000  # of a step; a program that makes none would fill its memory with them


Count = Optional[int]
Collective = Tuple[int, int, int, Count, Count]
"""Kind, number in its group, begin, how long it blocked, end; the last two None where nobody waited for it."""


class Cut(NamedTuple):
    """Where a step ended, and all that had been added up until then; None: not known, or never there."""

    end_ns: int
    totals: Tuple[Count, ...]
    """Time by place, ns."""
    arrival_ns: Count
    done_ns: Count
    tags: Tuple[str, ...]
    collectives: Tuple[Collective, ...]
    samples: Count
    passes: Count


Step = Tuple[Any, ...]
"""Number, epoch and begin of a step, what recording the step before took, ns, and the fields of its ``Cut``.

A plain tuple of what no garbage collector follows: thousands of anything else, kept and freed over and over, would
make it go through all the objects of the program now and then, for 4 µs a step.
"""


class Recorder:
    """Listens to ``allpull.marks``, or to whoever watches a program, in one rank, and writes its steps and events.

    ``arrival`` (set by whoever finds a reducing backward) returns when the last gradient of the step was ready, in
    ns of ``clock_ns``, or None. ``samples`` and ``passes`` (backward passes) count up over a step for those who cut
    it; None: not known.
    """

    def __init__(
        self,
        directory: str,
        who: Identity,
        *,
        budget: int,
        warmup_steps: int,
        boundary: str = "marks.step",
        sources: Sequence[str] = ("marks",),
        clock_ns: Callable[[], int] = time.monotonic_ns,
        realtime_ns: Callable[[], int] = time.time_ns,
    ) -> None:
        self._clock_ns = clock_ns
        self.live = live_words(directory, who.rank)
        self._warmup_left = warmup_steps
        self.arrival: Optional[Callable[[], Optional[int]]] = None
        self.samples: Optional[int] = None
        self.passes: Optional[int] = None
        self.tags: List[str] = []
        self.collectives: List[Collective] = []
        self._names: List[str] = [*KNOWN, "collective"]
        self._totals: List[Count] = [None] * len(self._names)
        self._nothing: List[Union[int, str]] = [NULL] * len(self._names)  # of a place; 0 once some step was there
        self._spans: Dict[str, _Span] = {name: _Span(self, place) for place, name in enumerate(KNOWN)}
        self.stack: List[int] = []  # the phases that are open, one in another
        self._last_ns = 0
        self._begin_ns = 0
        self._backward_end_ns = 0
        self._opaque_begin_ns = 0
        self._cut: Optional[Cut] = None
        self.paused = False  # steps are counted, and not written
        self.is_cut = False  # a step has ended that is not written yet
        self._aside: List[Step] = []  # steps that are not yet lines
        self._handed_ns = clock_ns()
        self.step_number = 0
        self._steps_here = 0
        self._epoch = 0
        self._marks = 0
        self._recording_ns: Optional[int] = None
        self.journal = Journal(
            directory,
            who,
            budget=budget,
            warmup_steps=warmup_steps,
            boundary=boundary,
            sources=sources,
            clock_ns=clock_ns,
            realtime_ns=realtime_ns,
        )
        self._mark_cost_ns = self._calibrate()

    def phase(self, name: str) -> ContextManager[None]:
        """The span of phase ``name``; spans nest, and each moment belongs to the innermost."""
        span = self._spans.get(name)
        if span is None:
            span = self._spans[name] = _Span(self, self.place_of(name))
        return span

    def place_of(self, name: str) -> int:
        """The place of phase ``name``, which is a new one for a new word of the user's."""
        if name not in self._names:
            self._names.append(name)
            self._totals.append(None)
            self._nothing.append(NULL)
        return self._names.index(name)

    def name_of(self, place: int) -> Optional[str]:
        """The phase at ``place``; None: it is between two."""
        return None if place == NOTHING else self._names[place]

    def enter(self, place: int) -> int:
        """Phase number ``place`` begins; how many were open around it, which ``leave_until`` takes."""
        now = self._clock_ns()
        self._marks += 1
        stack = self.stack
        depth = len(stack)
        if depth:
            top = stack[-1]
            self._totals[top] = (self._totals[top] or 0) + now - self._last_ns
            if top in OPAQUE:
                place = top
        if place in OPAQUE and place not in stack:
            self._opaque_begin_ns = now
        if not self._begin_ns:
            self._begin_ns = now
        self._last_ns = now
        stack.append(place)
        live = self.live
        live[PLACE] = place
        live[SINCE_NS] = now
        return depth

    def leave(self) -> None:
        """The innermost phase ends."""
        self.leave_until(len(self.stack) - 1)

    def leave_until(self, depth: int) -> None:
        """Phases end until only ``depth`` are open: what an exception left open is closed here."""
        stack = self.stack
        while len(stack) > depth:
            now = self._clock_ns()
            place = stack.pop()
            totals = self._totals
            totals[place] = (totals[place] or 0) + now - self._last_ns
            self._last_ns = now
            live = self.live
            live[PLACE] = stack[-1] if stack else NOTHING
            live[SINCE_NS] = now
            if place == BACKWARD:
                self._backward_end_ns = now
            elif place in OPAQUE and place not in stack:
                self._opaque_ended(place, now)

    def collective(self, kind: int, number: int, begin: int, blocked: Optional[int], end: Optional[int]) -> None:
        """A collective of this step: ``number`` is its place in its group; the others as in ``StepRecord``."""
        if len(self.collectives) < MOST_COLLECTIVES:
            self.collectives.append((kind, number, begin, blocked, end))

    def step(self, samples: Optional[int]) -> None:
        """A step has ended, on ``samples`` samples: write its record and begin the next one."""
        self.samples = samples
        self.cut()
        self.write_step()

    def cut(self) -> None:
        """The step ends here, unless it is cut again before it is written."""
        now = self._clock_ns()
        if not self._begin_ns:
            self._begin_ns = now
        self._marks += 1
        if self.stack:  # inside a phase: the part so far belongs to this step
            top = self.stack[-1]
            self._totals[top] = (self._totals[top] or 0) + now - self._last_ns
            self._last_ns = now
        arrival = self.arrival() if self.arrival is not None else None
        done: Count = self._backward_end_ns
        if arrival is None or arrival < self._begin_ns or self._backward_end_ns < arrival:
            arrival = done = None
        lists = (tuple(self.tags), tuple(self.collectives))
        cut = Cut(now, tuple(self._totals), arrival, done, *lists, self.samples, self.passes)
        self._cut = cut if self._cut is None else _both(self._cut, cut)
        self.is_cut = True
        self._totals = [None] * len(self._names)
        self.samples = self.passes = None
        if self.tags:
            self.tags.clear()
        if self.collectives:
            self.collectives.clear()

    def write_step(self) -> None:
        """Write the step that was cut; what came after the cut belongs to the next one."""
        cut = self._cut
        if cut is None:
            return
        start = self._clock_ns()
        if self._warmup_left > 0:
            self._warmup_left -= 1
            cut = cut._replace(tags=(*cut.tags, "warmup"))
        if not self.paused:
            self._aside.append((self.step_number, self._epoch, self._begin_ns, self._recording_ns, *cut))
        end = self._begin_ns = cut.end_ns
        self._cut = None
        self.is_cut = False
        self.step_number += 1
        self.live[STEP] = self.step_number
        self._steps_here += 1
        if end - self._handed_ns >= FLUSH_NS:
            self._hand_over(end)
        self._recording_ns = self._clock_ns() - start + self._marks * self._mark_cost_ns
        self._marks = 0

    def begin_here(self) -> None:
        """What was added up so far is left out; the step begins now."""
        self.leave_until(0)
        self._totals = [None] * len(self._names)
        self._begin_ns = self._clock_ns()

    def credit(self, place: int) -> None:
        """The time since the last phase ended was phase ``place``, which nobody saw begin."""
        if self._begin_ns and (not self.stack or self.stack[-1] == OPTIMIZER):  # which may call what computes its loss
            now = self._clock_ns()
            self._totals[place] = (self._totals[place] or 0) + now - max(self._last_ns, self._begin_ns)
            self._last_ns = now

    def epoch(self, number: int, step: Optional[int] = None) -> None:
        """Epoch ``number`` begins; ``step`` gives the number of its next step where training was resumed."""
        now = self._clock_ns()
        if step is not None and step != self.step_number:
            self.step_number = step
            self.tags.append("resumed")
        self._epoch = number
        self.tags.append("first_batch")
        if not self._begin_ns:
            self._begin_ns = now
        self.journal.event({"kind": "epoch", "epoch": number, "step": self.step_number, "t_ns": now}, now)

    def metric(self, name: str, value: Optional[float], step: Optional[int] = None) -> None:
        """A quantity of the training as of ``step``; what is not finite is written as null."""
        now = self._clock_ns()
        finite = value is not None and math.isfinite(value)
        event = {"kind": "metric", "name": name, "value": value if finite else None}
        at = self.step_number if step is None else step
        often = name.startswith("train_")  # told many times an epoch; what is told once must not be thinned out
        self.journal.event({**event, "step": at, "epoch": self._epoch, "t_ns": now}, now, keep=not often)

    def restarted(self, attempt: int, steps_before: int) -> None:
        """This rank goes on after an earlier attempt, which had recorded ``steps_before`` steps."""
        now = self._clock_ns()
        self.journal.event({"kind": "restarted", "attempt": attempt, "steps_before": steps_before, "t_ns": now}, now)

    def raised(self, error: BaseException) -> None:
        """The exception that ends this rank."""
        now = self._clock_ns()
        message, _ = redact.text(str(error)[:4000])
        self.journal.event({"kind": "exception", "type": type(error).__name__, "message": message, "t_ns": now}, now)

    def close(self, *, ended_well: bool) -> None:
        """Write what is buffered; ``ended_well``: with the mark that the rank ended by itself."""
        self.leave_until(0)
        self.write_step()
        self._hand_over(self._clock_ns())
        self.journal.close(steps=self._steps_here, ended_well=ended_well)

    def disown(self) -> None:
        """Stop writing, in a forked child."""
        self.journal.disown()
        self._aside.clear()
        self.live = hidden_words()

    def _hand_over(self, now: int) -> None:
        self._handed_ns = now
        self.journal.steps([self._line(step) for step in self._aside], now)
        self._aside.clear()

    def _line(self, step: Step) -> str:
        number, epoch, begin, recording, end, totals, arrival, done, tags, collectives, samples, passes = step
        for place, value in enumerate(totals):
            if value is not None:
                self._nothing[place] = 0
        spent = [self._nothing[place] if value is None else value for place, value in enumerate(totals)]
        line = (
            f'{{"step":{number},"epoch":{epoch},"begin_ns":{begin},"end_ns":{end},'
            f'"samples":{NULL if samples is None else samples},"input_ns":{spent[0]},"copy_ns":{spent[1]},'
            f'"forward_ns":{spent[2]},"backward_ns":{spent[3]},"optimizer_ns":{spent[4]},"evaluation_ns":{spent[5]},'
            f'"checkpoint_ns":{spent[6]},"arrival_ns":{NULL if arrival is None else arrival},'
            f'"done_ns":{NULL if done is None else done},"recording_ns":{NULL if recording is None else recording}'
        )
        if tags:
            line += ',"tags":["' + '","'.join(tags) + '"]'
        if passes is not None:
            line += f',"backward_passes":{passes}'
        if spent[COLLECTIVE] != NULL:
            line += f',"collective_ns":{spent[COLLECTIVE]}'
        if collectives:
            line += f',"collectives":[{",".join([_collective(*one) for one in collectives])}]'
        if len(spent) > OWN:
            line += ',"named":' + json.dumps({self._names[at]: totals[at] or 0 for at in range(OWN, len(spent))})
        return line + "}"

    def _opaque_ended(self, place: int, now: int) -> None:
        name = self._names[place]
        if name not in self.tags:
            self.tags.append(name)
        span = {"kind": "span", "name": name, "begin_ns": self._opaque_begin_ns, "end_ns": now}
        self.journal.event({**span, "step": self.step_number, "epoch": self._epoch}, now, keep=False)

    def _calibrate(self) -> int:
        """What entering and leaving a phase costs here, in ns; run before anything is recorded."""
        span = self._spans[KNOWN[0]]
        start = self._clock_ns()
        for _ in range(CALIBRATION_MARKS):
            with span:
                pass
        cost = (self._clock_ns() - start) // CALIBRATION_MARKS
        self._totals[0] = None
        self._begin_ns = 0
        self._marks = 0
        return cost


def _collective(kind: int, number: int, begin: int, blocked: Count, end: Count) -> str:
    waited = "null,null" if blocked is None else f"{blocked},{end}"
    return f"[{kind},{number},{begin},{waited}]"


def _both(one: Cut, other: Cut) -> Cut:
    """A step that was cut twice: it ends where it was cut last."""
    late = one if other.arrival_ns is None else other
    return Cut(
        other.end_ns,
        tuple(_sum(*totals) for totals in zip_longest(one.totals, other.totals)),
        late.arrival_ns,
        late.done_ns,
        one.tags + other.tags,
        one.collectives + other.collectives,
        _sum(one.samples, other.samples),
        _sum(one.passes, other.passes),
    )


def _sum(one: Count, other: Count) -> Count:
    return other if one is None else one + (other or 0)


class _Span:
    """One phase as a context manager; holds no state of its own, so one object serves every step."""

    __slots__ = ("_place", "_recorder")

    def __init__(self, recorder: Recorder, place: int) -> None:
        self._recorder = recorder
        self._place = place

    def __enter__(self) -> None:
        self._recorder.enter(self._place)

    def __exit__(self, *_: object) -> None:
        self._recorder.leave()
