"""Wait until all forked children have ended; the first failure, or a signal, ends the others."""

from __future__ import annotations

import os
import select
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from types import FrameType

NEVER_S = 3600.0  # how long to sleep when nothing is due; the bell wakes us


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """A child that failed before the others were ended; ``exit_code`` is negative for a signal."""

    name: int
    pid: int
    exit_code: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """How all children ended; ``stopped_by`` is the signal that requested their end, unless a child failed first."""

    failures: tuple[Failure, ...] = ()
    stopped_by: int | None = None

    @property
    def code(self) -> int:
        """The exit code that a shell would report."""
        if self.stopped_by is not None:
            return 128 + self.stopped_by
        return shell_code([failure.exit_code for failure in self.failures])


def shell_code(codes: Sequence[int]) -> int:
    """The first of ``codes`` that is not from our own SIGTERM, else the first; 128 + n for signal n; 0 if none.

    >>> shell_code([]), shell_code([-9]), shell_code([-15, 3])
    (0, 137, 3)
    """
    own = [code for code in codes if code != -signal.SIGTERM] or list(codes)
    if not own:
        return 0
    return own[0] if own[0] > 0 else 128 - own[0]


class Bell:
    """Wakes this process when a child ends, or when a signal requests that it end its children.

    SIGTERM and SIGHUP request an orderly end; SIGUSR1 reports that a child of one of our children failed, so that all
    others must end.
    """

    SIGNALS = (signal.SIGCHLD, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1)

    def __init__(self) -> None:
        self._read_end, self._write_end = os.pipe()
        for end in (self._read_end, self._write_end):
            os.set_blocking(end, False)
        signal.set_wakeup_fd(self._write_end, warn_on_full_buffer=False)
        for number in self.SIGNALS:
            signal.signal(number, _on_signal)

    def wait(self, timeout_s: float, *descriptors: int) -> set[int]:
        """Wait for a signal, until one of ``descriptors`` is ready, or ``timeout_s``; returns the signals received."""
        select.select([self._read_end, *descriptors], [], [], max(0.0, timeout_s))
        with suppress(BlockingIOError):
            return set(os.read(self._read_end, 4096))
        return set()

    def leave_to_parent(self) -> None:
        """Restore the default signal handling in a forked child."""
        signal.set_wakeup_fd(-1)
        for number in self.SIGNALS:
            signal.signal(number, signal.SIG_DFL)
        os.close(self._read_end)
        os.close(self._write_end)


def _on_signal(_: int, __: FrameType | None) -> None:
    """Nothing: the wake-up descriptor has the signal already."""


class Kills:
    """Planned kills of children: ``planned`` are pairs of seconds after the reference moment and a process id.

    ``zero`` is a descriptor that becomes readable at the reference moment; ``struck`` is called with the number of
    each killed child.
    """

    def __init__(self, planned: Sequence[tuple[float, int]], zero: int, struck: Callable[[int], None]) -> None:
        self._planned = sorted(planned)
        self._zero = zero
        self._zero_s: float | None = None
        self.struck = struck

    @property
    def descriptors(self) -> tuple[int, ...]:
        """What to wait for besides signals: ``zero``, if kills are planned and it has not closed."""
        return (self._zero,) if self._planned and self._zero_s is None else ()

    @property
    def due_s(self) -> float:
        """When the next kill is due, on the monotonic clock; infinite while unknown."""
        if self._zero_s is None and self.descriptors and select.select(self.descriptors, [], [], 0)[0]:
            self._zero_s = time.monotonic()
        return float("inf") if self._zero_s is None or not self._planned else self._zero_s + self._planned[0][0]

    def take(self) -> int:
        """The process id of the next child to kill."""
        return self._planned.pop(0)[1]


class _Watch:
    """The state of the children that ``attend`` waits for."""

    def __init__(self, children: Mapping[int, int]) -> None:
        self.running = dict(children)
        self.failures: list[Failure] = []
        self.ending = False

    def reap(self) -> bool:
        """Record the children that have ended; returns whether one of them failed on its own."""
        failed = False
        for pid in list(self.running):
            reaped, status = os.waitpid(pid, os.WNOHANG)
            if reaped == 0:
                continue
            name, code = self.running.pop(pid), os.waitstatus_to_exitcode(status)
            if code != 0 and not self.ending:
                self.failures.append(Failure(name=name, pid=pid, exit_code=code))
                failed = True
        return failed

    def send(self, number: int) -> None:
        """Signal all running children; only this process reaps them, so their ids are still valid."""
        for pid in self.running:
            os.kill(pid, number)


def attend(
    children: Mapping[int, int],
    bell: Bell,
    *,
    grace_s: float,
    aftermath_s: float,
    kills: Kills | None = None,
    on_failure: Callable[[], None] = lambda: None,
) -> Ended:
    """Wait until every child (process id → number) has ended.

    At the first failure it calls ``on_failure``. The others get SIGTERM ``aftermath_s`` after a failure or SIGUSR1, or
    at once after SIGTERM or SIGHUP, and SIGKILL ``grace_s`` later. It carries out ``kills`` when they are due.
    """
    watch = _Watch(children)
    kills = kills or Kills((), -1, lambda _: None)
    stopped_by: int | None = None
    end_at, kill_at = float("inf"), float("inf")
    while watch.running:
        due = min(end_at, kill_at, kills.due_s)
        signals = bell.wait(min(due - time.monotonic(), NEVER_S), *kills.descriptors)
        now = time.monotonic()
        if watch.reap() and end_at == float("inf") and not watch.ending:
            on_failure()
            end_at = now + aftermath_s
        if signal.SIGUSR1 in signals and not watch.ending:
            end_at = min(end_at, now + aftermath_s)
        stop_signals = signals & {signal.SIGTERM, signal.SIGHUP}
        if stop_signals and not watch.ending:
            stopped_by, end_at = min(stop_signals), now
        while kills.due_s <= now:
            pid = kills.take()
            if pid in watch.running:
                os.kill(pid, signal.SIGKILL)
                kills.struck(watch.running[pid])
        if now >= end_at and not watch.ending:
            watch.ending, kill_at, end_at = True, now + grace_s, float("inf")
            watch.send(signal.SIGTERM)
        if now >= kill_at:
            kill_at = float("inf")
            watch.send(signal.SIGKILL)
    return Ended(failures=tuple(watch.failures), stopped_by=None if watch.failures else stopped_by)
