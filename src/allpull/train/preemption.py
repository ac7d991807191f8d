"""Stop at a warning: all ranks after the same step, so that they can write a checkpoint and no step is lost.

A queue warns before it takes the hosts of a job away: SIGUSR1 ahead of the time limit, SIGTERM where it preempts. The
latter is a warning only where that was asked for: launchers also end ranks by it that wait for one that has failed,
and cannot make another step, and those of a job that the user breaks off. Ranks
hear of it within different steps, or one of them alone does. None may leave by itself, because the others would wait
for it in their next collective.

**How they agree.** Between two steps a rank that was warned, or that finds in the store of the ranks that another was,
counts itself there. The one that completes the count has done n steps, and names n + 1 as the step to stop after. All
see that in time: a step ends with an all-reduce that waits for every rank, so nobody ends step n + 1 before that rank
began it, and for the same reason nobody was counted later than after step n. Beyond that nobody waits for anybody, so
nothing can hang: a training that ends before the count is complete has simply ended.

**What it costs.** While nobody is warned, one question to the store a second from each rank, and no collective, which
would make ranks wait for each other and stand in their records. A warning is answered after the step that is under way
when it is known everywhere, and one more.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Mapping
from types import FrameType

from allpull.train.parallel.ranks import Ranks

LOOK_EVERY_S = 1.0  # a round trip is some 0.1 ms, so a look costs 1 part in 10,000; warnings come a minute ahead
SAVE_ON_TERM = "ALLPULL_SAVE_ON_TERM"  # set by batch scripts; elsewhere train.save_on_term is asked
EXIT_CODE = 128 + signal.SIGUSR1  # of a rank that stopped at a warning, as of a program that the signal ends


class Warned:
    """Whether a warning has reached this process."""

    def __init__(self) -> None:
        self._told = False

    def __call__(self) -> bool:
        """True from the first warning on."""
        return self._told

    def hear(self, _number: int, _frame: FrameType | None) -> None:
        """Take note: what a signal handler may do."""
        self._told = True


def listen(environ: Mapping[str, str]) -> Warned:
    """Take SIGUSR1 for a warning from now on, and SIGTERM where a batch script says so; in the main thread only.

    NCCL once caught SIGUSR1 itself, in 2022 (nccl issue 704); the versions that torch 2.4 and later bring do not.
    """
    warned = Warned()
    heed(signal.SIGUSR1, warned)
    if environ.get(SAVE_ON_TERM):
        heed(signal.SIGTERM, warned)
    return warned


def heed(number: signal.Signals, warned: Warned) -> None:
    """Take signal ``number`` for a warning from now on; in the main thread only."""
    signal.signal(number, warned.hear)
    signal.siginterrupt(number, False)  # libraries need not know: their system calls go on


class Stop:
    """This rank's part in the agreement on where to stop; ``clock`` gives seconds."""

    def __init__(self, ranks: Ranks, warned: Callable[[], bool], clock: Callable[[], float] = time.monotonic) -> None:
        self._ranks = ranks
        self._warned = warned
        self._clock = clock
        self._store = ranks.store() if ranks.ranks > 1 else None
        self._counted = False
        self._look_at = clock() + LOOK_EVERY_S

    def after(self, step: int) -> bool:
        """Whether all ranks stop now, with ``step`` steps done. To be asked between any two steps, on every rank.

        Raises:
            RuntimeError: the store is gone, and with it the host or agent of rank 0.
        """
        if self._store is None:
            return self._warned()
        if not self._counted and not self._heard():
            return False
        self._ranks.settle()  # else a GPU's host, which runs ahead, would be counted before its step has ended
        if not self._counted:
            self._counted = True
            self._store.set("warned", "yes")
            if self._store.add("counted", 1) == self._ranks.ranks:
                self._store.set("last", str(step + 1))
        return bool(self._store.check(["last"])) and step >= int(self._store.get("last"))

    def _heard(self) -> bool:
        """Whether this rank was warned, or, by a look now and then, another one."""
        if self._warned():
            return True
        now = self._clock()
        if self._store is None or now < self._look_at:
            return False
        self._look_at = now + LOOK_EVERY_S
        return bool(self._store.check(["warned"]))


def tell_agent(environ: Mapping[str, str]) -> None:
    """Let the elastic agent that started us end the job: one that restarts ranks would take our leaving for a failure.

    Only one rank of a host; to be called when all is saved and none has left.
    """
    restarts = environ.get("TORCHELASTIC_MAX_RESTARTS", "0") != "0"
    if restarts and environ.get("LOCAL_RANK") == "0":
        os.kill(os.getppid(), signal.SIGUSR1)
