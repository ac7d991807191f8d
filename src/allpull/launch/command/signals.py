"""Pass signals that we get on to a command that we run: each exactly once, also those of the terminal's keys.

The command is in our process group, so Ctrl-C reaches it directly; a signal sent to our process id does not. The kernel
says which is which (``si_code``; sudo distinguishes them in the same way).
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
ENDING = frozenset({signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT})  # with these the user asks to end
SI_KERNEL = 0x80  # asm-generic/siginfo.h: sent by the kernel, as for the keys of a terminal


class SignalRelay:
    """Blocks signals once created, and passes them on in ``pass_on``; ``close`` restores the previous handling.

    Signals that were ignored at the start (``nohup``) stay ignored, here and in the command.
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
        """Call in the forked child before it executes the command: restores the original signal handling."""
        for number in self._ignored:
            signal.signal(number, signal.SIG_IGN)
        signal.pthread_sigmask(signal.SIG_SETMASK, self._mask)

    def pass_on(self, send: Callable[[int], None]) -> None:
        """Call ``send`` for each signal since the last call, except those that reached the command directly."""
        for number, from_terminal in self._received():
            if number in self._ignored:
                continue
            if number in ENDING:
                self.ended_by = number
            if not from_terminal:
                send(number)

    def close(self) -> None:
        """Restore the previous signal handling."""
        while self._received():
            pass  # too late to pass on, and it must not end us now
        if hasattr(signal, "sigtimedwait"):
            signal.pthread_sigmask(signal.SIG_SETMASK, self._mask)
        for number, handler in self._handlers.items():
            signal.signal(number, handler)  # type: ignore[arg-type]  # what ``signal.signal`` gave us

    def _received(self) -> list[tuple[int, bool]]:
        """Pending signals: the number, and whether the terminal sent it to the whole process group."""
        if sys.platform == "darwin" or not hasattr(signal, "sigtimedwait"):
            kept, self._waiting = self._waiting, []
            return kept
        received = []
        while (info := signal.sigtimedwait(RELAYED, 0)) is not None:
            received.append((info.si_signo, info.si_code == SI_KERNEL))
        return received

    def _keep(self, number: int, _: object) -> None:
        """Without ``si_code``: assume that a key was pressed if our stdin is a terminal."""
        self._waiting.append((number, number in {signal.SIGINT, signal.SIGQUIT} and os.isatty(0)))


def ignored_now() -> frozenset[int]:
    """Signals of ``RELAYED`` that this process ignores; call before any handler is installed."""
    return frozenset(number for number in RELAYED if signal.getsignal(number) == signal.SIG_IGN)
