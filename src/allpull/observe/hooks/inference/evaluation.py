"""Detect when a program evaluates: by ``eval()``, or because its network runs without gradients."""

from __future__ import annotations

from typing import Callable, Optional

from ...recording.recorder import Recorder
from ...recording.step_line import EVALUATION


class Evaluation:
    """The evaluation of this rank, if one is under way; ``finish`` writes a step that was cut before it began."""

    def __init__(self, finish: Callable[[Recorder], None]) -> None:
        self._finish = finish
        self._is_training: Optional[Callable[[], bool]] = None  # of the network that is evaluated after ``eval()``

    @property
    def is_by_mode(self) -> bool:
        """Whether the evaluation that is under way began by ``eval()``."""
        return self._is_training is not None

    def begin(self, recorder: Recorder, is_training: Optional[Callable[[], bool]] = None) -> None:
        """An evaluation begins, unless a phase is open; with ``is_training`` it lasts until that is true."""
        if recorder.stack:
            return
        if recorder.is_cut:
            self._finish(recorder)
        recorder.enter(EVALUATION)
        self._is_training = is_training

    def look(self, recorder: Recorder) -> None:
        """End the evaluation if its network is back in training mode."""
        if is_evaluating(recorder) and self._is_training is not None and self._is_training():
            self.end(recorder)

    def end(self, recorder: Recorder) -> None:
        """End the evaluation."""
        self._is_training = None
        recorder.leave_until(0)


def is_evaluating(recorder: Recorder) -> bool:
    """Whether an evaluation is under way with no phase inside it."""
    stack = recorder.stack
    return bool(stack) and stack[-1] == EVALUATION
