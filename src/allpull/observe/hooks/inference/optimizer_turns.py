"""Which optimizers have stepped in this step, and whether one of them updates its parameters group by group."""

from __future__ import annotations

import os
from types import CodeType
from typing import Set

from ...recording.recorder import Recorder
from ..callers import callers

STEP_WRAPPER, OF_OPTIMIZERS = "wrapper", "torch/optim/optimizer.py"
"""What torch wraps ``step`` of each optimizer in, to call its hooks."""


def within_another(number: int) -> bool:
    """Whether an optimizer other than ``number`` (its id) steps in this thread: one that raised does so no more."""
    return any(_is_step(frame.f_code) and id(frame.f_locals.get("self")) != number for frame in callers())


def _is_step(code: CodeType) -> bool:
    return code.co_name == STEP_WRAPPER and code.co_filename.replace(os.sep, "/").endswith(OF_OPTIMIZERS)


class OptimizerTurns:
    """``taken``: optimizers that stepped in this step; ``in_groups``: one steps once for each of its groups."""

    def __init__(self) -> None:
        self.taken: Set[int] = set()
        self.in_groups = False
        self._by_backward: Set[int] = set()  # those that stepped after a backward pass, not around one
        self._passes_before = 0

    def begins(self, number: int, recorder: Recorder) -> bool:
        """Optimizer ``number`` steps; whether that begins another step of the program."""
        self._passes_before = recorder.passes or 0
        return recorder.is_cut and number in self.taken and not self._goes_on(number, recorder)

    def _goes_on(self, number: int, recorder: Recorder) -> bool:
        """Whether optimizer ``number`` steps again for the same gradients, as in DeepSpeed's ZeRO."""
        return recorder.passes is None and number in self._by_backward

    def is_group_of_written_step(self, number: int, recorder: Recorder, *, saw_forward: bool) -> bool:
        """Whether ``number`` has just stepped for gradients of a step that is written already."""
        if self._passes_before:
            self._by_backward.add(number)
        elif not (recorder.is_cut or saw_forward) and self._goes_on(number, recorder):
            self.in_groups = True  # the following steps end with the last group
            return True
        return False
