"""Turn what a training loop says, or is seen to do, into step records and events: the one writer of them.

The cost of a step in the rank is the point of this file: no allocation per phase, one formatted line per step,
no lock, no thread. Measured by ``benchmarks/recording_cost.py``.
"""

from __future__ import annotations

import json
import math
import time
from typing import Callable, ContextManager, Dict, List, Optional, Sequence, Tuple

from ..rundir import redact
from ..rundir.live import NOTHING, PLACE, SINCE_NS, STEP, hidden_words, live_words
from .identity import Identity
from .journal import Journal

KNOWN = ("input", "copy", "forward", "backward", "optimizer", "evaluation", "checkpoint")
INPUT, COPY, FORWARD, BACKWARD, OPTIMIZER, EVALUATION, CHECKPOINT, COLLECTIVE = range(8)
OWN = COLLECTIVE + 1  # places from here on are the user's words
OPAQUE = (EVALUATION, CHECKPOINT)  # what happens inside belongs to them, forward passes included
CALIBRATION_MARKS = 200


class Cut:
    """Where a step ended: the moment, and all that had been added up until then."""

    def __init__(self, now: int, totals: List[Optional[int]], recorder: Recorder) -> None:
        self.now = now
        self.totals = totals
        self.collective_times = recorder.collective_times()
        self.tags = len(recorder.tags)
        self.collectives = len(recorder.collectives)
        self.samples = recorder.samples
        self.passes = recorder.passes


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
        self.collectives: List[str] = []
        self._names: List[str] = [*KNOWN, "collective"]
        self._totals: List[Optional[int]] = [None] * len(self._names)
        self._spans: Dict[str, _Span] = {name: _Span(self, place) for place, name in enumerate(KNOWN)}
        self.stack: List[int] = []  # the phases that are open, one in another
        self._last_ns = 0
        self._begin_ns = 0
        self._backward_end_ns = 0
        self._opaque_begin_ns = 0
        self._cut: Optional[Cut] = None
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
        return self._names.index(name)

    @property
    def innermost(self) -> Optional[str]:
        """The phase that is running."""
        return self._names[self.stack[-1]] if self.stack else None

    def enter(self, place: int) -> None:
        """Phase number ``place`` begins."""
        now = self._clock_ns()
        self._marks += 1
        stack = self.stack
        if stack:
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
        self.live[PLACE] = place
        self.live[SINCE_NS] = now

    def leave(self) -> None:
        """The innermost phase ends."""
        now = self._clock_ns()
        place = self.stack.pop()
        self._totals[place] = (self._totals[place] or 0) + now - self._last_ns
        self._last_ns = now
        self.live[PLACE] = self.stack[-1] if self.stack else NOTHING
        self.live[SINCE_NS] = now
        if place == BACKWARD:
            self._backward_end_ns = now
        elif place in OPAQUE and place not in self.stack:
            self._opaque_ended(place, now)

    def leave_until(self, depth: int) -> None:
        """Phases end until only ``depth`` are open: what an exception left open is closed here."""
        stack = self.stack
        while len(stack) > depth:
            self.leave()

    def collective(self, kind: int, number: int, begin: int, blocked: Optional[int], end: Optional[int]) -> None:
        """A collective of this step: ``number`` is its place in its group; the others as in ``StepRecord``."""
        if blocked is None:
            self.collectives.append(f"[{kind},{number},{begin},null,null]")
        else:
            self.collectives.append(f"[{kind},{number},{begin},{blocked},{end}]")

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
        self._cut = Cut(now, self._totals[:], self)

    @property
    def is_cut(self) -> bool:
        """Whether a step has ended that is not written yet."""
        return self._cut is not None

    def write_step(self) -> None:
        """Write the step that was cut; what came after the cut belongs to the next one."""
        cut = self._cut
        if cut is None:
            return
        start = self._clock_ns()
        tags = self._take_tags(cut.tags)
        null = "null"
        values = [null if value is None else value for value in cut.totals]
        arrival, done = cut.collective_times
        line = (
            f'{{"step":{self.step_number},"epoch":{self._epoch},"begin_ns":{self._begin_ns},"end_ns":{cut.now},'
            f'"samples":{null if cut.samples is None else cut.samples},"input_ns":{values[0]},"copy_ns":{values[1]},'
            f'"forward_ns":{values[2]},"backward_ns":{values[3]},"optimizer_ns":{values[4]},'
            f'"evaluation_ns":{values[5]},"checkpoint_ns":{values[6]},"arrival_ns":{arrival},"done_ns":{done},'
            f'"recording_ns":{null if self._recording_ns is None else self._recording_ns}'
        )
        if tags:
            line += ',"tags":["' + '","'.join(tags) + '"]'
        if cut.passes is not None:
            line += f',"backward_passes":{cut.passes}'
        if cut.totals[COLLECTIVE] is not None:
            line += f',"collective_ns":{values[COLLECTIVE]}'
        if cut.collectives:
            line += f',"collectives":[{",".join(self.collectives[: cut.collectives])}]'
        if len(cut.totals) > OWN:
            line += ',"named":' + json.dumps({self._names[at]: cut.totals[at] or 0 for at in range(OWN, len(values))})
        self.journal.step(line + "}", cut.now)
        self._begin_next(cut)
        self._recording_ns = self._clock_ns() - start + self._marks * self._mark_cost_ns
        self._marks = 0

    def pass_over(self) -> None:
        """Count the step that was cut, and write nothing of it."""
        if self._cut is not None:
            self.tags = self.tags[self._cut.tags :]
            self._begin_next(self._cut)

    def begin_here(self) -> None:
        """What was added up so far is left out; the step begins now."""
        self.leave_until(0)
        self._totals = [None if value is None else 0 for value in self._totals]
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
        self.journal.close(steps=self._steps_here, ended_well=ended_well)

    def disown(self) -> None:
        """Stop writing, in a forked child."""
        self.journal.disown()
        self.live = hidden_words()

    def collective_times(self) -> Tuple[str, str]:
        """When the last gradient of this step was ready, and when its backward ended, as JSON."""
        arrival = self.arrival() if self.arrival is not None else None
        if arrival is None or arrival < self._begin_ns or self._backward_end_ns < arrival:
            return "null", "null"
        return str(arrival), str(self._backward_end_ns)

    def _take_tags(self, count: int) -> List[str]:
        tags, self.tags = self.tags[:count], self.tags[count:]
        if self._warmup_left > 0:
            self._warmup_left -= 1
            tags.append("warmup")
        return tags

    def _begin_next(self, cut: Cut) -> None:
        totals = self._totals
        for place, value in enumerate(cut.totals):
            if value:
                totals[place] = (totals[place] or 0) - value
        if cut.collectives:
            del self.collectives[: cut.collectives]
        self.samples = None if self.samples is None else self.samples - (cut.samples or 0)
        self.passes = None if self.passes is None else self.passes - (cut.passes or 0)
        self._begin_ns = cut.now
        self._cut = None
        self.step_number += 1
        self.live[STEP] = self.step_number
        self._steps_here += 1

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
