"""Wait on an absolute schedule, so that the next wait makes up for what one overshoots.

An accelerator works through its queue whether the host is in time or not. So the schedule runs on by itself: each
piece of work moves the deadline, a wait ends at the deadline, and a host that was held up catches up. Only what has
to wait for others, a collective, starts the schedule anew.
"""

from __future__ import annotations

import ctypes
import sys
import time
from collections.abc import Callable

GRAIN_S = 200e-6  # a shorter sleep overshoots by a good part of itself; it is slept with what follows
COARSE_S = 5e-3  # where nobody sees the moments between: each sleep costs the CPU some 30 µs
PR_SET_TIMERSLACK = 29


class Timeline:
    """The schedule of one accelerator. ``clock`` gives seconds, ``sleep`` waits for so many."""

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
        """Continue from now: the delay before was not this accelerator's."""
        self._due_s = self._clock()

    def work(self, seconds: float, grain_s: float = GRAIN_S) -> None:
        """Be busy for ``seconds``; up to ``grain_s`` of it are left for the next call."""
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
        """Be busy for ``seconds``, all of them now."""
        self._due_s += seconds
        self.settle()


def fine_timers() -> None:
    """Have Linux end the sleeps of this thread within a microsecond instead of 50; elsewhere, nothing."""
    if sys.platform.startswith("linux"):
        ctypes.CDLL(None, use_errno=True).prctl(PR_SET_TIMERSLACK, 1000, 0, 0, 0)
