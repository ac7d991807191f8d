"""Between two steps: what was asked for from the next one on is done."""

from __future__ import annotations

import time
from typing import Callable, List

from ....rundir.job_file import WatchOptions
from ...recording.recorder import Recorder

AtStep = Callable[[int], None]


class Boundary:
    """Whether steps are recorded (``on``), and who is told of each one that begins."""

    def __init__(self, watch: WatchOptions) -> None:
        first, last = watch.steps or (0, None)
        self._turns = (first, last)  # steps from which on it is recorded, and no more
        self._told: List[AtStep] = []
        self._toggle_asked = False
        self.on = self._turns[0] == 0
        self.is_awaited = not self.on or last is not None  # most steps begin without anybody who cares

    def tell(self, call: AtStep) -> None:
        """``call`` is given the number of each step that begins."""
        self._told.append(call)
        self.is_awaited = True

    def tell_no_more(self, call: AtStep) -> None:
        """``call`` has heard enough."""
        self._told = [other for other in self._told if other != call]  # not in place: it may be called by ``passed``
        self.is_awaited = bool(self._told) or self._turns != (0, None)

    def toggle(self, *_: object) -> None:
        """Record where we did not, and the other way round, from the next step on; fit to be called by a signal."""
        self._toggle_asked = self.is_awaited = True

    def passed(self, recorder: Recorder) -> None:
        """A step begins."""
        step = recorder.step_number
        if self._toggle_asked or step in self._turns:
            self._switch(recorder, on=not self.on if self._toggle_asked else step == self._turns[0])
            self._toggle_asked = False
        for call in self._told:
            call(step)

    def _switch(self, recorder: Recorder, *, on: bool) -> None:
        if on == self.on:
            return
        self.on = on
        recorder.paused = not on
        if on:
            recorder.begin_here()
        now = time.monotonic_ns()
        recorder.journal.event({"kind": "watching", "on": on, "step": recorder.step_number, "t_ns": now}, now)
