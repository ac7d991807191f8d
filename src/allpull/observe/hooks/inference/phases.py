"""Record the phases of the training thread, once this process is a rank.

An internal error switches off the part of observation in which it occurs. Methods that run in every step have ``try``
written out, because a decorator would double their cost.
"""

from __future__ import annotations

import functools
from threading import get_ident
from typing import TYPE_CHECKING, Optional, Set

from ...recording.arrival import Arrival, Arrivals
from ...recording.recorder import Recorder
from ..safety import give_up, safely
from ..session import Session
from .boundary import Boundary

if TYPE_CHECKING:
    from .checkpoints import Checkpoints
    from .deferred import Deferred

NOT_SEEN = -1  # the depth of a phase that is not recorded
EVERY_STEP = {
    "phases": ("enter", "leave"),
    "loaders": ("fetch_begins", "fetched"),
    "forward": ("forward_begins",),
    "backward": ("backward_begins", "backward_ends"),
    "optimizers": ("optimizer_begins", "optimizer_ends"),
}
"""Methods of ``StepInference`` that run in every step, by their part of observation."""


class Phases:
    """Access of ``StepInference`` to the recorder of this rank, if there is one."""

    def __init__(self, session: Session) -> None:
        self.session = session
        self._recorder: Optional[Recorder] = None
        self.failed: Set[str] = set()
        self.boundary = Boundary(session.job.watch)
        self._recording: Optional[Recorder] = None  # the recorder, while it records
        self._thread = get_ident()
        self._in_backward = False
        self.arrivals = Arrivals(functools.partial(give_up, self, "arrival"))
        self.deferred: Deferred
        self.checkpoints: Checkpoints

    @property
    def recorder(self) -> Optional[Recorder]:
        """The recorder of this rank, which has recorded all calls so far."""
        if self.deferred.is_on:
            self.deferred.settle()
        return self._recorder

    @property
    def step_number(self) -> int:
        """The number of the step that runs, also where calls are only noted."""
        if not self.deferred.is_on and self._recorder is not None:
            return self._recorder.step_number
        return self.deferred.step

    @safely("recording")
    def ready(self) -> Optional[Recorder]:
        """The recorder of this rank; called where a program trains, which makes this process a rank."""
        recorder = self.recorder
        if recorder is None:
            recorder = self._recorder = self.session.begin()
            self._trains_here()
            if recorder is not None:
                self.arrivals.serve(recorder)
                recorder.paused = not self.boundary.on
                self._recording = recorder if self.boundary.on else None
        return recorder

    @safely("arrival")
    def reduces(self, arrival: Arrival) -> None:
        """A network was made that reduces its gradients in backward; ``arrival`` times when they are ready."""
        self.arrivals.add(arrival)
        self.ready()

    def enter(self, place: int) -> int:
        """A phase begins; returns the depth for ``leave``."""
        try:
            if self.deferred.is_on:
                self.deferred.settle()
            recorder = self._recording
            if recorder is None or (get_ident() != self._thread and not self._in_backward):
                return NOT_SEEN
            return recorder.enter(place)
        except Exception as error:  # noqa: BLE001  here as below: no error of ours may reach the program
            return self._lose("phases", error)

    def leave(self, depth: int) -> None:
        """The phase that began at ``depth`` ends, with all that was left open in it."""
        try:
            if depth >= 0 and self.recorder is not None:
                self.recorder.leave_until(depth)
        except Exception as error:  # noqa: BLE001
            self._lose("phases", error)

    def _lose(self, part: str, error: Exception) -> int:
        """Switch off ``part`` after an internal error."""
        give_up(self, part, error, *EVERY_STEP[part], otherwise=NOT_SEEN)
        return NOT_SEEN

    @property
    def _trains(self) -> bool:
        """Whether the training thread is known: the first that ran backward, or stepped an optimizer."""
        recorder = self.recorder
        return recorder is not None and bool(recorder.step_number or recorder.passes or recorder.stack)

    def _is_elsewhere(self) -> bool:
        """Whether this is not the training thread; if none is known yet, this thread becomes it."""
        if not self._trains:
            self._trains_here()
        return get_ident() != self._thread

    def _trains_here(self) -> None:
        self._thread = get_ident()
        self.checkpoints.trains_here()

    @property
    def is_own_thread(self) -> bool:
        """Whether this is the training thread."""
        return get_ident() == self._thread
