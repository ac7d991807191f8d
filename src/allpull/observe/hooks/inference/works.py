"""The collectives that the program called and did not wait for yet, each by the ``Work`` that torch returned for it.

One that nobody waits for in Python has a begin and no end: comm hooks of DDP pass a future on, for which DDP waits in
C++. Such a ``Work`` is freed at once, and the next one often gets its id: what is known of a call is kept until its
``Work`` is waited for or freed, whichever comes first.
"""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, Any, Dict, Optional, Tuple

from ..safety import safely

if TYPE_CHECKING:
    from .step_inference import StepInference

MOST_PENDING = 4096  # works that are kept alive without a wait; beyond that all are taken for never waited for


class Started(weakref.ref):  # type: ignore[type-arg]  # whatever torch returns
    """A reference to a ``Work``, with its id, and the kind, number, begin and end of the call of its collective."""

    __slots__ = ("begin", "end", "key", "kind", "number")

    key: int
    kind: int
    number: int
    begin: int
    end: int


class Works:
    """The pending collectives of this rank; ``reducing`` are those that were called within backward."""

    def __init__(self, inference: StepInference) -> None:
        self.session = inference.session
        self.failed = inference.failed
        self._inference = inference
        self._pending: Dict[int, Started] = {}
        self.reducing: Dict[int, Started] = {}

    def is_pending(self, work: Any) -> bool:
        """Whether ``work`` is of a collective that is recorded, and was not waited for."""
        return id(work) in self._pending or id(work) in self.reducing

    def starts(self, work: Any, kind: int, number: int, when: Tuple[int, int], *, in_backward: bool) -> None:
        """A collective was called, asynchronously; ``when``: begin and end of the call."""
        begin, end = when
        try:
            started = Started(work, self._freed)
        except TypeError:  # nothing will tell when it is freed
            self._inference.deferred.collective(kind, number, begin, None, None)
            return
        started.key, started.kind, started.number = id(work), kind, number
        started.begin, started.end = begin, end
        pending = self.reducing if in_backward else self._pending
        if len(pending) >= MOST_PENDING:
            self._forget(pending)
        pending[started.key] = started

    def waited(self, work: Any, begin: int, end: int) -> None:
        """The program waited for ``work`` from ``begin`` to ``end``.

        If it did so sooner after the call than the call took, the call blocked it, too: nothing was done meanwhile.
        """
        started = self._pending.pop(id(work), None) or self.reducing.pop(id(work), None)
        if started is not None:
            called = started.end - started.begin
            self._record(started, end - begin + (called if begin - started.end <= called else 0), end)

    def optimizer_stepped(self) -> None:
        """What was reduced within backward is done: the optimizer has used it."""
        self._forget(self.reducing)

    def forget(self) -> None:
        """Nothing more will be waited for."""
        self._forget(self.reducing)
        self._forget(self._pending)

    @safely("collectives")
    def _freed(self, started: Started) -> None:
        """Nobody can wait for it any more; called in whichever thread freed it."""
        for pending in (self._pending, self.reducing):
            if pending.get(started.key) is started:
                del pending[started.key]
                self._record(started, None, None)

    def _forget(self, pending: Dict[int, Started]) -> None:
        for key in list(pending):
            started = pending.pop(key, None)
            if started is not None:
                self._record(started, None, None)

    def _record(self, started: Started, blocked: Optional[int], end: Optional[int]) -> None:
        self._inference.deferred.collective(started.kind, started.number, started.begin, blocked, end)
