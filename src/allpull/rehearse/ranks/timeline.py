"""Wait on an absolute schedule, so that each wait compensates for the overshoot of the one before.

An accelerator works through its queue whether or not the host is on time. So the schedule advances independently: each
piece of work moves the deadline, a wait ends at the deadline, and a delayed host catches up. Only an operation that
waits for other ranks, a collective, restarts the schedule.
"""

from __future__ import annotations

import ctypes
import sys
import time
from collections.abc import Callable

GRAIN_S = 200e-6  # a shorter sleep overshoots by a large part of its length; it is added to the next one
COARSE_S = 5e-3  # where no intermediate moments are observable: each sleep costs about 30 µs of CPU
PR_SET_TIMERSLACK = 29


class Timeline:
    """The schedule of one accelerator. ``clock`` returns seconds, ``sleep`` takes seconds."""

    def __init__(
        self, *, clock: Callable[[], float] = time.monotonic, sleep: Callable[[float], None] = time.sleep
    ) -> None:
        self._clock = clock
        self._sleep = sleep
        self._due_s = clock()

    def now_s(self) -> float:
        """Seconds of the clock."""
        return self._clock()

    def restart(self) -> None:
        """Restart the schedule now: this accelerator did not cause the delay before."""
        self._due_s = self._clock()

    def work(self, seconds: float, grain_s: float = GRAIN_S) -> None:
        """Be busy for ``seconds``; up to ``grain_s`` of it are deferred to the next call."""
        self._due_s += seconds
        left_s = self._due_s - self._clock()
        if left_s >= grain_s:
            self._sleep(left_s)

    def settle(self) -> None:
        """Be busy until all work so far is done."""
        left_s = self._due_s - self._clock()
        if left_s > 0:
            self._sleep(left_s)

    def spend(self, seconds: float) -> None:
        """Be busy for all of ``seconds`` now."""
        self._due_s += seconds
        self.settle()


def fine_timers() -> None:
    """Have Linux end the sleeps of this thread within a microsecond instead of 50; no effect elsewhere."""
    if sys.platform.startswith("linux"):
        ctypes.CDLL(None, use_errno=True).prctl(PR_SET_TIMERSLACK, 1000, 0, 0, 0)
