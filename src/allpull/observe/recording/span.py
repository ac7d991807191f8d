"""A phase of a recorder as a context manager, for loops that mark their phases."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .recorder import Recorder


class Span:
    """A phase of a recorder as a context manager; it is stateless, so one object serves every step."""

    __slots__ = ("_place", "_recorder")

    def __init__(self, recorder: Recorder, place: int) -> None:
        self._recorder = recorder
        self._place = place

    def __enter__(self) -> None:
        self._recorder.enter(self._place)

    def __exit__(self, *_: object) -> None:
        self._recorder.leave()
