"""Note the calls of a steady training loop, and derive its phases and steps from the notes, many steps at a time.

The wrapped entry points of torch note their calls here, or pass them on to ``StepInference``. After the work of a step
the caches are cold, and the code that derives phases from calls costs ten times what it costs in a row. So while
a program only fetches, runs its network forward and backward, calls collectives outside of backward, and steps its
one optimizer, a phase costs two readings of the clock and a note. The live page is written as ever. All else first
``settle``s: the notes are replayed (``note_replay``), with the moments noted, and calls are followed one by one again
until a later step ends.
"""

from __future__ import annotations

from contextlib import suppress
from threading import get_ident
from typing import TYPE_CHECKING, Any, Callable, List, Optional, Tuple

from ....rundir.live.activity import ENDED_NS, NOTHING, OPERATION
from ....rundir.write import FLUSH_NS
from ...recording.recorder import QUEUE_EVERY_NS, SHORT_QUEUE_EVERY_NS, Recorder, nothing
from ...recording.step_line import BACKWARD, COLLECTIVE, FORWARD, INPUT, LATER, OPTIMIZER
from .batch_size import Contents
from .note_replay import ARRAY, ARRAY_ENDS, CALLED, CREDIT, FIELDS, OPENED, PART, replay
from .phases import NOT_SEEN

if TYPE_CHECKING:
    from .step_inference import StepInference

FOLLOWED = -2  # instead of the open phase, while calls are followed one by one
CALLS = (
    "enter",
    "leave",
    "fetch_begins",
    "fetched",
    "forward_begins",
    "backward_begins",
    "backward_ends",
    "optimizer_begins",
    "optimizer_ends",
)
"""Methods of ``StepInference`` whose calls are noted; one that was replaced has failed, or looks for updates."""
ARRAYS = ("tensor_begins", "tensor_ends")  # those of ``ArrayBatches``

MOST_NOTES = 64 * 4 * FIELDS  # 64 steps, or part of one: repeating them holds up a step by half a millisecond
FULL = MOST_NOTES - FIELDS  # one more note, and they are repeated
WORTH = 8  # steps noted in a row; with fewer, noting costs more than it saves
LONGEST_PAUSE = 4096  # steps

NOTES = "notes"


class Deferred:
    """The calls of this rank, which are noted while it ``is_on``.

    On the notes one phase is ``open`` at most, at depth 0, and inside a forward pass a collective, at depth 1.
    ``turned_ns`` is when the open phase began, or the last collective ended. What a loop calls in every step notes
    itself (``torch.noted_calls``), by what is public here: a method would cost each a microsecond or two more.
    ``iterator`` is the id of the one that batches are fetched from; ``made_ns``, when a tensor was last made of an
    array; ``reading``, what the open phase will be noted with; ``due_ns``, when the queue is to be read.
    """

    __slots__ = (
        "_around",
        "_first",
        "_flush_ns",
        "_inference",
        "_pause",
        "_recorder",
        "_repeating",
        "_wait",
        "arrival",
        "boundary",
        "clock_ns",
        "contents",
        "due_ns",
        "ended_ns",
        "has_learned",
        "in_network",
        "in_parts",
        "is_on",
        "iterator",
        "live",
        "loads",
        "made_ns",
        "note",
        "notes",
        "open",
        "optimizer",
        "reading",
        "saw_forward",
        "step",
        "thread",
        "turned_ns",
    )

    def __init__(self, inference: StepInference) -> None:
        self._inference = inference
        self.notes: List[Any] = []
        self.note: Callable[[Any], None] = self._stray
        self.open = FOLLOWED
        self.is_on = self._repeating = False
        self.in_network = False  # one runs, noted or followed: those inside it are part of it
        self.has_learned = False  # one has run with gradients, in training mode
        self.step = 0  # of the program's, that runs now
        self._wait = self._pause = 1
        self.contents = Contents()

    # Switching

    def consider(self, recorder: Recorder) -> None:
        """A step has ended, and was followed call by call: note those of the next one, if the program is steady."""
        if self._wait:
            self._wait -= 1
        elif not self._is_steady(recorder):
            self._wait = self._pause
        else:
            self._begin(recorder)

    def settle(self) -> None:
        """Follow calls one by one again, after repeating all notes; what other threads do needs neither."""
        if self.is_on and (get_ident() == self.thread or self.open == BACKWARD):
            self.settle_all()

    def settle_all(self) -> None:
        """As ``settle``, from any thread: the one that ends the process may not be the one that trains."""
        if self._repeating or not self.is_on:
            return
        self._ends_array()
        is_open = self.open
        for place in (self._around, is_open):
            if place != NOTHING:
                self.note((OPENED + place, self.turned_ns, self.turned_ns, self.reading))
        self.repeat()
        self._end()
        noted = self.step - self._first
        self._wait = self._pause = 1 if noted >= WORTH else min(2 * self._pause, LONGEST_PAUSE)
        inference = self._inference
        inference.resumes(saw_forward=self.saw_forward, in_backward=is_open == BACKWARD)
        if is_open == OPTIMIZER:
            inference.stepping[self.optimizer] = 0

    def discard(self) -> None:
        """Forget all notes, in a forked child."""
        if self.is_on:
            self.notes.clear()
            self._end()

    def _is_steady(self, recorder: Recorder) -> bool:
        inference = self._inference
        return (
            inference.is_plain
            and not (recorder.stack or recorder.is_cut or recorder.paused or inference.boundary.is_awaited)
            and "enter" not in vars(recorder)  # a device marks each phase on its stream
            and vars(inference).keys().isdisjoint(CALLS)
            and vars(inference.arrays).keys().isdisjoint(ARRAYS)
        )

    def _begin(self, recorder: Recorder) -> None:
        inference = self._inference
        self._recorder, self.live, self.clock_ns = recorder, recorder.live, recorder.clock_ns
        self.iterator, self.loads = inference.batches.turned_to, inference.loads
        self.boundary, self.arrival = inference.boundary, recorder.arrival
        self.thread = get_ident()
        self.notes.clear()  # a signal handler may have settled between a reading and its note
        self.note = self.notes.extend  # a whole note in one call, which no signal can tear
        self.optimizer = self.made_ns = 0
        self.reading: Any = None
        self.saw_forward, self.in_parts = False, inference.in_parts
        self.step = self._first = recorder.step_number
        self.turned_ns, self.ended_ns = recorder.turned_ns, recorder.begin_ns
        self._flush_ns = recorder.flushed_ns + FLUSH_NS
        self.due_ns = min(self._flush_ns, recorder.queue_read_ns + SHORT_QUEUE_EVERY_NS)
        recorder.settle, recorder.forget = self.settle_all, self.discard
        self.open = self._around = NOTHING
        self.is_on = True

    def _end(self) -> None:
        self.is_on = False
        self.open, self.note = FOLLOWED, self._stray
        self._recorder.settle = self._recorder.forget = nothing

    def _stray(self, _: Any) -> None:
        """A note of a phase in whose first lines a signal handler settled is of no step."""
        self.open = FOLLOWED

    def followed(self) -> StepInference:
        """What follows calls one by one, after all notes were repeated."""
        self.settle()
        return self._inference

    # Calls from the program

    def enter(self, place: int) -> int:
        """A phase begins: a collective is noted."""
        is_open = self.open
        if place != COLLECTIVE or is_open not in (NOTHING, FORWARD) or get_ident() != self.thread:
            return self.followed().enter(place)
        now = self.live[COLLECTIVE] = self.clock_ns()
        if is_open == FORWARD:
            self.note((PART, self.turned_ns, now, self.reading))
            self.reading = None
        else:
            self._ends_array()
        self.turned_ns = now
        self._around, self.open = is_open, COLLECTIVE
        return int(is_open != NOTHING)

    def leave(self, depth: int) -> None:
        """A forward pass or a collective ends, or another phase."""
        is_open = self.open
        if depth < 0:
            return
        if is_open not in (FORWARD, COLLECTIVE):
            self.followed().leave(depth)
            return
        around = self._around
        now = self.live[ENDED_NS if around == NOTHING else around] = self.clock_ns()
        self.open, self._around = around, NOTHING
        self.note((is_open, self.turned_ns, now, self.reading))
        self.turned_ns = now
        if len(self.notes) >= MOST_NOTES:
            self.repeat()

    def collective_begins(self, operation: int) -> Tuple[int, int, int]:
        """The program calls a collective; returns its depth, the phase that calls it, and its begin."""
        inside = self.open
        if inside in (NOTHING, FORWARD) and get_ident() == self.thread:
            depth = self.enter(COLLECTIVE)
            self.live[OPERATION] = operation
            return depth, inside, self.turned_ns
        recorder = self.followed().recorder
        inside = recorder.stack[-1] if recorder is not None and recorder.stack else NOTHING
        depth = self._inference.enter(COLLECTIVE)
        if recorder is None or depth == NOT_SEEN:
            return NOT_SEEN, NOTHING, 0
        recorder.live[OPERATION] = operation
        return depth, inside, recorder.turned_ns

    def collective_ends(self, depth: int) -> int:
        """The call that began at ``depth`` returned; returns when."""
        if self.open == COLLECTIVE:
            self.live[OPERATION] = NOTHING
            self.leave(depth)
            return self.turned_ns
        recorder = self.followed().recorder
        if recorder is None:
            return 0
        recorder.live[OPERATION] = NOTHING
        self._inference.leave(depth)
        return recorder.turned_ns

    def collective(self, kind: int, number: int, begin: int, blocked: Optional[int], end: Optional[int]) -> None:
        """The program called a collective, and waited for it or never will: as in ``Recorder.collective``."""
        if self.is_on:
            self.note((CALLED, begin, begin, (kind, number, begin, blocked, end)))
            return
        recorder = self._inference.recorder
        if recorder is not None:
            recorder.collective(kind, number, begin, blocked, end)

    @property
    def has_batch(self) -> bool:
        """Whether, while calls are noted, the program has fetched a batch of a loader and not learned from it yet."""
        last = self.notes[-FIELDS:]  # a signal handler may settle after any line
        return self.is_on and self.loads and bool(last) and last[0] in (INPUT, FORWARD)

    @property
    def is_own_thread(self) -> bool:
        """Whether this is the training thread."""
        return self._inference.is_own_thread

    def arrives(self) -> None:
        """A backward pass begins, whose gradients are timed."""
        self._inference.arrivals.begin()

    def steps(self, now: int) -> None:
        """The optimizer has stepped ``now``, where the queue or the notes may be due."""
        queued: Optional[int] = LATER
        if now >= self.due_ns or now - self.ended_ns >= QUEUE_EVERY_NS:
            queued = self._recorder.queue.since()
            self.due_ns = min(self._flush_ns, now + SHORT_QUEUE_EVERY_NS)
        self.ended_ns = now
        self.note((OPTIMIZER, self.turned_ns, now, queued))
        if now >= self._flush_ns or len(self.notes) >= MOST_NOTES:
            self.repeat()
            self._flush_ns = self._recorder.flushed_ns + FLUSH_NS

    def credit(self, now: int) -> None:
        """What the network's own code does between its parts is part of forward."""
        self._ends_array()
        self.note((CREDIT, now, now, None))

    def tensor_begins(self) -> bool:
        """The program makes a tensor of an array: its input, outside of phases and without a loader."""
        if not self.is_on:
            return self._inference.arrays.tensor_begins()
        if self.loads or self.open != NOTHING or get_ident() != self.thread:
            return False
        if not self.made_ns:
            now = self.live[INPUT] = self.live[ENDED_NS] = self.made_ns = self.clock_ns()
            self.note((ARRAY, now, now, None))
        return True

    def tensor_ends(self) -> None:
        """The tensor is made."""
        if self.is_on:
            self.made_ns = self.clock_ns()
        else:
            self._inference.arrays.tensor_ends()

    def _ends_array(self) -> None:
        """What comes now is no part of the input."""
        if self.made_ns:
            self.note((ARRAY_ENDS, self.made_ns, self.made_ns, None))
            self.made_ns = 0

    # Repeating

    def repeat(self) -> None:
        """Repeat the notes, at their moments and with what was read then; notes that arrive meanwhile follow."""
        self._repeating = True
        try:
            replay(self.notes, self._recorder, self._inference)
        except Exception as error:  # noqa: BLE001  no error of ours may reach the program
            self._lose(self._recorder, error)
        finally:
            self._repeating = False

    def _lose(self, recorder: Recorder, error: Exception) -> None:
        """Note no calls any more; the steps that are lost are missing, and shift no other."""
        self.notes.clear()
        self._end()
        self._inference.failed.add(NOTES)
        self._inference.session.part_failed(NOTES, error)
        with suppress(Exception):
            recorder.step_number, recorder.is_cut = self.step, False
            recorder.begin_here()
