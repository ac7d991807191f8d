"""Infer phases, steps and epochs from the calls of a program. The rules, on which readers of the records rely:

- A step ends when an optimizer's ``step`` returns. If a program made several optimizers, it ends when the last of them
  has stepped before one steps again or the next batch is fetched. An optimizer that steps twice with no backward pass
  in between updates its parameters group by group: that is one step. If none is ever observed to step, because it is
  compiled, a step ends where its gradients are cleared. If there is none, it ends where the program goes on after it
  has updated a parameter (``update_steps``).
- Input is what the program waits for its loaders, or, without a loader, from the first tensor that it makes of an array
  to the forward or backward pass.
- Samples count for the step that trains on them, in the order in which their batches were fetched. Where a program
  never runs backward, a step trains on the batch that was fetched in it, if that is one, and forward ran.
- A pass over a loader is an epoch if the program trains on one of its batches.
- Evaluation lasts from ``eval()`` to ``train()`` of the network; if a program calls neither, from a forward pass
  without gradients to the next one with gradients, unless that learns from the same batch. A checkpoint or a barrier
  ends it too; and where it began between a step and the next batch of the pass, the fetch of that.
- Once an environment was called, or an action drawn without gradients, such forward passes are a rollout, together with
  the environments, from the first of both until the program learns.
- A phase that an exception leaves open ends with the phase around it.
"""

from __future__ import annotations

from threading import get_ident
from typing import Any

from ...recording.recorder import Recorder
from ...recording.step_line import BACKWARD, FORWARD, INPUT, OPTIMIZER
from ..safety import safely
from ..session import Session
from .array_batches import ArrayBatches
from .checkpoints import Checkpoints
from .deferred import Deferred
from .evaluation import is_evaluating
from .not_learning import NotLearning
from .optimizer_turns import OptimizerTurns, within_another
from .phases import NOT_SEEN
from .update_steps import UpdateSteps
from .works import Works

ELSEWHERE = -2  # the depth of a call in another thread
NO_UPDATE = "but no update of a parameter, so there are no steps: mark them with allpull.step()"
UNOBSERVED = 2  # times that gradients are cleared without a step before we conclude that the optimizer is compiled
ZERO_GRAD = "zero_grad"  # the boundary of such steps


class StepInference(NotLearning):
    """Turns calls of torch's entry points into phases and steps of this rank's recorder.

    A method that begins a phase returns a depth, which the method that ends it takes; each pair costs about a
    microsecond, or one comparison if the process is no rank or the call comes from another thread.
    """

    def __init__(self, session: Session) -> None:
        super().__init__(session)
        self.arrays = ArrayBatches(self)
        self._saw_forward = False  # in this step
        self.in_parts = False  # the program calls the parts of its network, one by one
        self._turns = OptimizerTurns()
        self.works = Works(self)
        self._runs_backward = False
        self._unseen = 0  # steps after forward, with no backward pass ever
        self._unobserved = 0  # steps that an unobserved optimizer must have taken
        self.updates = UpdateSteps(self)
        self.checkpoints = Checkpoints(self)
        self.steps_by_marks = False  # the program marks the ends of its steps itself
        self.epochs_by_marks = False
        self.deferred = Deferred(self)

    # Loaders

    @safely("loaders", NOT_SEEN)
    def pass_begins(self) -> int:
        """The iterator of a loader is being made, which may start its workers."""
        recorder = self.recorder and self._recording
        if recorder is None or not self.is_own_thread:
            return NOT_SEEN
        self._evaluation.look(recorder)
        return recorder.enter(INPUT)

    @safely("loaders")
    def pass_begun(self, iterator: Any, loader: Any, asked_ns: int) -> None:
        """The ``iterator`` of a ``loader``, which was asked for it at ``asked_ns``, is made."""
        self.deferred.settle()
        self.batches.begin(iterator, loader, asked_ns)

    @safely("loaders")
    def pass_repeats(self, iterator: int) -> None:
        """The batch that was just fetched is the first of another pass of the same iterator."""
        self.deferred.settle()
        self.batches.repeat(iterator)

    def fetch_begins(self, iterator: int) -> int:
        """The program fetches a batch from the iterator with this id."""
        try:
            if get_ident() != self._thread:
                return self._fetch_elsewhere(iterator)
            recorder = self._recording
            if recorder is None or recorder.stack or recorder.is_cut or iterator != self.batches.turned_to:
                return self._fetch_after_step(iterator)
            return recorder.enter(INPUT)
        except Exception as error:  # noqa: BLE001
            return self._lose("loaders", error)

    def _fetch_elsewhere(self, iterator: int) -> int:
        """Another thread fetches, which matters only if it turns out to be the one that trains."""
        if self._trains:
            return ELSEWHERE
        self.batches.turn_to(iterator)
        self.batches.now.thread = get_ident()
        return NOT_SEEN

    def _fetch_after_step(self, iterator: int) -> int:
        """As ``fetch_begins``, where the fetch ends a step or an evaluation, or may begin the first step."""
        recorder = self.recorder
        if recorder is None:
            self._ready_to_learn()
        elif recorder.stack and recorder.stack[-1] == INPUT:
            return recorder.enter(INPUT)  # a loader inside a loader
        else:
            self._rollout.end(recorder)
            self._evaluation.look(recorder)
            if recorder.is_cut and not is_evaluating(recorder):
                self.batches.held = 0  # else they would take the next batch
                self.end_step(recorder)
        self.loads = True
        self.batches.turn_to(iterator)
        self.batches.now.thread = None
        return NOT_SEEN if self._recording is None else self._recording.enter(INPUT)

    def fetched(self, depth: int, batch: Any, iterator: Any = None) -> None:
        """The fetch that began at ``depth`` returned ``batch``, from a loader's ``iterator``."""
        try:
            recorder = self.recorder
            if depth >= 0 and recorder is not None:
                recorder.leave_until(depth)
                if depth and recorder.stack and recorder.stack[-1] == INPUT:
                    return  # a loader inside a loader
            elif depth == ELSEWHERE:
                return
            self.batches.fetched(batch, iterator)
        except Exception as error:  # noqa: BLE001
            self._lose("loaders", error)

    # The network

    def forward_begins(self, inputs: Any, learns: bool) -> int:
        """A forward pass of the whole network begins, on ``inputs``; ``learns``: with gradients."""
        try:
            if get_ident() != self._thread:
                return NOT_SEEN
            recorder = self._recording
            if recorder is None or recorder.stack or not learns or not self.loads:
                return self._forward_otherwise(inputs, learns)
            self._saw_forward = True
            return recorder.enter(FORWARD)
        except Exception as error:  # noqa: BLE001
            return self._lose("forward", error)

    def _forward_otherwise(self, inputs: Any, learns: bool) -> int:
        """As ``forward_begins``, where it may be the first, part of an evaluation, or without a loader."""
        if self.recorder is None and learns:
            self._ready_to_learn()
        recorder = self.recorder
        stack = recorder.stack if recorder is not None else []
        if stack and stack[-1] == BACKWARD:
            return NOT_SEEN  # activation checkpointing: recomputation during backward
        if learns:
            if recorder is not None and stack:
                self._learning(recorder)
            elif recorder is not None and self.in_parts and self._saw_forward:
                recorder.credit(FORWARD)  # what the network's own code does between its parts
            elif recorder is not None:
                self.arrays.end(recorder)
            self._saw_forward = True
            if not (self.loads or (self.stepping and recorder and recorder.samples)):
                self.batches.give_inputs(inputs)  # once, also where an optimizer runs it many times (LBFGS)
        elif self._recording is not None:
            return self.runs_without_learning(self._recording)
        return NOT_SEEN if self._recording is None else self._recording.enter(FORWARD)

    def asked_begins(self) -> int:
        """A network that no optimizer trains begins to run: part of the step, or of what is open.

        Without a loader nothing tells whether it is evaluated, and it is no policy that collects rollouts.
        """
        recorder = self.recorder and self._recording
        if recorder is None or recorder.stack:
            return NOT_SEEN
        if self.loads and not self._rollout.collects:
            return self.runs_without_learning(recorder)
        self.arrays.end(recorder)
        return recorder.enter(FORWARD)

    # Gradients and steps

    def backward_begins(self) -> int:
        """A backward pass begins: the program trains."""
        try:
            if self._in_backward or (get_ident() != self._thread and self._is_elsewhere()):
                return NOT_SEEN
            recorder, batches = self._recording or self.ready(), self.batches
            if recorder is None:
                return NOT_SEEN
            if recorder.stack:
                self._learning(recorder)
            if not batches.now.learned:
                self._learns_from_pass(recorder)
            (batches.hold if recorder.is_cut and self.loads else batches.learn)(recorder)
            recorder.passes = 1 + (recorder.passes or 0)
            if recorder.paused:
                return NOT_SEEN
            if not self._saw_forward or self.in_parts:
                recorder.credit(FORWARD)
            elif not self.loads:
                self.arrays.end(recorder)  # the next batch is made between forward and backward
            self._in_backward = True
            if self.arrivals.any:
                self.arrivals.begin()
            return recorder.enter(BACKWARD)
        except Exception as error:  # noqa: BLE001
            return self._lose("backward", error)

    def learns_unseen(self, recorder: Recorder) -> None:
        """An optimizer stepped: where no backward pass was ever seen, ``torch.autograd.grad`` gave the gradients.

        The program then learns from the batch that it fetched in this step, if that is one, and forward ran.
        """
        if recorder.passes:
            self._runs_backward = True
        elif self.loads and not self._runs_backward and (recorder.spent[FORWARD] or self._saw_forward):
            self._unseen += 1
            if self._unseen > 1 and self.batches.has_one_fresh(after_first=self._unseen == 2):
                if not self.batches.now.learned:
                    self._learns_from_pass(recorder)
                self.batches.learn(recorder)

    def _learns_from_pass(self, recorder: Recorder) -> None:
        """The program trains for the first time on a batch of this pass over a loader."""
        batches = self.batches
        if batches.now.thread not in (None, get_ident()):
            batches.leave_loaders()
            return
        epoch = batches.begin_epoch()
        if epoch is not None and not self.epochs_by_marks:
            recorder.epoch(epoch, asked_ns=batches.now.asked_ns)

    def backward_ends(self, depth: int) -> None:
        """A backward pass ended."""
        try:
            if depth >= 0 and self.recorder is not None:
                self.recorder.leave_until(depth)
                self._in_backward = False
        except Exception as error:  # noqa: BLE001
            self._lose("backward", error)

    @safely("optimizers")
    def makes_optimizer(self) -> None:
        """The program makes an optimizer."""
        self.deferred.settle()
        self.optimizers += 1

    def optimizer_begins(self, number: int) -> None:
        """Optimizer ``number`` (its id) steps."""
        try:
            if get_ident() != self._thread and self._is_elsewhere():
                return
            recorder = self._recording or self.ready()
            if recorder is None:
                return
            if self._turns.begins(number, recorder):
                self.end_step(recorder)
            depth = NOT_SEEN if recorder.paused else recorder.enter(OPTIMIZER)
            self.stepping.setdefault(number, depth)  # an earlier call may have raised, or its base class steps
        except Exception as error:  # noqa: BLE001
            self._lose("optimizers", error)

    def optimizer_ends(self, number: int) -> None:
        """Optimizer ``number`` has stepped."""
        try:
            depth, recorder, turns = self.stepping.pop(number, None), self.recorder, self._turns
            if recorder is None or depth is None:
                return
            if depth >= 0:
                recorder.leave_until(depth)
            if self.stepping and OPTIMIZER in recorder.stack and within_another(number):
                return  # such as a Lookahead around it, which ends the step
            self.steps_taken += 1
            if not recorder.is_cut:
                self.learns_unseen(recorder)
            if self.works.reducing:
                self.works.optimizer_stepped()
            if self.steps_by_marks or turns.is_group_of_written_step(number, recorder, saw_forward=self._saw_forward):
                return
            if recorder.is_cut:  # they learn from what the first optimizer learned from
                self.batches.held = 0
                if not self.loads:
                    recorder.samples = recorder.elements = None
            recorder.cut()
            if self.optimizers > 1 or turns.in_groups:  # the step ends with the last of them
                turns.taken.add(number)
            else:
                self.end_step(recorder)
                self.deferred.consider(recorder)
        except Exception as error:  # noqa: BLE001
            self._lose("optimizers", error)

    @safely("optimizers")
    def optimizer_skips(self, number: int) -> None:
        """Optimizer ``number`` skipped its step, because a gradient was not finite."""
        recorder = self.recorder
        if recorder is None or get_ident() != self._thread:
            return
        if not self.steps_by_marks and "skipped" not in recorder.tags:
            recorder.tags.append("skipped")
        self.stepping.setdefault(number, NOT_SEEN)
        self.optimizer_ends(number)

    @safely("optimizers")
    def gradients_dropped(self) -> None:
        """Gradients are gone and no optimizer was ever seen to step: a compiled one steps out of sight."""
        recorder = self.recorder
        if recorder is None or not recorder.passes or self.stepping or self.steps_by_marks or not self.is_own_thread:
            return
        self._unobserved += 1
        if self._unobserved == UNOBSERVED:
            self.session.part_ends("optimizers", "none is seen to step: a step ends where its gradients are dropped")
            recorder.delimited_by(ZERO_GRAD)
        if self._unobserved >= UNOBSERVED:
            recorder.cut()
            self.end_step(recorder)

    @property
    def calls_no_network(self) -> bool:
        """Whether this step ran backward, with no call of a network as a whole, and there is no loader."""
        return not (self._saw_forward or self.loads or self.in_parts or self.recorder is None)

    @property
    def ends_of_steps_are_known(self) -> bool:
        """Whether an optimizer has stepped, or one is compiled, or the program marks its steps."""
        return bool(self.steps_taken) or self.steps_by_marks or self._unobserved >= UNOBSERVED

    @property
    def is_plain(self) -> bool:
        """Whether each step of the program is one of its only optimizer."""
        several = self.optimizers > 1 or self.steps_by_marks or self._unobserved
        under_way = self.stepping or self.works.reducing or self._turns.in_groups
        now = self.batches.now
        return now.learned and not (now.left or several or under_way or self.failed)

    def resumes(self, *, saw_forward: bool, in_backward: bool) -> None:
        """Calls are followed one by one again, from here."""
        self._saw_forward, self._in_backward = saw_forward, in_backward

    def end_step(self, recorder: Recorder) -> None:
        """Write the step that was cut; the next one begins."""
        self._turns.taken.clear()
        self._saw_forward = False
        recorder.write_step()
        self.batches.release(recorder)
        if self.boundary.is_awaited:
            self.boundary.passed(recorder)
            self._recording = recorder if self.boundary.on else None

    @safely("recording")
    def finish(self) -> None:
        """The program ends: write the step that was cut."""
        recorder = self.recorder
        self.works.forget()
        self.updates.finish()
        if recorder is not None and self._unobserved >= UNOBSERVED and recorder.passes:
            recorder.cut()
        elif recorder is not None and recorder.passes and not (recorder.step_number or self.steps_by_marks):
            recorder.journal.remark(f"{recorder.passes:,} backward passes were seen, {NO_UPDATE}")
        if recorder is not None and recorder.is_cut:
            recorder.leave_until(0)
            self.end_step(recorder)
