"""Pass the signals that we get on to a command that we run: each once, also those of the terminal's keys.

The command is of our process group, so Ctrl-C reaches it without us; a signal that somebody sends to us does not. The
kernel says which was which (``si_code``; sudo tells them apart in the same way).
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable

RELAYED = tuple(
    getattr(signal, name)
    for name in ("SIGINT", "SIGTERM", "SIGHUP", "SIGQUIT", "SIGUSR1", "SIGUSR2")
    if hasattr(signal, name)
)
ENDING = frozenset({signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT})  # with these the user says: end
SI_KERNEL = 0x80  # asm-generic/siginfo.h: sent by the kernel, as for the keys of a terminal


class SignalRelay:
    """Holds signals back from the moment it is made, and hands them on when asked; ``close`` undoes that.

    Those that were ignored when we began (``nohup``) stay ignored, here and in the command.
    """

    def __init__(self, ignored: frozenset[int]) -> None:
        self.ended_by: int | None = None
        self._ignored = ignored
        self._waiting: list[tuple[int, bool]] = []
        self._handlers: dict[int, object] = {}
        if hasattr(signal, "sigtimedwait"):
            self._mask = signal.pthread_sigmask(signal.SIG_BLOCK, RELAYED)
        else:
            self._handlers = {number: signal.signal(number, self._keep) for number in RELAYED}
            self._mask = set()

    def in_command(self) -> None:
        """To be called in the forked child, before it becomes the command: signals are as we found them."""
        for number in self._ignored:
            signal.signal(number, signal.SIG_IGN)
        signal.pthread_sigmask(signal.SIG_SETMASK, self._mask)

    def pass_on(self, send: Callable[[int], None]) -> None:
        """Hand what has come since the call before to ``send``, except what reached the command by itself."""
        for number, is_everybodys in self._come():
            if number in self._ignored:
                continue
            if number in ENDING:
                self.ended_by = number
            if not is_everybodys:
                send(number)

    def close(self) -> None:
        """Signals do again what they did before."""
        while self._come():
            pass  # it came too late to be of use, and must not end us now
        if hasattr(signal, "sigtimedwait"):
            signal.pthread_sigmask(signal.SIG_SETMASK, self._mask)
        for number, handler in self._handlers.items():
            signal.signal(number, handler)  # type: ignore[arg-type]  # what ``signal.signal`` gave us

    def _come(self) -> list[tuple[int, bool]]:
        """Signals that have come: the number, and whether the terminal sent it to everybody."""
        if sys.platform == "darwin" or not hasattr(signal, "sigtimedwait"):
            waiting, self._waiting = self._waiting, []
            return waiting
        found = []
        while (info := signal.sigtimedwait(RELAYED, 0)) is not None:
            found.append((info.si_signo, info.si_code == SI_KERNEL))
        return found

    def _keep(self, number: int, _: object) -> None:
        """Where the kernel does not say who sent it: keys are taken to be pressed wherever we are at a terminal."""
        self._waiting.append((number, number in {signal.SIGINT, signal.SIGQUIT} and os.isatty(0)))


def ignored_now() -> frozenset[int]:
    """Signals of ``RELAYED`` that this process ignores; to be asked before anybody handles them."""
    return frozenset(number for number in RELAYED if signal.getsignal(number) == signal.SIG_IGN)
