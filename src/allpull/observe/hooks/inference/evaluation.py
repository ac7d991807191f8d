"""Detect when a program evaluates: by ``eval()``, or because its network runs without gradients.

The latter may be part of a step: a GAN makes samples so, distillation asks its teacher, GRPO generates what it learns
from. On the first batch of a pass, and between an optimizer's step and the next fetch of a batch, both look alike until
the program learns with no other batch fetched meanwhile: then it was no evaluation. Nor was ``eval()``, where that is
so in one step after the other, and what it put into evaluation mode is still in it when the program learns: a teacher.
"""

from __future__ import annotations

from typing import Callable, Optional

from ...recording.recorder import Recorder
from ...recording.step_line import EVALUATION, FORWARD
from .batches import Batches, Pass

NEVER = -2  # no step is the next one after it


class Evaluation:
    """The evaluation of this rank, if one is under way; ``finish`` writes a step that was cut before it began.

    ``batches``: that the program fetches, to train or to evaluate on.
    """

    def __init__(self, finish: Callable[[Recorder], None], batches: Batches) -> None:
        self._finish = finish
        self._batches = batches
        self._is_training: Optional[Callable[[], bool]] = None  # of the network that is evaluated after ``eval()``
        self._undecided_in: Optional[Pass] = None  # whether this is an evaluation is to be seen
        self._unlearned: Optional[Pass] = None  # the program had a batch of it to train on when the evaluation began
        self._fetched = 0  # batches of that pass when the evaluation began: loops may fetch ahead
        self._is_between = False  # it began between a step and the next fetch
        self._is_asked = False  # what is evaluated is a network that was asked in steps
        self._asked_in = NEVER  # the step in which ``eval()`` was last called for a teacher, as it seems

    @property
    def is_by_mode(self) -> bool:
        """Whether the evaluation that is under way began by ``eval()``."""
        return self._is_training is not None

    def begin(self, recorder: Recorder, is_training: Optional[Callable[[], bool]] = None) -> bool:
        """An evaluation begins, unless a phase is open: then False. With ``is_training`` it lasts until that is."""
        if self._is_between and is_training is not None:
            self.look(recorder)  # that was one, and this is another
        if recorder.stack:
            return False
        if recorder.is_cut:
            self._finish(recorder)
        recorder.enter(EVALUATION)
        self._is_training = is_training
        self._undecided_in = self._unlearned = None
        return True

    def begin_on(
        self,
        recorder: Recorder,
        is_training: Optional[Callable[[], bool]] = None,
        *,
        is_ahead: bool = False,
        is_asked: bool = False,
    ) -> None:
        """As ``begin``, while a batch may be waiting: whether it is an evaluation is to be seen.

        ``is_ahead``: it is evaluated on none of the batches that were fetched so far. ``is_asked``: the network that is
        evaluated was asked in steps before.
        """
        now = self._batches.now
        if self.begin(recorder, is_training):
            self._is_asked = is_asked
            self._unlearned = self._batches.unlearned(with_now=is_ahead)
            if now.waiting:
                self._undecided_in, self._fetched = now, len(now.waiting)
        elif is_training is None and now is self._unlearned and len(now.waiting) == self._fetched:
            self._unlearned = None  # ``eval()`` came after the fetch of the first batch to evaluate on

    def begin_between(self, recorder: Recorder) -> None:
        """The network runs without gradients: an evaluation, if a step has ended and no batch was fetched since.

        Another optimizer may still step, for which a GAN makes samples so: a step that was cut is not finished here.
        """
        now = self._batches.now
        if recorder.stack or recorder.passes or not self._batches.is_between:
            return
        recorder.enter(EVALUATION)
        self._undecided_in, self._fetched, self._is_between = now, len(now.waiting), True

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

    def learns(self, recorder: Recorder) -> None:
        """The program learns: the evaluation is over, or was none."""
        now, is_training = self._batches.now, self._is_training
        may_be_none = is_training is None or self._asks_teacher(is_training, recorder)
        if now is self._undecided_in and len(now.waiting) == self._fetched and may_be_none:
            recorder.retract(FORWARD)
            self._unlearned = None
        self.end(recorder)

    def _asks_teacher(self, is_training: Callable[[], bool], recorder: Recorder) -> bool:
        """Whether ``eval()`` was for a teacher, now that the program learns: so in this step and the one before."""
        if is_training():
            return False
        before, self._asked_in = self._asked_in, recorder.step_number
        return self._is_asked or self._asked_in - before <= 1

    def end(self, recorder: Recorder) -> None:
        """End the evaluation."""
        left = self._unlearned
        if left is not None and (left is not self._undecided_in or len(left.waiting) == self._fetched):
            self._batches.turn_back(left)  # else more of its batches were fetched, to evaluate on
        self._is_training = self._undecided_in = self._unlearned = None
        self._is_between = False
        recorder.leave_until(0)


def is_evaluating(recorder: Recorder) -> bool:
    """Whether an evaluation is under way with no phase inside it."""
    stack = recorder.stack
    return bool(stack) and stack[-1] == EVALUATION
