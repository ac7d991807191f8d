"""Note the calls of a steady training loop, and derive its phases and steps from the notes, many steps at a time.

After the work of a step the caches are cold, and the code that derives phases from calls costs ten times what it costs
in a row. So while a program only fetches, runs its network forward and backward, calls collectives outside of backward,
and steps its one optimizer, a call costs a reading of the clock and a note. The live page is written as ever. All else
first ``settle``s: the notes are replayed (``note_replay``), with the moments noted, and calls are followed one by one
again until a later step ends.
"""

from __future__ import annotations

from contextlib import suppress
from operator import attrgetter
from threading import get_ident
from typing import TYPE_CHECKING, Any, Callable, List, Optional

from ....rundir.live.activity import ENDED_NS, NOTHING, STEP
from ....rundir.write import FLUSH_NS
from ...recording.recorder import QUEUE_EVERY_NS, SHORT_QUEUE_EVERY_NS, Recorder, nothing
from ...recording.step_line import BACKWARD, COLLECTIVE, FORWARD, INPUT, LATER, OPTIMIZER
from .batch_size import DEEPEST, Content, content_of
from .note_replay import (
    ARRAY,
    ARRAY_ENDS,
    BACKWARD_ENDS,
    CALLED,
    COLLECTIVE_ENDS,
    CREDIT,
    FETCHED,
    FIELDS,
    LEFT,
    STEP_ENDS,
    replay,
)

if TYPE_CHECKING:
    from .step_inference import StepInference

INSTEAD = (
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
"""Methods of ``StepInference`` that ``Deferred`` replaces while it is on."""
ARRAYS = ("tensor_begins", "tensor_ends")  # those of ``ArrayBatches``

MOST_NOTES = 64 * 8 * FIELDS  # 64 steps, or part of one: repeating them holds up a step by half a millisecond
WORTH = 8  # steps noted in a row; with fewer, noting costs more than it saves
LONGEST_PAUSE = 4096  # steps

PART = "notes"
shapes_of: Callable[[Any], Any] = attrgetter("shape")


class Deferred:
    """The notes of this rank; ``is_on`` while its calls are noted.

    At most one phase is open on the notes, and none outside them: its depth is 0, that of a collective inside it 1.
    """

    __slots__ = (
        "_around",
        "_arrays",
        "_batch",
        "_batches",
        "_clock_ns",
        "_content",
        "_ended_ns",
        "_first",
        "_flushed_ns",
        "_in_parts",
        "_inference",
        "_live",
        "_loads",
        "_made_ns",
        "_note",
        "_notes",
        "_optimizer",
        "_pause",
        "_queue_read_ns",
        "_recorder",
        "_repeating",
        "_saw_forward",
        "_thread",
        "_wait",
        "is_on",
        "open",
        "step",
        "turned_ns",
    )

    def __init__(self, inference: StepInference) -> None:
        self._inference = inference
        self._notes: List[Any] = []
        self._note = self._notes.extend  # a whole note in one call, which no signal can tear
        self.is_on = self._repeating = False
        self.step = 0  # of the program's, that runs now
        self._wait = self._pause = 1
        self._batch: Any = None
        self._content: Content = (None, None)

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
        if self.is_on and (get_ident() == self._thread or self.open == BACKWARD):
            self.settle_all()

    def settle_all(self) -> None:
        """As ``settle``, from any thread: the one that ends the process may not be the one that trains."""
        if self._repeating or not self.is_on:
            return
        self._ends_array()
        self._repeat()
        self._end()
        noted = self.step - self._first
        self._wait = self._pause = 1 if noted >= WORTH else min(2 * self._pause, LONGEST_PAUSE)
        inference = self._inference
        inference.resumes(saw_forward=self._saw_forward, in_backward=self.open == BACKWARD)
        if self.open == OPTIMIZER:
            inference.stepping[self._optimizer] = 0

    def discard(self) -> None:
        """Forget all notes, in a forked child."""
        if self.is_on:
            self._notes.clear()
            self._end()

    def _is_steady(self, recorder: Recorder) -> bool:
        inference = self._inference
        return (
            inference.is_plain
            and not (recorder.stack or recorder.is_cut or recorder.paused or inference.boundary.is_awaited)
            and "enter" not in vars(recorder)  # a device marks each phase on its stream
            and vars(inference).keys().isdisjoint(INSTEAD)
            and vars(inference.arrays).keys().isdisjoint(ARRAYS)
        )

    def _begin(self, recorder: Recorder) -> None:
        inference = self._inference
        self._recorder, self._live, self._clock_ns = recorder, recorder.live, recorder.clock_ns
        self._arrays, self._batches, self._loads = inference.arrays, inference.batches, inference.loads
        self._thread = get_ident()
        self.open = self._around = NOTHING
        self._notes.clear()  # a signal handler may have settled between a reading and its note
        self._optimizer = self._made_ns = 0
        self._saw_forward, self._in_parts = False, inference.in_parts
        self.step = self._first = recorder.step_number
        self._queue_read_ns, self._flushed_ns = recorder.queue_read_ns, recorder.flushed_ns
        self._ended_ns = recorder.begin_ns
        self.turned_ns = recorder.turned_ns
        for holder, names in ((inference, INSTEAD), (inference.arrays, ARRAYS)):
            for name in names:
                setattr(holder, name, getattr(self, name))
        recorder.settle, recorder.forget = self.settle_all, self.discard
        self.is_on = True

    def _end(self) -> None:
        self.is_on = False
        self._recorder.settle = self._recorder.forget = nothing
        for holder, names in ((self._inference, INSTEAD), (self._arrays, ARRAYS)):
            for name in names:
                if vars(holder).get(name) == getattr(self, name):  # else that part of observation has failed
                    delattr(holder, name)

    # Calls from the program, as in ``StepInference``

    def enter(self, place: int) -> int:
        """Any other phase begins."""
        if get_ident() != self._thread and self.open != BACKWARD:
            return -1
        if place != COLLECTIVE or self.open not in (NOTHING, FORWARD):
            self.settle()
            return type(self._inference).enter(self._inference, place)
        self._ends_array()
        self._around, self.open = self.open, COLLECTIVE
        now = self.turned_ns = self._live[COLLECTIVE] = self._clock_ns()
        self._note((COLLECTIVE, now, None))
        return int(self._around != NOTHING)

    def leave(self, depth: int) -> None:
        """A forward pass ends, or a fetch that raised."""
        if depth < 0:
            return
        now = self._clock_ns()
        if self.open == COLLECTIVE:
            self._note((COLLECTIVE_ENDS, now, None))
            self._live[ENDED_NS if self._around == NOTHING else self._around] = self.turned_ns = now
            self.open, self._around = self._around, NOTHING
        elif self.open in (FORWARD, INPUT):
            self._note((LEFT, now, None))
            self._live[ENDED_NS] = now
            self.open = NOTHING
        else:
            self.settle()
            type(self._inference).leave(self._inference, depth)
            return
        if len(self._notes) >= MOST_NOTES:
            self._repeat()

    def collective(self, *numbers: Optional[int]) -> None:
        """A collective was called; ``numbers`` as in ``Recorder.collective``."""
        self._note((CALLED, self.turned_ns, numbers))

    def fetch_begins(self, iterator: int) -> int:
        """The program fetches a batch."""
        if self.open != NOTHING or iterator != self._batches.turned_to or get_ident() != self._thread:
            self.settle()
            return type(self._inference).fetch_begins(self._inference, iterator)
        self.open = INPUT
        now = self._live[INPUT] = self._clock_ns()
        self._note((INPUT, now, None))
        return 0

    def fetched(self, depth: int, batch: Any) -> None:
        """The fetch that began at ``depth`` returned ``batch``."""
        if depth != 0 or self.open != INPUT:
            self.settle()
            type(self._inference).fetched(self._inference, depth, batch)
            return
        now = self._live[ENDED_NS] = self._clock_ns()
        self.open = NOTHING
        self._note((FETCHED, now, self._content_of(batch)))
        if len(self._notes) >= MOST_NOTES:
            self._repeat()

    def forward_begins(self, inputs: Any, learns: bool) -> int:
        """A forward pass of the whole network begins."""
        if self.open != NOTHING or not learns or get_ident() != self._thread:
            self.settle()
            return type(self._inference).forward_begins(self._inference, inputs, learns)
        content = None if self._loads else self._content_of(inputs)
        now = self._live[FORWARD] = self._clock_ns()
        if self._in_parts and self._saw_forward and not self._loads:
            self._ends_array()
            self._note((CREDIT, now, None))
        self._saw_forward = True
        self.open = FORWARD
        self._made_ns = 0
        self._note((FORWARD, now, content))
        return 0

    def backward_begins(self) -> int:
        """A backward pass begins."""
        if self.open != NOTHING or not self._saw_forward or get_ident() != self._thread:
            self.settle()
            return type(self._inference).backward_begins(self._inference)
        if self._inference.arrivals.any:
            self._inference.arrivals.begin()
        self.open = BACKWARD
        now = self._live[BACKWARD] = self._clock_ns()
        if self._in_parts:
            self._ends_array()
            self._note((CREDIT, now, None))
        self._made_ns = 0
        self._note((BACKWARD, now, None))
        return 0

    def backward_ends(self, depth: int) -> None:
        """A backward pass ended."""
        if depth != 0 or self.open != BACKWARD:
            self.settle()
            type(self._inference).backward_ends(self._inference, depth)
            return
        now = self._live[ENDED_NS] = self._clock_ns()
        arrival = self._recorder.arrival
        self.open = NOTHING
        self._note((BACKWARD_ENDS, now, () if arrival is None else arrival()))
        if len(self._notes) >= MOST_NOTES:
            self._repeat()

    def optimizer_begins(self, number: int) -> None:
        """The optimizer steps."""
        if self.open != NOTHING or self._made_ns or not self._saw_forward or get_ident() != self._thread:
            self.settle()
            type(self._inference).optimizer_begins(self._inference, number)
            return
        self.open, self._optimizer = OPTIMIZER, number
        now = self._live[OPTIMIZER] = self._clock_ns()
        self._note((OPTIMIZER, now, None))

    def optimizer_ends(self, number: int) -> None:
        """The optimizer has stepped: a step ends."""
        if self.open != OPTIMIZER or number != self._optimizer or self._inference.boundary.is_awaited:
            self.settle()
            type(self._inference).optimizer_ends(self._inference, number)
            return
        now = self._live[ENDED_NS] = self._clock_ns()
        queued: Optional[int] = LATER
        is_due = now - self._flushed_ns >= FLUSH_NS
        is_long = now - self._ended_ns >= QUEUE_EVERY_NS
        self._ended_ns = now
        if is_due or now - self._queue_read_ns >= (QUEUE_EVERY_NS if is_long else SHORT_QUEUE_EVERY_NS):
            self._queue_read_ns = now
            queued = self._recorder.queue.since()
        self.open = NOTHING
        self._saw_forward = False
        self.step = self._live[STEP] = self.step + 1
        self._note((STEP_ENDS, now, queued))
        if is_due or len(self._notes) >= MOST_NOTES:
            self._repeat()
            self._flushed_ns = self._recorder.flushed_ns

    def tensor_begins(self) -> bool:
        """The program makes a tensor of an array: its input, outside of phases and without a loader."""
        if self._loads or self.open != NOTHING or get_ident() != self._thread:
            return False
        if not self._made_ns:
            now = self._live[INPUT] = self._live[ENDED_NS] = self._made_ns = self._clock_ns()
            self._note((ARRAY, now, None))
        return True

    def tensor_ends(self) -> None:
        """The tensor is made."""
        self._made_ns = self._clock_ns()

    def _ends_array(self) -> None:
        """What comes now is no part of the input."""
        if self._made_ns:
            self._note((ARRAY_ENDS, self._made_ns, None))
            self._made_ns = 0

    def _content_of(self, batch: Any) -> Content:
        """The content of a batch, looked up by the shapes of its tensors if those of the one before were the same."""
        kind = type(batch)
        try:
            shapes = tuple(map(shapes_of, batch[:DEEPEST])) if kind is tuple or kind is list else batch.shape
            if shapes != self._batch:
                self._content = content_of(batch)
                self._batch = shapes
        except Exception:  # noqa: BLE001  whatever the program calls a batch
            return content_of(batch)
        return self._content

    # Repeating

    def _repeat(self) -> None:
        """Repeat the notes, at their moments and with what was read then; notes that arrive meanwhile follow."""
        self._repeating = True
        try:
            replay(self._notes, self._recorder, self._inference)
        except Exception as error:  # noqa: BLE001  no error of ours may reach the program
            self._lose(self._recorder, error)
        finally:
            self._repeating = False

    def _lose(self, recorder: Recorder, error: Exception) -> None:
        """Note no calls any more; the steps that are lost are missing, and shift no other."""
        self._notes.clear()
        self._end()
        self._inference.failed.add(PART)
        self._inference.session.part_failed(PART, error)
        with suppress(Exception):
            recorder.step_number, recorder.is_cut = self.step, False
            recorder.begin_here()
