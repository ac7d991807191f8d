"""One phase as a context manager."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .recorder import Recorder


class Span:
    """A phase of a recorder; holds no state of its own, so one object serves every step."""

    __slots__ = ("_place", "_recorder")

    def __init__(self, recorder: Recorder, place: int) -> None:
        self._recorder = recorder
        self._place = place

    def __enter__(self) -> None:
        self._recorder.enter(self._place)

    def __exit__(self, *_: object) -> None:
        self._recorder.leave()
