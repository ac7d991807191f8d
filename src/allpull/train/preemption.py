"""Stop after a warning: all ranks stop after the same step and write a checkpoint, so that no step is lost.

A queue warns before it takes the hosts of a job away: SIGUSR1 ahead of the time limit, SIGTERM on preemption. SIGTERM
is a warning only on request: launchers also use it to end ranks that wait for a failed one and cannot make another
step, and the ranks of a job that the user cancels. The warning reaches ranks within different steps, or only one of
them. No rank may leave alone, because the others would wait for it in their next collective.

**How they agree.** Between two steps, a rank that was warned, or that reads in the ranks' store that another was,
increments a counter there. The rank that completes the count has done n steps, and sets n + 1 as the step to stop
after. All ranks see it in time: a step ends with an all-reduce that waits for every rank, so no rank ends step n + 1
before that rank began it, and for the same reason no rank was counted later than after step n. Apart from that no rank
waits for another, so nothing can hang: a training that ends before the count is complete has simply ended.

**What it costs.** Without a warning, one query to the store per second and rank, and no collective, which would make
ranks wait for each other and appear in their records. Ranks stop one step after the step in which the last of them
learns of the warning.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Mapping
from types import FrameType

from allpull.train.parallel.ranks import Ranks

POLL_EVERY_S = 1.0  # a round trip takes some 0.1 ms: 1 part in 10,000; warnings come a minute ahead
SAVE_ON_TERM = "ALLPULL_SAVE_ON_TERM"  # set by batch scripts; elsewhere train.save_on_term decides
EXIT_CODE = 128 + signal.SIGUSR1  # of a rank that stopped after a warning, as if the signal had ended it


class WarningFlag:
    """Whether a warning has reached this process."""

    def __init__(self) -> None:
        self._received = False

    def __call__(self) -> bool:
        """True from the first warning on."""
        return self._received

    def handle(self, _number: int, _frame: FrameType | None) -> None:
        """Set the flag, which is all that a signal handler may do."""
        self._received = True


def listen(environ: Mapping[str, str]) -> WarningFlag:
    """Treat SIGUSR1 as a warning from now on, and SIGTERM if the batch script says so; in the main thread only.

    NCCL once caught SIGUSR1 itself, in 2022 (nccl issue 704); the versions that torch 2.4 and later bring do not.
    """
    warned = WarningFlag()
    treat_as_warning(signal.SIGUSR1, warned)
    if environ.get(SAVE_ON_TERM):
        treat_as_warning(signal.SIGTERM, warned)
    return warned


def treat_as_warning(number: signal.Signals, warned: WarningFlag) -> None:
    """Treat signal ``number`` as a warning from now on; in the main thread only."""
    signal.signal(number, warned.handle)
    signal.siginterrupt(number, False)  # interrupted system calls of libraries are restarted


class StopAgreement:
    """This rank's part in the agreement on the last step; ``clock`` returns seconds."""

    def __init__(self, ranks: Ranks, warned: Callable[[], bool], clock: Callable[[], float] = time.monotonic) -> None:
        self._ranks = ranks
        self._warned = warned
        self._clock = clock
        self._store = ranks.store() if ranks.ranks > 1 else None
        self._counted = False
        self._next_poll_s = clock() + POLL_EVERY_S

    def after(self, step: int) -> bool:
        """Whether all ranks stop now, with ``step`` steps done; call it between any two steps on every rank.

        Raises:
            RuntimeError: the store, and so the host or agent of rank 0, is gone.
        """
        if self._store is None:
            return self._warned()
        if not self._counted and not self._warned_anywhere():
            return False
        self._ranks.synchronize()  # otherwise a host ahead of its GPU would be counted too early
        if not self._counted:
            self._counted = True
            self._store.set("warned", "yes")
            if self._store.add("counted", 1) == self._ranks.ranks:
                self._store.set("last", str(step + 1))
        return bool(self._store.check(["last"])) and step >= int(self._store.get("last"))

    def _warned_anywhere(self) -> bool:
        """Whether this rank was warned or, polled once per second, another one."""
        if self._warned():
            return True
        now = self._clock()
        if self._store is None or now < self._next_poll_s:
            return False
        self._next_poll_s = now + POLL_EVERY_S
        return bool(self._store.check(["warned"]))


def notify_agent(environ: Mapping[str, str]) -> None:
    """Ask the elastic agent to end the job: an agent that restarts ranks would take our exit for a failure.

    Only local rank 0 does it; call it when the checkpoint is saved and before any rank leaves.
    """
    restarts = environ.get("TORCHELASTIC_MAX_RESTARTS", "0") != "0"
    if restarts and environ.get("LOCAL_RANK") == "0":
        os.kill(os.getppid(), signal.SIGUSR1)
