"""Tell when a program evaluates: by its own word, or because its network runs without gradients."""

from __future__ import annotations

from typing import Callable, Optional

from ...recording.recorder import Recorder
from ...recording.step_line import EVALUATION


class Evaluation:
    """The evaluation of this rank, if one goes on; ``finish`` writes a step that was cut, which it is no part of."""

    def __init__(self, finish: Callable[[Recorder], None]) -> None:
        self._finish = finish
        self._is_training: Optional[Callable[[], bool]] = None  # of the network that is evaluated by its own word

    def begin(self, recorder: Recorder, is_training: Optional[Callable[[], bool]] = None) -> None:
        """It begins, unless the rank is in the midst of something else; with ``is_training`` until that is true."""
        if recorder.stack:
            return
        if recorder.is_cut:
            self._finish(recorder)
        recorder.enter(EVALUATION)
        self._is_training = is_training

    def look(self, recorder: Recorder) -> None:
        """It ends if its network trains again."""
        if goes_on(recorder) and self._is_training is not None and self._is_training():
            self.end(recorder)

    def end(self, recorder: Recorder) -> None:
        """It ends."""
        self._is_training = None
        recorder.leave_until(0)


def goes_on(recorder: Recorder) -> bool:
    """Whether an evaluation goes on, and nothing inside it."""
    stack = recorder.stack
    return bool(stack) and stack[-1] == EVALUATION
