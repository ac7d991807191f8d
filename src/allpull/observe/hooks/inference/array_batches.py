"""Input of a program that makes its batches of arrays: from the first tensor that it makes of one to its next phase."""

from __future__ import annotations

from ...recording.recorder import Recorder
from ...recording.step_line import INPUT


class ArrayBatches:
    """When a tensor was last made of an array, by the recorder's clock."""

    def __init__(self) -> None:
        self._made_ns = 0

    def begin(self, recorder: Recorder) -> None:
        """The program makes a tensor of an array; unless it goes on with a batch, input begins."""
        if not self.is_last(recorder):
            recorder.leave_until(recorder.enter(INPUT))
            self._made_ns = recorder.turned_ns

    def end(self, recorder: Recorder) -> None:
        """The tensor is made, or the batch."""
        if self.is_last(recorder):
            recorder.credit(INPUT)
            self._made_ns = recorder.turned_ns

    def is_last(self, recorder: Recorder) -> bool:
        """Whether no phase came since."""
        return recorder.turned_ns == self._made_ns
