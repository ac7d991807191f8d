"""Turn the marks of a training loop, or what the hooks observe of it, into step records and events.

This is the only writer of both. The cost per step decides its form: no lock, no thread, no object per phase. After the
work of a step the caches are cold, and code costs two or three times what it costs in a tight loop; so each step only
keeps its numbers, and the steps of a fifth of a second are formatted at once. Measured by
``benchmarks/recording_cost.py``, and in training programs by ``benchmarks/overhead.py``.
"""

from __future__ import annotations

import math
import time
from typing import Any, Callable, ContextManager, Dict, List, Optional, Sequence

from ...rundir.live.activity import ENDED_NS, NOTHING, PLACES, STEP, hidden_words, live_words
from ...rundir.write import FLUSH_NS
from ..identity import Identity
from .arrival import Reduced
from .journal import Journal
from .run_queue import RunQueue
from .span import Span
from .step_line import (
    BACKWARD,
    CHECKPOINT,
    EVALUATION,
    KNOWN,
    LATER,
    OPTIMIZER,
    QUEUED,
    Collective,
    Cost,
    EndedStep,
    Reduction,
    Step,
    StepLines,
    shared_queued,
    with_queued,
)

OPAQUE = (EVALUATION, CHECKPOINT)  # time inside belongs to them, forward passes included
OTHERS = "others"  # the name that user phases share when no place is left
MOST_REDUCTIONS = 1024  # of a step; one with more has no known arrival
COLLECTED = OPTIMIZER + 1  # phases whose time a reduction is recorded with
QUEUE_EVERY_NS = 10_000_000  # a read takes 30 µs where the program has filled the caches
SHORT_QUEUE_EVERY_NS = 50_000_000  # of steps that are shorter than that: 30 µs in 10 ms are a third of a percent
MOST_COLLECTIVES = 10_000  # of a step; those of a program without steps would fill its memory


def nothing() -> None:
    """No calls are noted."""


class Recorder:
    """Listens to ``allpull.marks``, or to the hooks in a program, in one rank, and writes its steps and events.

    ``arrival`` (set where a network reduces its gradients) returns after each backward pass what that reduced, and when
    the gradients were ready, in ns of ``clock_ns``. ``samples``, ``elements`` of batches and ``passes`` (backward
    passes) are counted in a step by the hooks; None: not known. ``turned_ns`` is when a phase last began or ended.
    ``settle`` and ``forget`` (set by the hooks) record, or drop, the calls that are only noted so far.
    ``at_flush`` (added to by the hooks) return events of what happened since their last call, given the steps since;
    ``hooks_ns`` (likewise) is the time that hooks took since then, beyond what a phase costs.
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
        self.clock_ns = clock_ns
        self.live = live_words(directory, who.rank)
        self._warmup_left = warmup_steps
        self.queue = RunQueue()
        self.queue_read_ns = self.hooks_ns = 0
        self.arrival: Optional[Callable[[], Reduced]] = None
        self.settle = self.forget = nothing
        self.at_flush: List[Callable[[Sequence[Step]], Sequence[Dict[str, Any]]]] = []
        self._reductions: Optional[List[Reduction]] = []  # of this step; None: one of them is not known
        self.samples: Optional[int] = None
        self.elements: Optional[int] = None
        self.passes: Optional[int] = None
        self.tags: List[str] = []
        self.collectives: List[Collective] = []
        self._names: List[str] = [*KNOWN, "collective"]
        self.spent: List[int] = [0] * len(self._names)  # ns, by place
        self._lines = StepLines(self._names)
        self._spans: Dict[str, Span] = {name: Span(self, place) for place, name in enumerate(KNOWN)}
        self.stack: List[int] = []  # the open phases, nested
        self.turned_ns = self.begin_ns = self.backward_begin_ns = self._opaque_begin_ns = 0
        self.phases = 0  # of this step
        self._ended = EndedStep()
        self.is_cut = False  # whether ``_ended`` is a step that is not written yet
        self.paused = False  # whether steps are only counted
        self._unwritten: List[Step] = []
        self.flushed_ns, self.step_number = clock_ns(), 0
        self._first = 0  # the step number at which this rank began
        self._epoch = 0
        self._epoch_step = -1  # where the epoch began; before the first one, no step
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
        self._lines.cost = Cost(lambda: self.leave_until(self.enter(0)), clock_ns)
        self.begin_here()
        self.begin_ns = self.phases = 0

    def phase(self, name: str) -> ContextManager[None]:
        """The span of phase ``name``; spans nest, and each moment belongs to the innermost."""
        span = self._spans.get(name)
        if span is None:
            span = self._spans[name] = Span(self, self.place_of(name))
        return span

    def place_of(self, name: str) -> int:
        """The place of phase ``name``, a new one for a new name; beyond ``PLACES`` names share the last."""
        if name not in self._names:
            if len(self._names) == PLACES:
                return PLACES - 1
            self._names.append(name if len(self._names) < PLACES - 1 else OTHERS)
            self.spent.append(0)
            return len(self._names) - 1
        return self._names.index(name)

    def name_of(self, place: int) -> Optional[str]:
        """The phase at ``place``; None: between two phases."""
        return None if place == NOTHING else self._names[place]

    def enter(self, place: int) -> int:
        """Phase ``place`` begins; returns how many are open around it, for ``leave_until``."""
        now = self.clock_ns()
        stack = self.stack
        depth = len(stack)
        if depth or place in OPAQUE:
            place = self._enters_within(place, now)
        if not self.begin_ns:
            self.begin_ns = now
        self.turned_ns = now
        if place == BACKWARD:
            self.backward_begin_ns = now
        stack.append(place)
        self.live[place] = now
        return depth

    def leave(self) -> None:
        """The innermost phase ends."""
        self.leave_until(len(self.stack) - 1)

    def leave_until(self, depth: int) -> None:
        """End phases until only ``depth`` are open, including those that an exception left open."""
        stack = self.stack
        if len(stack) != depth + 1:
            if len(stack) <= depth:
                return
            self.leave_until(depth + 1)
        now = self.clock_ns()
        place = stack.pop()
        self.spent[place] += now - self.turned_ns
        self.turned_ns = now
        self.phases += 1
        self.live[stack[-1] if depth else ENDED_NS] = now
        if place == BACKWARD:
            if self.arrival is not None:
                self.reduced(self.arrival(), now)
        elif place in OPAQUE and place not in stack:
            self._opaque_ended(place, now)

    def retract(self, place: int) -> None:
        """The one open phase, which is of ``OPAQUE``, was none: its time counts as phase ``place``."""
        now, begin = self.clock_ns(), max(self._opaque_begin_ns, self.begin_ns)  # a step may have ended in it
        self.spent[self.stack.pop()] -= self.turned_ns - begin
        self.spent[place] += now - begin
        self.turned_ns = self.live[ENDED_NS] = now

    def collective(self, kind: int, number: int, begin: int, blocked: Optional[int], end: Optional[int]) -> None:
        """A collective of this step: ``number`` is its sequence number in its group; the rest as in ``StepRecord``."""
        if len(self.collectives) < MOST_COLLECTIVES:
            self.collectives.append((kind, number, begin, blocked, end))

    def step(self, samples: Optional[int]) -> None:
        """A step on ``samples`` samples has ended: write its record and begin the next one."""
        self.samples = samples
        self.cut()
        self.write_step()

    def cut(self) -> None:
        """The step ends here; if it is cut again before it is written, it ends there."""
        now = self.clock_ns()
        if self.stack:  # inside a phase: the part so far belongs to this step
            self.spent[self.stack[-1]] += now - self.turned_ns
            self.turned_ns = now
        least = QUEUE_EVERY_NS if self.begin_ns and now - self.begin_ns >= QUEUE_EVERY_NS else SHORT_QUEUE_EVERY_NS
        self.cut_at(now, LATER if now - self.queue_read_ns < least else self.queue.since())

    def cut_at(self, now: int, queued_ns: Optional[int]) -> None:
        """As ``cut``, at ``now``, outside of phases; ``queued_ns`` as in ``EndedStep``."""
        self.begin_ns = self.begin_ns or now
        if queued_ns != LATER:
            self.queue_read_ns = now
        ended = EndedStep() if self.is_cut else self._ended
        ended.end_ns = now
        ended.samples, ended.elements, ended.passes = self.samples, self.elements, self.passes
        ended.queued_ns = queued_ns
        ended.spent = self.spent
        ended.tags = ended.collectives = ended.reductions = ()
        if self.tags:
            ended.tags = tuple(self.tags)
            self.tags.clear()
        if self.collectives:
            ended.collectives = tuple(self.collectives)
            self.collectives.clear()
        if self._reductions is None:
            ended.reductions, self._reductions = None, []
        elif self._reductions:
            ended.reductions = tuple(self._reductions)
            self._reductions.clear()
        if self.is_cut:
            self._ended.extend(ended)
        self.is_cut = True
        self.spent = [0] * len(self.spent)
        self.samples = self.elements = self.passes = None

    def write_step(self) -> None:
        """Write the step that was cut; time since the cut belongs to the next one."""
        if not self.is_cut:
            return
        ended = self._ended
        if self._warmup_left > 0:
            self._warmup_left -= 1
            ended.tags += ("warmup",)
        end = ended.end_ns
        if not self.paused:
            self._unwritten.append(
                (
                    self.step_number,
                    self._epoch,
                    self.begin_ns,
                    self.phases,
                    end,
                    ended.reductions,
                    ended.samples,
                    ended.passes,
                    ended.queued_ns,
                    ended.tags,
                    ended.collectives,
                    ended.elements,
                    *ended.spent,
                )
            )
        self.is_cut, self.begin_ns, self.phases = False, end, 0
        self.step_number = self.live[STEP] = self.step_number + 1
        if end - self.flushed_ns >= FLUSH_NS:
            self._flush(end)

    def begin_here(self) -> None:
        """Discard what was counted so far; the step begins now."""
        self.leave_until(0)
        self.spent = [0] * len(self.spent)
        self._reductions, self.elements, self.passes = [], None, None
        self.collectives.clear()
        self.queue.since()
        self.begin_ns = self.queue_read_ns = self.clock_ns()

    def credit(self, place: int) -> None:
        """Count the time since the last phase ended as phase ``place``, whose begin was not observed."""
        if self.begin_ns and not self.stack:
            now = self.clock_ns()
            self.spent[place] += now - max(self.turned_ns, self.begin_ns)
            self.turned_ns = now

    def epoch(self, number: int, step: Optional[int] = None, *, asked_ns: Optional[int] = None) -> None:
        """Epoch ``number`` begins; ``step`` is the number of its next step where training was resumed.

        ``asked_ns``: when a program that says nothing of epochs asked its loader for this one's batches.
        """
        if step is not None and self._epoch_step < 0 and not self.step_number:
            self.begin_here()  # passes before the first step of a training are of none
        now = self.clock_ns()
        if step is not None and step != self.step_number:
            self._first, self.step_number = self._first + step - self.step_number, step
            self.tags.append("resumed")
        if self._epoch_step < 0 or self.step_number - self._epoch_step != 1:  # passes of one batch have no others
            self.tags.append("first_batch")
        self._epoch, self._epoch_step = number, self.step_number
        if not self.begin_ns:
            self.begin_ns = now
        asked = {} if asked_ns is None else {"asked_ns": asked_ns}
        self.journal.event({"kind": "epoch", "epoch": number, "step": self.step_number, "t_ns": now, **asked}, now)

    def delimited_by(self, boundary: str) -> None:
        """What ends steps from now on, where it is not what the header says."""
        now = self.clock_ns()
        self.journal.event({"kind": "boundary", "boundary": boundary, "step": self.step_number, "t_ns": now}, now)

    def metric(self, name: str, value: Optional[float], step: Optional[int] = None) -> None:
        """A metric of the training as of ``step``; a value that is not finite is written as null."""
        now, finite = self.clock_ns(), value is not None and math.isfinite(value)
        event = {"kind": "metric", "name": name, "value": value if finite else None}
        at = self.step_number if step is None else step
        often = name.startswith("train_")  # many per epoch; a metric that comes once must not be thinned out
        self.journal.event({**event, "step": at, "epoch": self._epoch, "t_ns": now}, now, keep=not often)

    def flush(self) -> None:
        """Write all steps that are over, and all events, to disk."""
        self.settle()
        self._flush(self.clock_ns())
        self.journal.flush()

    def close(self, *, ended_well: bool) -> None:
        """Write what is buffered; ``ended_well``: with the event that the rank ended normally."""
        self.settle()
        self.leave_until(0)
        self.write_step()
        now = self.clock_ns()
        self._flush(now)
        self.queue.close()
        if self.collectives:
            rest = {"kind": "rest", "collectives": self.collectives, "step": self.step_number, "t_ns": now}
            self.journal.event(rest, now)
        self.journal.close(steps=self.step_number - self._first, ended_well=ended_well)

    def disown(self) -> None:
        """Stop writing, in a forked child."""
        self.forget()
        self.journal.disown()
        self._unwritten.clear()
        self.live = hidden_words()

    def _flush(self, now: int) -> None:
        """Format the steps that are not written yet, and write them."""
        self.flushed_ns = now
        line, unwritten = self._lines.line, self._unwritten
        if unwritten and unwritten[-1][QUEUED] == LATER:
            self.queue_read_ns = now
            unwritten[-1] = with_queued(unwritten[-1], self.queue.since())
        self._lines.hooks_ns, self.hooks_ns = self.hooks_ns // max(1, len(unwritten)), 0
        self.journal.steps(list(map(line, unwritten, shared_queued(unwritten))), now)
        for take in self.at_flush:
            for event in take(unwritten):
                self.journal.event(event, now, keep=False)
        self._unwritten.clear()

    def reduced(self, reduced: Reduced, now: int) -> None:
        """A backward pass that began at ``_backward_begin_ns`` and ends now ``reduced`` these networks."""
        begin, reductions = self.backward_begin_ns, self._reductions
        if not reduced and reduced is not None:
            return
        if reduced is None or reductions is None or len(reductions) >= MOST_REDUCTIONS:
            self._reductions = None
            return
        spent = self.spent
        for network, ready in reduced:
            if begin <= ready[0] and ready[-1] <= now:
                reductions.append((network, begin, now, *spent[:COLLECTED], *ready))
            else:
                self._reductions = None

    def _enters_within(self, place: int, now: int) -> int:
        """The place that phase ``place`` counts as, which begins inside another one or is one of ``OPAQUE``."""
        if self.stack:
            top = self.stack[-1]
            self.spent[top] += now - self.turned_ns
            if top in OPAQUE:
                place = top
        if place in OPAQUE and place not in self.stack:
            self._opaque_begin_ns = now
        return place

    def _opaque_ended(self, place: int, now: int) -> None:
        name = self._names[place]
        if name not in self.tags:
            self.tags.append(name)
        span = {"kind": "span", "name": name, "begin_ns": self._opaque_begin_ns, "end_ns": now}
        self.journal.event({**span, "step": self.step_number, "epoch": self._epoch}, now, keep=False)
