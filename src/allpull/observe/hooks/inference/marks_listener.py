"""Listen to ``allpull.marks`` in a program that marks its phases, steps and epochs itself."""

from __future__ import annotations

from types import ModuleType
from typing import Any, ContextManager, Dict, Optional

from ...recording.step_line import KNOWN
from ..safety import safely
from .phases import NOT_SEEN
from .step_inference import StepInference


class MarksListener:
    """The listener of ``allpull.marks`` in an observed program."""

    def __init__(self, inference: StepInference) -> None:
        self.session = inference.session
        self.failed = inference.failed
        self._inference = inference
        self._places: Dict[str, int] = {name: place for place, name in enumerate(KNOWN)}

    def phase(self, name: str) -> ContextManager[None]:
        """A span of the current step."""
        return _Phase(self._inference, name, self._places)

    @safely("words")
    def step(self, samples: Optional[int]) -> None:
        """A step has ended; from now on only marks end steps."""
        inference = self._inference
        recorder = inference.ready()
        if recorder is None:
            return
        first, inference.steps_by_marks = not inference.steps_by_marks, True
        if first and recorder.step_number:
            return  # this step has just been inferred from the optimizer
        if samples is not None:
            recorder.samples = samples
        recorder.cut()
        inference.end_step(recorder)

    @safely("words")
    def epoch(self, number: int, step: Optional[int]) -> None:
        """An epoch begins."""
        recorder = self._inference.ready()
        self._inference.epochs_by_marks = True
        if recorder is not None:
            recorder.epoch(number, step)

    def metric(self, name: str, value: Optional[float], step: Optional[int]) -> None:
        """A metric of the training."""
        recorder = self._inference.ready()
        if recorder is not None:
            recorder.metric(name, value, self._inference.step_number if step is None else step)

    def remark(self, text: str) -> None:
        """A note for the readers of the run."""
        recorder = self._inference.ready()
        if recorder is not None:
            recorder.journal.remark(text)


class _Phase:
    """One phase that the program marks; it may be entered again while it is open."""

    __slots__ = ("_depths", "_inference", "_name", "_places")

    def __init__(self, inference: StepInference, name: str, places: Dict[str, int]) -> None:
        self._inference = inference
        self._name = name
        self._places = places
        self._depths: "list[int]" = []

    def __enter__(self) -> None:
        recorder = self._inference.ready()
        place = self._places.get(self._name)
        if place is None and recorder is not None:
            place = self._places[self._name] = recorder.place_of(self._name)
        self._depths.append(NOT_SEEN if place is None else self._inference.enter(place))

    def __exit__(self, *_: object) -> None:
        self._inference.leave(self._depths.pop())


def listen(inference: StepInference, marks: ModuleType) -> None:
    """Listen to ``marks``, the program's own copy of ``allpull.marks``."""
    module: Any = marks
    module.listen(MarksListener(inference))
