"""Record phases of the thread that trains, once this process is a rank.

Part by part, and a part in which an error of ours occurs is left out from then on: what runs in every step has ``try``
written out, because a call by way of another function would cost as much again.
"""

from __future__ import annotations

from threading import get_ident
from typing import Optional, Set

from ...recording.arrival import Arrival, Arrivals
from ...recording.recorder import Recorder
from ..safety import give_up, safely
from ..session import Session
from .boundary import Boundary

NOT_SEEN = -1  # the depth of a phase that nobody records
EVERY_STEP = {
    "phases": ("enter", "leave"),
    "loaders": ("fetch_begins", "fetched"),
    "forward": ("forward_begins",),
    "backward": ("backward_begins", "backward_ends"),
    "optimizers": ("optimizer_begins", "optimizer_ends"),
}
"""Methods of a watcher that run in every step, by the part of observation that they are."""


class Phases:
    """What a ``Watcher`` has to do with the recorder of this rank, where there is one."""

    def __init__(self, session: Session) -> None:
        self.session = session
        self.recorder: Optional[Recorder] = None
        self.failed: Set[str] = set()
        self.boundary = Boundary(session.job.watch)
        self._recording: Optional[Recorder] = None  # the recorder, while it records
        self._thread = get_ident()
        self._in_backward = False
        self._arrivals = Arrivals()

    @safely("recording")
    def ready(self) -> Optional[Recorder]:
        """The recorder of this rank; asked for where a program trains, which makes this process a rank."""
        if self.recorder is None:
            self.recorder = self.session.begin()
            self._thread = get_ident()
            if self.recorder is not None:
                self._arrivals.serve(self.recorder)
                self.recorder.paused = not self.boundary.on
                self._recording = self.recorder if self.boundary.on else None
        return self.recorder

    @safely("arrival")
    def reduces(self, arrival: Arrival) -> None:
        """A network was made that reduces its gradients in backward; ``arrival`` knows when they are ready."""
        self._arrivals.add(arrival)
        recorder = self.ready()
        if recorder is not None:
            self._arrivals.serve(recorder)

    def enter(self, place: int) -> int:
        """A phase begins; the depth to give back to ``leave``."""
        try:
            recorder = self._recording
            if recorder is None or (get_ident() != self._thread and not self._in_backward):
                return NOT_SEEN
            return recorder.enter(place)
        except Exception as error:  # noqa: BLE001  here as below: whatever it is, it is not the program's
            return self._lose("phases", error)

    def leave(self, depth: int) -> None:
        """The phase that began at ``depth`` ends, and whatever was left open in it."""
        try:
            if depth >= 0 and self.recorder is not None:
                self.recorder.leave_until(depth)
        except Exception as error:  # noqa: BLE001
            self._lose("phases", error)

    def _lose(self, part: str, error: Exception) -> int:
        """A part of what runs in every step ends with an error of ours."""
        give_up(self, part, error, *EVERY_STEP[part], otherwise=NOT_SEEN)
        return NOT_SEEN

    @property
    def _trains(self) -> bool:
        """Whether it is known which thread trains: the first that asked for gradients, or let an optimizer step."""
        recorder = self.recorder
        return recorder is not None and bool(recorder.step_number or recorder.passes or recorder.stack)

    def _is_elsewhere(self) -> bool:
        """Whether this thread is another than the one that trains; if none did until now, this is the one."""
        if not self._trains:
            self._thread = get_ident()
        return get_ident() != self._thread

    @property
    def is_own_thread(self) -> bool:
        """Whether this is the thread that trains."""
        return get_ident() == self._thread
