"""Note the calls of a steady training loop, and derive its phases and steps from the notes, many steps at a time.

The wrapped entry points of torch call ``Deferred``, which passes calls on to ``StepInference``. After the work of a
step the caches are cold, and the code that derives phases from calls costs ten times what it costs in a row. So while
a program only fetches, runs its network forward and backward, calls collectives outside of backward, and steps its
one optimizer, a phase costs two readings of the clock and a note. The live page is written as ever. All else first
``settle``s: the notes are replayed (``note_replay``), with the moments noted, and calls are followed one by one again
until a later step ends.
"""

from __future__ import annotations

from contextlib import suppress
from threading import get_ident
from typing import TYPE_CHECKING, Any, Callable, List, Optional, Tuple

from ....rundir.live.activity import ENDED_NS, NOTHING, OPERATION, STEP
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
WORTH = 8  # steps noted in a row; with fewer, noting costs more than it saves
LONGEST_PAUSE = 4096  # steps

NOTES = "notes"


class Deferred:
    """The calls of this rank, which are noted while it ``is_on``.

    On the notes one phase is ``open`` at most, at depth 0, and inside a forward pass a collective, at depth 1.
    ``turned_ns`` is when the open phase began, or the last collective ended.
    """

    __slots__ = (
        "_around",
        "_arrays",
        "_arrival",
        "_batches",
        "_boundary",
        "_clock_ns",
        "_contents",
        "_due_ns",
        "_ended_ns",
        "_first",
        "_flush_ns",
        "_in_parts",
        "_inference",
        "_live",
        "_loads",
        "_made_ns",
        "_note",
        "_notes",
        "_optimizer",
        "_pause",
        "_reading",
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
        self._note: Callable[[Any], None] = self._stray
        self.open = FOLLOWED
        self.is_on = self._repeating = False
        self.step = 0  # of the program's, that runs now
        self._wait = self._pause = 1
        self._contents = Contents()

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
        is_open = self.open
        for place in (self._around, is_open):
            if place != NOTHING:
                self._note((OPENED + place, self.turned_ns, self.turned_ns, self._reading))
        self._repeat()
        self._end()
        noted = self.step - self._first
        self._wait = self._pause = 1 if noted >= WORTH else min(2 * self._pause, LONGEST_PAUSE)
        inference = self._inference
        inference.resumes(saw_forward=self._saw_forward, in_backward=is_open == BACKWARD)
        if is_open == OPTIMIZER:
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
            and vars(inference).keys().isdisjoint(CALLS)
            and vars(inference.arrays).keys().isdisjoint(ARRAYS)
        )

    def _begin(self, recorder: Recorder) -> None:
        inference = self._inference
        self._recorder, self._live, self._clock_ns = recorder, recorder.live, recorder.clock_ns
        self._arrays, self._batches, self._loads = inference.arrays, inference.batches, inference.loads
        self._boundary, self._arrival = inference.boundary, recorder.arrival
        self._thread = get_ident()
        self._notes.clear()  # a signal handler may have settled between a reading and its note
        self._note = self._notes.extend  # a whole note in one call, which no signal can tear
        self._optimizer = self._made_ns = 0
        self._reading: Any = None
        self._saw_forward, self._in_parts = False, inference.in_parts
        self.step = self._first = recorder.step_number
        self.turned_ns, self._ended_ns = recorder.turned_ns, recorder.begin_ns
        self._flush_ns = recorder.flushed_ns + FLUSH_NS
        self._due_ns = min(self._flush_ns, recorder.queue_read_ns + SHORT_QUEUE_EVERY_NS)
        recorder.settle, recorder.forget = self.settle_all, self.discard
        self.open = self._around = NOTHING
        self.is_on = True

    def _end(self) -> None:
        self.is_on = False
        self.open, self._note = FOLLOWED, self._stray
        self._recorder.settle = self._recorder.forget = nothing

    def _stray(self, _: Any) -> None:
        """A note of a phase in whose first lines a signal handler settled is of no step."""
        self.open = FOLLOWED

    def _followed(self) -> StepInference:
        self.settle()
        return self._inference

    # Calls from the program

    def enter(self, place: int) -> int:
        """A phase begins: a collective is noted."""
        is_open = self.open
        if place != COLLECTIVE or is_open not in (NOTHING, FORWARD) or get_ident() != self._thread:
            return self._followed().enter(place)
        now = self._live[COLLECTIVE] = self._clock_ns()
        if is_open == FORWARD:
            self._note((PART, self.turned_ns, now, self._reading))
            self._reading = None
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
            self._followed().leave(depth)
            return
        around = self._around
        now = self._live[ENDED_NS if around == NOTHING else around] = self._clock_ns()
        self.open, self._around = around, NOTHING
        self._note((is_open, self.turned_ns, now, self._reading))
        self.turned_ns = now
        if len(self._notes) >= MOST_NOTES:
            self._repeat()

    def collective_begins(self, operation: int) -> Tuple[int, int, int]:
        """The program calls a collective; returns its depth, the phase that calls it, and its begin."""
        inside = self.open
        if inside in (NOTHING, FORWARD) and get_ident() == self._thread:
            depth = self.enter(COLLECTIVE)
            self._live[OPERATION] = operation
            return depth, inside, self.turned_ns
        recorder = self._followed().recorder
        inside = recorder.stack[-1] if recorder is not None and recorder.stack else NOTHING
        depth = self._inference.enter(COLLECTIVE)
        if recorder is None or depth == NOT_SEEN:
            return NOT_SEEN, NOTHING, 0
        recorder.live[OPERATION] = operation
        return depth, inside, recorder.turned_ns

    def collective_ends(self, depth: int) -> int:
        """The call that began at ``depth`` returned; returns when."""
        if self.open == COLLECTIVE:
            self._live[OPERATION] = NOTHING
            self.leave(depth)
            return self.turned_ns
        recorder = self._followed().recorder
        if recorder is None:
            return 0
        recorder.live[OPERATION] = NOTHING
        self._inference.leave(depth)
        return recorder.turned_ns

    def collective(self, kind: int, number: int, begin: int, blocked: int, end: int) -> None:
        """The program called, and waited for, a collective: as in ``Recorder.collective``."""
        if self.is_on:
            self._note((CALLED, end, end, (kind, number, begin, blocked, end)))
            return
        recorder = self._inference.recorder
        if recorder is not None:
            recorder.collective(kind, number, begin, blocked, end)

    def fetch_begins(self, iterator: int) -> int:
        """The program fetches a batch."""
        if self.open != NOTHING or iterator != self._batches.turned_to or get_ident() != self._thread:
            return self._followed().fetch_begins(iterator)
        self.turned_ns = self._live[INPUT] = self._clock_ns()
        self.open = INPUT
        return 0

    def fetched(self, depth: int, batch: Any) -> None:
        """The fetch that began at ``depth`` returned ``batch``."""
        if self.open != INPUT or depth != 0:
            self._followed().fetched(depth, batch)
            return
        now = self._live[ENDED_NS] = self._clock_ns()
        self.open = NOTHING
        self._note((INPUT, self.turned_ns, now, self._contents.of(batch)))
        if len(self._notes) >= MOST_NOTES:
            self._repeat()

    def forward_begins(self, inputs: Any, learns: bool) -> int:
        """A forward pass of the whole network begins."""
        if self.open != NOTHING or not learns or get_ident() != self._thread:
            return self._followed().forward_begins(inputs, learns)
        self._reading = None if self._loads else self._contents.of(inputs)
        now = self._live[FORWARD] = self._clock_ns()
        if self._in_parts and self._saw_forward and not self._loads:
            self._credit(now)
        self._saw_forward = True
        self._made_ns = 0
        self.turned_ns = now
        self.open = FORWARD
        return 0

    def backward_begins(self) -> int:
        """A backward pass begins."""
        if self.open != NOTHING or not self._saw_forward or get_ident() != self._thread:
            return self._followed().backward_begins()
        if self._arrival is not None:
            self._inference.arrivals.begin()
        now = self._live[BACKWARD] = self._clock_ns()
        if self._in_parts:
            self._credit(now)
        self._made_ns = 0
        self.turned_ns = now
        self.open = BACKWARD
        return 0

    def backward_ends(self, depth: int) -> None:
        """A backward pass ended."""
        if self.open != BACKWARD or depth != 0:
            self._followed().backward_ends(depth)
            return
        now = self._live[ENDED_NS] = self._clock_ns()
        self.open = NOTHING
        self._note((BACKWARD, self.turned_ns, now, () if self._arrival is None else self._arrival()))
        if len(self._notes) >= MOST_NOTES:
            self._repeat()

    def optimizer_begins(self, number: int) -> None:
        """The optimizer steps."""
        if self.open != NOTHING or self._made_ns or not self._saw_forward or get_ident() != self._thread:
            self._followed().optimizer_begins(number)
            return
        self._optimizer = number
        self.turned_ns = self._live[OPTIMIZER] = self._clock_ns()
        self.open = OPTIMIZER

    def optimizer_ends(self, number: int) -> None:
        """The optimizer has stepped: a step ends."""
        if self.open != OPTIMIZER or number != self._optimizer or self._boundary.is_awaited:
            self._followed().optimizer_ends(number)
            return
        now = self._live[ENDED_NS] = self._clock_ns()
        self.step = self._live[STEP] = self.step + 1
        self._saw_forward = False
        self.open = NOTHING
        queued: Optional[int] = LATER
        if now >= self._due_ns or now - self._ended_ns >= QUEUE_EVERY_NS:
            queued = self._recorder.queue.since()
            self._due_ns = min(self._flush_ns, now + SHORT_QUEUE_EVERY_NS)
        self._ended_ns = now
        self._note((OPTIMIZER, self.turned_ns, now, queued))
        if now >= self._flush_ns or len(self._notes) >= MOST_NOTES:
            self._repeat()
            self._flush_ns = self._recorder.flushed_ns + FLUSH_NS

    def tensor_begins(self) -> bool:
        """The program makes a tensor of an array: its input, outside of phases and without a loader."""
        if not self.is_on:
            return self._inference.arrays.tensor_begins()
        if self._loads or self.open != NOTHING or get_ident() != self._thread:
            return False
        if not self._made_ns:
            now = self._live[INPUT] = self._live[ENDED_NS] = self._made_ns = self._clock_ns()
            self._note((ARRAY, now, now, None))
        return True

    def tensor_ends(self) -> None:
        """The tensor is made."""
        if self.is_on:
            self._made_ns = self._clock_ns()
        else:
            self._inference.arrays.tensor_ends()

    def _ends_array(self) -> None:
        """What comes now is no part of the input."""
        if self._made_ns:
            self._note((ARRAY_ENDS, self._made_ns, self._made_ns, None))
            self._made_ns = 0

    def _credit(self, now: int) -> None:
        """What the network's own code does between its parts is part of forward."""
        self._ends_array()
        self._note((CREDIT, now, now, None))

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
        self._inference.failed.add(NOTES)
        self._inference.session.part_failed(NOTES, error)
        with suppress(Exception):
            recorder.step_number, recorder.is_cut = self.step, False
            recorder.begin_here()
