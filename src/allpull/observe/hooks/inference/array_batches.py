"""Input of a program that makes its batches of arrays: from the first tensor that it makes of one to its next phase."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...recording.recorder import Recorder
from ...recording.step_line import INPUT
from ..safety import give_up

if TYPE_CHECKING:
    from .step_inference import StepInference


class ArrayBatches:
    """When the program last made a tensor of an array, by the clock of its recorder."""

    def __init__(self, inference: StepInference) -> None:
        self.session = inference.session
        self.failed = inference.failed
        self._inference = inference
        self.made_ns = 0

    def tensor_begins(self) -> bool:
        """The program makes a tensor of an array; returns whether it is input, and ``tensor_ends`` is to be called.

        Not so in a phase, and not in a program that trains with a loader.
        """
        try:
            inference = self._inference
            recorder = inference.recorder
            if recorder is None or not inference.is_own_thread:
                return False
            if recorder.turned_ns != self.made_ns:  # else it goes on with a batch
                if recorder.stack or recorder.paused or inference.loads:
                    return False
                inference.updates.look("tensor_begins")
                self.begin(recorder)
        except Exception as error:  # noqa: BLE001  no error of ours may reach the program
            return self._lose(error)
        return True

    def tensor_ends(self) -> None:
        """The tensor is made."""
        try:
            recorder = self._inference.recorder
            if recorder is not None:
                self.end(recorder)
        except Exception as error:  # noqa: BLE001  as above
            self._lose(error)

    def begin(self, recorder: Recorder) -> None:
        """The first tensor of a batch is about to be made."""
        recorder.leave_until(recorder.enter(INPUT))
        self.made_ns = recorder.turned_ns

    def end(self, recorder: Recorder) -> None:
        """The batch is made, if no phase came since its last tensor was."""
        if recorder.turned_ns == self.made_ns:
            recorder.credit(INPUT)
            self.made_ns = recorder.turned_ns

    def _lose(self, error: Exception) -> bool:
        give_up(self, "arrays", error, "tensor_begins", "tensor_ends", otherwise=False)
        return False
