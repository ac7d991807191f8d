"""Actions between two steps: switch recording on or off, and call the listeners that wait for a step."""

from __future__ import annotations

import time
from typing import Callable, List

from ....rundir.job_file import WatchOptions
from ...recording.recorder import Recorder

AtStep = Callable[[int], None]


class Boundary:
    """Whether steps are recorded (``on``), and the functions to call with the number of each step that begins."""

    def __init__(self, watch: WatchOptions) -> None:
        first, last = watch.steps or (0, None)
        self._turns = (first, last)  # the first step to record, and the first not to record any more
        self._calls: List[AtStep] = []
        self._toggle_requested = False
        self.on = self._turns[0] == 0
        self.is_awaited = not self.on or last is not None  # False for most programs: nothing to do between steps

    def add(self, call: AtStep) -> None:
        """Call ``call`` with the number of each step that begins."""
        self._calls.append(call)
        self.is_awaited = True

    def remove(self, call: AtStep) -> None:
        """Stop calling ``call``."""
        self._calls = [other for other in self._calls if other != call]  # not in place: it may be called by ``passed``
        self.is_awaited = bool(self._calls) or self._turns != (0, None)

    def toggle(self, *_: object) -> None:
        """Start or stop recording from the next step on; safe in a signal handler."""
        self._toggle_requested = self.is_awaited = True

    def passed(self, recorder: Recorder) -> None:
        """A step begins."""
        step = recorder.step_number
        if self._toggle_requested or step in self._turns:
            self._switch(recorder, on=not self.on if self._toggle_requested else step == self._turns[0])
            self._toggle_requested = False
            self.is_awaited = bool(self._calls) or self._turns != (0, None)
        for call in self._calls:
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
