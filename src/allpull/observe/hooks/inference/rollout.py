"""The rollouts of reinforcement learning: what a program does in its environments to collect what it learns from.

They are told from an evaluation by a call of an environment, or by an action that is drawn from a distribution, without
gradients and not in ``eval()`` mode. A rollout lasts until the program learns. Where it calls no environment before
that, in a program whose environments are observed, it was a part of learning, such as the targets of SAC's critic.
"""

from __future__ import annotations

from typing import Callable

from ...recording.recorder import Recorder
from ...recording.step_line import FORWARD

ROLLOUT = "rollout"
ENVIRONMENT = "environment"
UNKNOWN = -1  # the place of a phase that has not been named yet


class Rollout:
    """The rollout of this rank, if one is under way; ``finish`` writes a step that was cut before it began."""

    def __init__(self, finish: Callable[[Recorder], None]) -> None:
        self._finish = finish
        self.collects = False  # the program is known to collect rollouts
        self._rollout = self._environment = UNKNOWN
        self._acts = True  # this one calls its environment, or no environment is known

    def begin(self, recorder: Recorder) -> None:
        """A rollout begins, unless a phase is open."""
        if recorder.stack:
            return
        self._acts = self._environment == UNKNOWN
        if recorder.is_cut and self._acts:
            self._finish(recorder)
        self.collects = True
        if self._rollout == UNKNOWN:
            self._rollout = recorder.place_of(ROLLOUT)
        recorder.enter(self._rollout)

    def enters_environment(self, recorder: Recorder) -> int:
        """An environment of this rollout works; returns the depth of the phase."""
        if self._environment == UNKNOWN:
            self._environment = recorder.place_of(ENVIRONMENT)
        if recorder.is_cut and not self._acts:
            self._finish(recorder)
        self._acts = True
        return recorder.enter(self._environment)

    def is_open(self, recorder: Recorder) -> bool:
        """Whether a rollout is under way with no phase inside it."""
        stack = recorder.stack
        return len(stack) == 1 and stack[0] == self._rollout

    def end(self, recorder: Recorder) -> None:
        """The rollout ends, if one is under way."""
        if self.is_open(recorder):
            if not self._acts:
                recorder.stack[0] = FORWARD
            recorder.leave_until(0)
