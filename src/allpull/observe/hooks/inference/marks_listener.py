"""Listen to ``allpull.marks`` where the program says itself what it does."""

from __future__ import annotations

from types import ModuleType
from typing import Any, ContextManager, Dict, Optional

from ...recording.step_line import KNOWN
from ..safety import safely
from .phases import NOT_SEEN
from .step_inference import Watcher


class Words:
    """The listener of ``allpull.marks`` in an observed program."""

    def __init__(self, watcher: Watcher) -> None:
        self.session = watcher.session
        self.failed = watcher.failed
        self._watcher = watcher
        self._places: Dict[str, int] = {name: place for place, name in enumerate(KNOWN)}

    def phase(self, name: str) -> ContextManager[None]:
        """A span of the current step."""
        return _Phase(self._watcher, name, self._places)

    @safely("words")
    def step(self, samples: Optional[int]) -> None:
        """A step has ended; the program is believed from then on."""
        watcher = self._watcher
        recorder = watcher.ready()
        if recorder is None:
            return
        first, watcher.by_words = not watcher.by_words, True
        if first and recorder.step_number:
            return  # what it speaks of was found by its optimizer a moment ago
        if samples is not None:
            recorder.samples = samples
        recorder.cut()
        watcher.end_step(recorder)

    @safely("words")
    def epoch(self, number: int, step: Optional[int]) -> None:
        """An epoch begins."""
        recorder = self._watcher.ready()
        self._watcher.epochs_by_words = True
        if recorder is not None:
            recorder.epoch(number, step)

    def metric(self, name: str, value: Optional[float], step: Optional[int]) -> None:
        """A quantity of the training."""
        recorder = self._watcher.ready()
        if recorder is not None:
            recorder.metric(name, value, step)

    def remark(self, text: str) -> None:
        """Something to know of the run."""
        recorder = self._watcher.ready()
        if recorder is not None:
            recorder.remark(text)


class _Phase:
    """One phase that the program names; it may be entered again while it is open."""

    __slots__ = ("_depths", "_name", "_places", "_watcher")

    def __init__(self, watcher: Watcher, name: str, places: Dict[str, int]) -> None:
        self._watcher = watcher
        self._name = name
        self._places = places
        self._depths: "list[int]" = []

    def __enter__(self) -> None:
        recorder = self._watcher.ready()
        place = self._places.get(self._name)
        if place is None and recorder is not None:
            place = self._places[self._name] = recorder.place_of(self._name)
        self._depths.append(NOT_SEEN if place is None else self._watcher.enter(place))

    def __exit__(self, *_: object) -> None:
        self._watcher.leave(self._depths.pop())


def listen(watcher: Watcher, marks: ModuleType) -> None:
    """Hear what the program says through its ``allpull.marks``."""
    speaker: Any = marks
    speaker.listen(Words(watcher))
