"""Words that a training loop may say: phase, step, epoch, metric, remark. Standard library only.

Nobody listening, each costs a fraction of a microsecond and does nothing. An observer (``allpull.observe``)
listens by ``listen(recorder)``; the trainer, and any loop of the user's, speaks without knowing who does.
"""

from __future__ import annotations

from types import TracebackType
from typing import ContextManager, Optional, Protocol, Type


class Listener(Protocol):
    """What an observer offers to be told."""

    def phase(self, name: str) -> ContextManager[None]:
        """A span of the current step; ``name`` is a phase of DESIGN §4 or a word of the user's."""
        ...

    def step(self, samples: Optional[int]) -> None:
        """One optimizer step has ended, on ``samples`` samples of this rank (None: not known)."""
        ...

    def epoch(self, number: int, step: Optional[int]) -> None:
        """Epoch ``number`` (from 0) begins; ``step`` is the number of its next step, where it is not the next one."""
        ...

    def metric(self, name: str, value: Optional[float], step: Optional[int]) -> None:
        """A quantity of the training itself, such as ``test_top1``, as of ``step`` (None: of now)."""
        ...

    def remark(self, text: str) -> None:
        """Something that whoever reads the run should know, such as what was asked for and is not so."""
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
    """Send what loops say to ``listener`` from now on (None: to nobody); returns the one before."""
    global _listener  # the one switch of this module: a rank has one observer
    previous, _listener = _listener, listener
    return previous


def phase(name: str) -> ContextManager[None]:
    """Say what the loop does now: ``with phase("forward"): …``.

    Phases that allpull knows are those of the glossary (input, copy, forward, backward, optimizer, evaluation,
    checkpoint); any other name is kept beside them and counted as host work.
    """
    if _listener is None:
        return _SILENCE
    return _listener.phase(name)


def step(samples: Optional[int] = None) -> None:
    """Say that one optimizer step has ended, on ``samples`` samples of this rank."""
    if _listener is not None:
        _listener.step(samples)


def epoch(number: int, step: Optional[int] = None) -> None:
    """Say that epoch ``number`` (from 0) begins; a resumed training also says at which ``step`` it goes on."""
    if _listener is not None:
        _listener.epoch(number, step)


def metric(name: str, value: Optional[float], step: Optional[int] = None) -> None:
    """Say a quantity of the training, such as ``metric("test_top1", 0.97)``; None means not measured.

    ``step`` is the step that it belongs to, where that is not the one now running.
    """
    if _listener is not None:
        _listener.metric(name, value, step)


def remark(text: str) -> None:
    """Say what whoever reads the run should know, such as what was asked for and is not so."""
    if _listener is not None:
        _listener.remark(text)
