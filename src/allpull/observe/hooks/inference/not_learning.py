"""Passes of this rank's networks in which it does not learn: evaluation, rollouts, and what it asks other networks."""

from __future__ import annotations

from threading import get_ident
from typing import Callable, Dict

from ...recording.recorder import Recorder
from ...recording.step_line import EVALUATION, FORWARD
from ..safety import safely
from ..session import Session
from .batches import Batches
from .evaluation import Evaluation, is_evaluating
from .phases import NOT_SEEN, Phases
from .rollout import Rollout


class NotLearning(Phases):
    """The part of ``StepInference`` that tells evaluation and rollouts from what belongs to a step."""

    def __init__(self, session: Session) -> None:
        super().__init__(session)
        self.batches = Batches()
        self.loads = False
        self.optimizers = 0
        self.steps_taken = 0  # by optimizers, whether or not they end a step
        self.stepping: Dict[int, int] = {}  # optimizers that are stepping, with their depth
        self._evaluation = Evaluation(self.end_step, self.batches)
        self._rollout = Rollout(self.end_step)

    def end_step(self, recorder: Recorder) -> None:
        """Write the step that was cut; the next one begins."""
        raise NotImplementedError

    def _ready_to_learn(self) -> None:
        """A process with an optimizer that fetches a batch or runs its network will train: its first step begins."""
        if self.optimizers and self.recorder is None:
            self.ready()

    def runs_without_learning(self, recorder: Recorder) -> int:
        """A network begins to run without gradients, to evaluate it or to learn from what it answers."""
        stack = recorder.stack
        if self._rollout.collects and (not stack or stack[0] != EVALUATION):
            self._rollout.begin(recorder)
            return NOT_SEEN
        if self.batches.is_new_pass and not self.stepping:
            self._evaluation.begin_on(recorder)
        elif self.steps_taken and not self.stepping:
            self._evaluation.begin_between(recorder)
        return recorder.enter(FORWARD)

    @safely("evaluation")
    def evaluation_begins(
        self, is_training: Callable[[], bool], *, is_ahead: bool = True, is_asked: bool = False
    ) -> None:
        """The program called ``eval()``, until ``is_training()``; ``is_ahead``: for batches that it will fetch.

        ``is_asked``: for a network that it asks in its steps, which it may be about to do.
        """
        self.deferred.settle()
        self._ready_to_learn()
        if self._recording is not None and self.is_own_thread and not self.stepping:
            self._rollout.end(self._recording)
            if not is_asked or self.batches.unlearned(with_now=True):
                self._evaluation.begin_on(self._recording, is_training, is_ahead=is_ahead, is_asked=is_asked)

    def is_evaluated(self, is_training: Callable[[], bool]) -> None:
        """A network runs without gradients, and not in training mode: ``train(False)`` may have been called."""
        if not (self._rollout.collects or (self.recorder and self.recorder.stack)):
            self.evaluation_begins(is_training, is_ahead=False)

    @safely("evaluation", otherwise=False)
    def is_still_evaluated(self) -> bool:
        """Whether an evaluation that began by ``eval()`` goes on; it ends if its network is back in training mode."""
        recorder = self.recorder
        if recorder is not None and self._evaluation.is_by_mode and self.is_own_thread:
            self._evaluation.look(recorder)
        return self._evaluation.is_by_mode

    @safely("evaluation")
    def is_beyond_evaluation(self) -> None:
        """The program does something that is not evaluation, although its network is still in evaluation mode."""
        recorder = self.recorder
        if recorder is not None and self.is_own_thread and is_evaluating(recorder) and len(recorder.stack) == 1:
            self._evaluation.end(recorder)

    def _learning(self, recorder: Recorder) -> None:
        """The program learns: an evaluation or a rollout ends."""
        if is_evaluating(recorder):
            self._evaluation.learns(recorder)
        else:
            self._rollout.end(recorder)

    @safely("environments", NOT_SEEN)
    def environment_begins(self) -> int:
        """The program calls an environment, from whose answer it will learn; returns the depth for ``leave``."""
        if get_ident() != self._thread:
            return NOT_SEEN
        self.deferred.settle()
        self._ready_to_learn()
        recorder = self._recording
        if recorder is None:
            return NOT_SEEN
        if recorder.stack and is_evaluating(recorder) and not self._evaluation.is_by_mode:
            self._evaluation.end(recorder)
        self._rollout.begin(recorder)
        return self._rollout.enters_environment(recorder) if self._rollout.is_open(recorder) else NOT_SEEN

    @safely("environments")
    def draws_action(self) -> None:
        """The program draws from a distribution without gradients, which only policies do outside of ``eval()``."""
        if self.optimizers and not (self._rollout.collects or self.loads) and get_ident() == self._thread:
            recorder = self.recorder
            self._rollout.collects = recorder is None or not recorder.stack or not self._evaluation.is_by_mode
