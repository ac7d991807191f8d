"""Detect when a program evaluates: by ``eval()``, or because its network runs without gradients.

The latter may be part of a step: a GAN makes samples so, distillation asks its teacher, GRPO generates what it learns
from. On the first batch of a pass, and between an optimizer's step and the next fetch of a batch, both look alike until
the program learns with no other batch fetched meanwhile: then it was no evaluation.
"""

from __future__ import annotations

from typing import Callable, Optional

from ...recording.recorder import Recorder
from ...recording.step_line import EVALUATION, FORWARD
from .batch_size import Batches, Pass


class Evaluation:
    """The evaluation of this rank, if one is under way; ``finish`` writes a step that was cut before it began."""

    def __init__(self, finish: Callable[[Recorder], None]) -> None:
        self._finish = finish
        self._is_training: Optional[Callable[[], bool]] = None  # of the network that is evaluated after ``eval()``
        self._undecided_in: Optional[Pass] = None  # whether this is an evaluation is to be seen
        self._fetched = 0  # batches of that pass when the evaluation began: loops may fetch ahead
        self._is_between = False  # it began between a step and the next fetch

    @property
    def is_by_mode(self) -> bool:
        """Whether the evaluation that is under way began by ``eval()``."""
        return self._is_training is not None

    def begin(self, recorder: Recorder, is_training: Optional[Callable[[], bool]] = None) -> None:
        """An evaluation begins, unless a phase is open; with ``is_training`` it lasts until that is true."""
        if self._is_between and is_training is not None:
            self.look(recorder)  # that was one, and this is another
        if recorder.stack:
            return
        if recorder.is_cut:
            self._finish(recorder)
        recorder.enter(EVALUATION)
        self._is_training = is_training
        self._undecided_in = None

    def begin_on(self, loader_pass: Pass, recorder: Recorder) -> None:
        """The network runs without gradients in ``loader_pass``, on no batch of which the program has trained."""
        begins = not recorder.stack
        self.begin(recorder)
        if begins and loader_pass.waiting:
            self._undecided_in, self._fetched = loader_pass, len(loader_pass.waiting)

    def begin_between(self, batches: Batches, recorder: Recorder) -> None:
        """The network runs without gradients: an evaluation, if a step has ended and no batch was fetched since.

        Another optimizer may still step, for which a GAN makes samples so: a step that was cut is not finished here.
        """
        if recorder.stack or recorder.passes or not batches.is_between:
            return
        recorder.enter(EVALUATION)
        self._undecided_in, self._fetched, self._is_between = batches.now, len(batches.now.waiting), True

    def look(self, recorder: Recorder) -> None:
        """The program is about to fetch a batch: end the evaluation if its network is back in training mode.

        One that began between a step and this fetch is over too: nothing was learned in it.
        """
        if not is_evaluating(recorder):
            return
        if self._is_between and recorder.is_cut:
            self._finish(recorder)
        if self._is_between or (self._is_training is not None and self._is_training()):
            self.end(recorder)

    def learns_from(self, loader_pass: Pass, recorder: Recorder) -> None:
        """The program learns from ``loader_pass``: the evaluation is over, or was none."""
        if loader_pass is self._undecided_in and len(loader_pass.waiting) == self._fetched:
            recorder.retract(FORWARD)
        self.end(recorder)

    def end(self, recorder: Recorder) -> None:
        """End the evaluation."""
        self._is_training = self._undecided_in = None
        self._is_between = False
        recorder.leave_until(0)


def is_evaluating(recorder: Recorder) -> bool:
    """Whether an evaluation is under way with no phase inside it."""
    stack = recorder.stack
    return bool(stack) and stack[-1] == EVALUATION
