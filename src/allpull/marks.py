"""Marks that a training loop may emit: phase, step, epoch, metric, remark. Standard library only.

Without a listener, each costs a fraction of a microsecond and does nothing. An observer (``allpull.observe``)
registers with ``listen(recorder)``; the trainer, or any user's loop, emits marks without depending on it.
"""

from __future__ import annotations

from types import TracebackType
from typing import ContextManager, Optional, Protocol, Type


class Listener(Protocol):
    """The events that an observer receives."""

    def phase(self, name: str) -> ContextManager[None]:
        """A span of the current step; ``name`` is a phase of DESIGN §4 or the user's own label."""
        ...

    def step(self, samples: Optional[int]) -> None:
        """One optimizer step has ended, on ``samples`` samples of this rank (None: unknown)."""
        ...

    def epoch(self, number: int, step: Optional[int]) -> None:
        """Epoch ``number`` (from 0) begins; ``step`` is the number of its next step, where it is not the next one."""
        ...

    def metric(self, name: str, value: Optional[float], step: Optional[int]) -> None:
        """A quantity of the training itself, such as ``test_top1``, as of ``step`` (None: now)."""
        ...

    def remark(self, text: str) -> None:
        """A note for readers of the run, such as a request that could not be met."""
        ...


class _Silence:
    """The phase of an unobserved loop."""

    __slots__ = ()

    def __enter__(self) -> None:
        return None

    def __exit__(
        self,
        kind: Optional[Type[BaseException]],
        error: Optional[BaseException],
        trace: Optional[TracebackType],
    ) -> None:
        return None


_SILENCE = _Silence()
_listener: Optional[Listener] = None


def listen(listener: Optional[Listener]) -> Optional[Listener]:
    """Send marks to ``listener`` from now on (None: discard them); returns the previous listener."""
    global _listener  # the one switch of this module: a rank has one observer
    previous, _listener = _listener, listener
    return previous


def phase(name: str) -> ContextManager[None]:
    """Mark what the loop does now: ``with phase("forward"): …``.

    Phases that allpull knows are those of the glossary (input, copy, forward, backward, optimizer, evaluation,
    checkpoint); any other name is recorded too and counted as host work.
    """
    if _listener is None:
        return _SILENCE
    return _listener.phase(name)


def step(samples: Optional[int] = None) -> None:
    """Mark the end of one optimizer step, on ``samples`` samples of this rank."""
    if _listener is not None:
        _listener.step(samples)


def epoch(number: int, step: Optional[int] = None) -> None:
    """Mark the begin of epoch ``number`` (from 0); a resumed training also passes the ``step`` at which it resumes."""
    if _listener is not None:
        _listener.epoch(number, step)


def metric(name: str, value: Optional[float], step: Optional[int] = None) -> None:
    """Record a quantity of the training, such as ``metric("test_top1", 0.97)``; None means not measured.

    ``step`` is the step that it belongs to, if that is not the current one.
    """
    if _listener is not None:
        _listener.metric(name, value, step)


def remark(text: str) -> None:
    """Record a note for readers of the run, such as a request that could not be met."""
    if _listener is not None:
        _listener.remark(text)
