"""Make phases, steps and epochs of what a program is seen to do.

The rules, all of which a reader of the records may rely on:

- A step ends when an optimizer's ``step`` returns. Where a program made several optimizers, it ends when the last of
  them has stepped before one steps again or the next batch is fetched.
- Samples count for the step that learns from them, in the order in which their batches were fetched.
- A pass over a loader is an epoch if one of its batches is learned from.
- Evaluation is from ``eval()`` to ``train()`` of the network; or, where a program says neither, from a forward pass
  without gradients to the next one with. A checkpoint or a barrier ends it too.
- What an exception leaves open ends where the phase around it does.
"""

from __future__ import annotations

import functools
import inspect
import time
from threading import get_ident
from typing import Any, Callable, Dict, List, Optional, Set, Tuple, TypeVar, cast

from ..arrival import Arrival
from ..recorder import BACKWARD, EVALUATION, FORWARD, INPUT, OPTIMIZER, Recorder
from .batches import Batches, samples_of
from .session import Session

NOT_SEEN = -1  # the depth of a phase that nobody records

Method = TypeVar("Method", bound=Callable[..., Any])


def safely(part: str, otherwise: Any = None) -> Callable[[Method], Method]:
    """Keep an error of ours from the program: ``part`` of observation ends with it, and answers ``otherwise``."""

    def protect(method: Method) -> Method:
        def failed(self: Any, error: Exception) -> Any:
            self.failed.add(part)
            self.session.part_failed(part, error)
            return otherwise

        @functools.wraps(method)
        def protected(self: Any, *args: Any, **kwargs: Any) -> Any:
            if part in self.failed:
                return otherwise
            try:
                return method(self, *args, **kwargs)
            except Exception as error:  # noqa: BLE001  whatever it is, it is not the program's
                return failed(self, error)

        @functools.wraps(method)
        def protected_of_one(self: Any, given: Any) -> Any:  # half the cost of the general one
            if part in self.failed:
                return otherwise
            try:
                return method(self, given)
            except Exception as error:  # noqa: BLE001
                return failed(self, error)

        @functools.wraps(method)
        def protected_of_none(self: Any) -> Any:
            if part in self.failed:
                return otherwise
            try:
                return method(self)
            except Exception as error:  # noqa: BLE001
                return failed(self, error)

        code = method.__code__
        plain = not code.co_flags & (inspect.CO_VARARGS | inspect.CO_VARKEYWORDS) and not code.co_kwonlyargcount
        shapes = {1: protected_of_none, 2: protected_of_one}
        return cast("Method", shapes.get(code.co_argcount, protected) if plain else protected)

    return protect


class Watcher:
    """Stands between the entry points of torch and the recorder of this rank.

    What begins returns a depth, which its end takes back; each pair costs about a microsecond, and nothing but a
    comparison where the process is no rank or the call comes from another thread.
    """

    def __init__(self, session: Session) -> None:
        self.session = session
        self.recorder: Optional[Recorder] = None
        self.failed: Set[str] = set()
        self.at_boundary: List[Callable[[int], None]] = []
        self._thread = get_ident()
        self._in_backward = False
        self._batches = Batches()
        self._loads = False
        self._saw_forward = False  # in this step
        self._is_training: Optional[Callable[[], bool]] = None  # of the network that is evaluated by its own word
        self._optimizers = 0
        self._stepped: Set[int] = set()
        self._arrivals: List[Arrival] = []
        self.reducing: Dict[int, Tuple[int, int, int]] = {}  # kind, number and begin of what backward started, by work
        self.steps_taken = 0  # by optimizers, whether or not they end a step
        self._by_words = False
        self._epochs_by_words = False
        self._toggle_asked = False
        first, last = session.watch.get("steps") or (0, None)
        self._first, self._last = int(first), last
        self._on = self._first == 0

    # Whether anything is recorded

    @safely("recording")
    def ready(self) -> Optional[Recorder]:
        """The recorder of this rank; asked for where a program trains, which makes this process a rank."""
        if self.recorder is None:
            self.recorder = self.session.begin()
            self._thread = get_ident()
            if self.recorder is not None:
                self._attach(self.recorder)
        return self.recorder

    def _ready_to_learn(self) -> None:
        """A process that made an optimizer and fetches, or runs its network, will train: its first step begins."""
        if self._optimizers and self.recorder is None:
            self.ready()

    @safely("phases", NOT_SEEN)
    def enter(self, place: int) -> int:
        """A phase begins; the depth to give back to ``leave``."""
        return self._enter(place)

    def _enter(self, place: int) -> int:
        recorder = self.recorder
        if recorder is None or not self._on or (get_ident() != self._thread and not self._in_backward):
            return NOT_SEEN
        depth = len(recorder.stack)
        recorder.enter(place)
        return depth

    @safely("phases")
    def leave(self, depth: int) -> None:
        """The phase that began at ``depth`` ends, and whatever was left open in it."""
        if depth >= 0 and self.recorder is not None:
            self.recorder.leave_until(depth)

    def toggle(self, *_: object) -> None:
        """Record where we did not, and the other way round, from the next step on; fit to be called by a signal."""
        self._toggle_asked = True

    @property
    def is_own_thread(self) -> bool:
        """Whether this is the thread that trains."""
        return get_ident() == self._thread

    @property
    def evaluating(self) -> bool:
        """Whether an evaluation is going on."""
        recorder = self.recorder
        return recorder is not None and bool(recorder.stack) and recorder.stack[-1] == EVALUATION

    # Loaders

    @safely("loaders", NOT_SEEN)
    def pass_begins(self) -> int:
        """The iterator of a loader is made, which may start its workers."""
        if self.evaluating:
            self._look_whether_evaluating()
        return self._enter(INPUT)

    @safely("loaders")
    def pass_begun(self, iterator: int) -> None:
        """It is made; ``iterator`` is its id."""
        if get_ident() == self._thread:
            self._batches.begin(iterator)

    @safely("loaders", NOT_SEEN)
    def fetch_begins(self, iterator: int) -> int:
        """The program asks an iterator, whose id is given, for a batch."""
        recorder = self.recorder
        if get_ident() != self._thread:
            return NOT_SEEN
        if recorder is None:
            self._ready_to_learn()
        else:
            if recorder.stack:
                if recorder.stack[-1] == INPUT:
                    return self._enter(INPUT)  # a loader inside a loader
                if recorder.stack[-1] == EVALUATION:
                    self._look_whether_evaluating()
            if recorder.is_cut and not self.evaluating:
                self._write(recorder)
        self._batches.turn_to(iterator)
        return self._enter(INPUT)

    @safely("loaders")
    def fetched(self, batch: Any) -> None:
        """The program got its batch."""
        recorder = self.recorder
        if get_ident() != self._thread or (recorder is not None and recorder.stack and recorder.stack[-1] == INPUT):
            return  # a loader in a thread, or inside a loader
        self._loads = True
        self._batches.fetched(samples_of(batch))

    # The network

    @safely("forward", NOT_SEEN)
    def forward_begins(self, inputs: Any, *, learns: bool) -> int:
        """A forward pass of the whole network begins, on ``inputs``; ``learns``: gradients are kept."""
        if get_ident() != self._thread:
            return NOT_SEEN
        if self.recorder is None and learns:
            self._ready_to_learn()
        recorder = self.recorder
        stack = recorder.stack if recorder is not None else []
        if stack and stack[-1] == BACKWARD:
            return NOT_SEEN  # a network that runs again for the sake of its gradients
        if learns:
            self._saw_forward = True
            if stack and stack[-1] == EVALUATION:
                self._end_evaluation()
            if not self._loads and not (stack and stack[0] == OPTIMIZER and recorder and recorder.samples):
                self._batches.give(samples_of(inputs))  # once, where an optimizer has it run many times (LBFGS)
        elif not (stack and stack[-1] == EVALUATION) and self._batches.is_new_pass:
            self._begin_evaluation()
        return self._enter(FORWARD)

    @safely("evaluation")
    def evaluation_begins(self, is_training: Callable[[], bool]) -> None:
        """The program says that it evaluates, until ``is_training``."""
        if self.is_own_thread and not self.evaluating and self._begin_evaluation():
            self._is_training = is_training

    def _look_whether_evaluating(self) -> None:
        if self._is_training is not None and self._is_training() and self.is_own_thread:
            self._end_evaluation()

    def _end_evaluation(self) -> None:
        self._is_training = None
        if self.recorder is not None:
            self.recorder.leave_until(0)

    @safely("evaluation")
    def is_beyond_evaluation(self) -> None:
        """The program does what is no part of evaluating, though its network is still as it was for that."""
        recorder = self.recorder
        if self.is_own_thread and self.evaluating and recorder is not None and len(recorder.stack) == 1:
            self._end_evaluation()

    def _begin_evaluation(self) -> bool:
        recorder = self.recorder
        if recorder is None or recorder.stack or not self._on:
            return False  # in the midst of something else, which it belongs to
        if recorder.is_cut:
            self._write(recorder)
        recorder.enter(EVALUATION)
        return True

    @safely("arrival")
    def reduces(self, arrival: Arrival) -> None:
        """A network was made that reduces its gradients in backward; ``arrival`` knows when they are ready."""
        self._arrivals.append(arrival)
        recorder = self.ready()
        if recorder is not None:
            self._attach(recorder)

    def _attach(self, recorder: Recorder) -> None:
        for arrival in self._arrivals:
            arrival.live = recorder.live
        recorder.arrival = self._arrived if self._arrivals else None

    # Gradients and steps

    @safely("backward", NOT_SEEN)
    def backward_begins(self) -> int:
        """The program asks for gradients: it trains."""
        if get_ident() != self._thread or self._in_backward:
            return NOT_SEEN
        recorder = self.recorder or self.ready()
        if recorder is None:
            return NOT_SEEN
        if self.evaluating:
            self._end_evaluation()
        epoch, samples = self._batches.learn()
        if epoch is not None and not self._epochs_by_words:
            recorder.epoch(epoch)
        if samples is not None:
            recorder.samples = (recorder.samples or 0) + samples
        recorder.passes = (recorder.passes or 0) + 1
        if not self._on:
            return NOT_SEEN
        if not self._saw_forward:
            recorder.credit(FORWARD)
        self._in_backward = True
        return self._enter(BACKWARD)

    @safely("backward")
    def backward_ends(self, depth: int, *, reduces: bool) -> None:
        """Gradients are there; without ``reduces`` each rank has its own, and nobody was waited for."""
        if depth < 0:
            return
        if self.recorder is not None:
            self.recorder.leave_until(depth)
        self._in_backward = False
        if not reduces:
            self._arrived()  # nobody asks for it at the end of the step

    @safely("optimizers")
    def makes_optimizer(self) -> None:
        """The program makes an optimizer."""
        self._optimizers += 1

    @safely("optimizers", NOT_SEEN)
    def optimizer_begins(self, number: int) -> int:
        """Optimizer ``number`` (its id) steps."""
        if get_ident() != self._thread:
            return NOT_SEEN
        recorder = self.recorder or self.ready()
        if recorder is not None and recorder.is_cut and number in self._stepped:
            self._write(recorder)
        return self._enter(OPTIMIZER)

    @safely("optimizers")
    def optimizer_ends(self, number: int, depth: int, *, skipped: bool = False) -> None:
        """Optimizer ``number`` has stepped; ``skipped``: a gradient was not finite, and it left the network alone."""
        recorder = self.recorder
        if recorder is None or get_ident() != self._thread:
            return
        if depth >= 0:
            recorder.leave_until(depth)
        self.steps_taken += 1
        if self.reducing:
            for told in self.reducing.values():  # a comm hook leaves its collectives to DDP, which waits out of sight
                recorder.collective(*told, None, None)
            self.reducing.clear()
        if self._by_words:
            return
        if skipped and "skipped" not in recorder.tags:
            recorder.tags.append("skipped")
        self._stepped.add(number)
        recorder.cut()
        if self._optimizers <= 1:
            self._write(recorder)

    def _write(self, recorder: Recorder) -> None:
        self._stepped.clear()
        self._saw_forward = False
        if self._on:
            recorder.write_step()
        else:
            recorder.pass_over()
        step = recorder.step_number
        if self._toggle_asked or step in (self._first, self._last):
            self._switch(recorder, on=not self._on if self._toggle_asked else step == self._first)
            self._toggle_asked = False
        for call in self.at_boundary:
            call(step)

    def _switch(self, recorder: Recorder, *, on: bool) -> None:
        if on == self._on:
            return
        self._on = on
        if on:
            recorder.begin_here()
        now = time.monotonic_ns()
        recorder.journal.event({"kind": "watching", "on": on, "step": recorder.step_number, "t_ns": now}, now)

    def _arrived(self) -> Optional[int]:
        """When the last gradient of any network was ready."""
        times = [moment for moment in [arrival() for arrival in self._arrivals] if moment is not None]
        return max(times) if times else None

    # Words of the program itself

    @safely("words")
    def step_by_word(self, samples: Optional[int]) -> None:
        """The program says itself where a step ends, and is believed from then on."""
        recorder = self.ready()
        if recorder is None:
            return
        first, self._by_words = not self._by_words, True
        if first and recorder.step_number:
            return  # what it speaks of was found by its optimizer a moment ago
        if samples is not None:
            recorder.samples = samples
        recorder.cut()
        self._write(recorder)

    @safely("words")
    def epoch_by_word(self, number: int, step: Optional[int]) -> None:
        """The program says itself which epoch begins."""
        recorder = self.ready()
        self._epochs_by_words = True
        if recorder is not None:
            recorder.epoch(number, step)

    @safely("recording")
    def finish(self) -> None:
        """The program ends: what was cut is a step."""
        if self.recorder is not None and self.recorder.is_cut:
            self.recorder.leave_until(0)
            self._write(self.recorder)
