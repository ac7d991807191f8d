"""Input of a program that makes its batches of arrays: from the first tensor that it makes of one to its next phase."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...recording.recorder import Recorder
from ...recording.step_line import INPUT
from ..safety import safely

if TYPE_CHECKING:
    from .step_inference import StepInference


class ArrayBatches:
    """When the program last made a tensor of an array, by the clock of its recorder."""

    def __init__(self, inference: StepInference) -> None:
        self.session = inference.session
        self.failed = inference.failed
        self._inference = inference
        self._made_ns = 0

    @property
    def expects(self) -> bool:
        """Whether the program trains without a loader, and no phase is open."""
        inference = self._inference
        recorder = inference.recorder
        return not (recorder is None or recorder.stack or recorder.paused or inference.loads)

    @safely("arrays")
    def tensor_begins(self) -> None:
        """The program makes a tensor of an array; unless it goes on with a batch, input begins."""
        inference = self._inference
        recorder = inference.recorder
        if recorder is not None and inference.is_own_thread and recorder.turned_ns != self._made_ns:
            inference.updates.look("tensor_begins")
            recorder.leave_until(recorder.enter(INPUT))
            self._made_ns = recorder.turned_ns

    @safely("arrays")
    def tensor_ends(self) -> None:
        """The tensor is made."""
        recorder = self._inference.recorder
        if recorder is not None and self._inference.is_own_thread:
            self.end(recorder)

    def end(self, recorder: Recorder) -> None:
        """The batch is made, if no phase came since its last tensor was."""
        if recorder.turned_ns == self._made_ns:
            recorder.credit(INPUT)
            self._made_ns = recorder.turned_ns
