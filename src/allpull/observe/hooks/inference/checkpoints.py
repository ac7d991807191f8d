"""Write records to disk where a program keeps its own state: with a checkpoint, and when its training is over.

Some launchers then end their processes without Python's exit functions, as Ray does: what is not on disk is lost.
"""

from __future__ import annotations

import os
import sys
import threading
from typing import TYPE_CHECKING, Any, Callable

from ...recording.step_line import CHECKPOINT
from ..safety import safely

if TYPE_CHECKING:
    from .step_inference import StepInference


class Checkpoints:
    """The checkpoints of this rank, in the thread that trains."""

    def __init__(self, inference: StepInference) -> None:
        self.session = inference.session
        self.failed = inference.failed
        self._inference = inference
        self._of_thread = threading.local()

    def begin(self) -> int:
        """The program writes a checkpoint; returns the depth for ``end``."""
        self._training_pauses()
        return self._inference.enter(CHECKPOINT)

    @safely("checkpoints")
    def end(self, depth: int) -> None:
        """The checkpoint that began at ``depth`` is written; so are the records up to here, from which it continues."""
        self._inference.leave(depth)
        if depth == 0:
            self._flush()

    @safely("checkpoints")
    def training_is_over(self) -> None:
        """The program destroys its process group, or the thread that trained ends."""
        if self._inference.is_own_thread:
            self._training_pauses()
            self._flush()

    @safely("checkpoints")
    def trains_here(self) -> None:
        """This is the training thread: if it ends before its process, its records are written then."""
        if threading.get_ident() != threading.main_thread().ident and not vars(self._of_thread):
            self._of_thread.end = AtEnd(self.training_is_over)

    @safely("checkpoints")
    def _training_pauses(self) -> None:
        """No optimizer of the step that was cut is still to come, and no evaluation goes on."""
        inference = self._inference
        inference.is_beyond_evaluation()
        recorder = inference.recorder
        if recorder is not None and recorder.is_cut and not recorder.stack and inference.is_own_thread:
            inference.end_step(recorder)

    def _flush(self) -> None:
        recorder = self._inference.recorder
        if recorder is not None:
            recorder.flush()


class AtEnd:
    """Calls as a thread ends, which then empties its local storage; a forked child and Python's end empty it too."""

    def __init__(self, call: Callable[[], Any]) -> None:
        self._call, self._pid, self._python_ends = call, os.getpid(), sys.is_finalizing

    def __del__(self) -> None:
        if not self._python_ends() and os.getpid() == self._pid:
            self._call()
