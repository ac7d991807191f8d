"""End steps at updates of parameters, in a program whose optimizer is no ``torch.optim.Optimizer``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Callable, Dict, List

from ...recording.step_line import BACKWARD, OPTIMIZER
from ..safety import safely
from .updates import Updates, leaves

if TYPE_CHECKING:
    from .step_inference import StepInference

ACCUMULATED = 3  # backward passes before we look for updates in a program whose optimizer has not stepped yet
AFTER_UPDATE = (
    "fetch_begins",
    "forward_begins",
    "evaluation_begins",
    "is_beyond_evaluation",
    "backward_begins",
)
"""Methods of ``StepInference`` that are called where a program goes on after an update."""
FINISH = "finish"
UNSEEN_FORWARD = "backward_begins"  # the first of them to be called: nothing else of the next step was observed


class UpdateSteps:
    """Looks for an update before each of ``AFTER_UPDATE``, at no cost to programs whose optimizers are observed."""

    def __init__(self, inference: StepInference) -> None:
        self.session = inference.session
        self.failed = inference.failed
        self._inference = inference
        self._updates = Updates()
        self._looking: Dict[str, Callable[..., Any]] = {}  # what replaces the methods meanwhile

    @safely("updates", ())
    def after_backward(self, tensors: Any) -> List[Any]:
        """A backward pass from ``tensors`` ended and no optimizer has stepped yet; returns newly found parameters."""
        inference, updates = self._inference, self._updates
        recorder = inference.recorder
        if recorder is None or inference.ends_of_steps_are_known or not inference.is_own_thread:
            return []
        if inference.stepping:  # an optimizer, which calls its closure, and ends the step itself
            return []
        if inference.optimizers and (recorder.passes or 0) < ACCUMULATED:
            return []
        found: List[Any] = []
        if not updates.has_parameter or updates.may_be_another:
            found = leaves(tensors)
            if found and not updates.is_among(found):
                updates.choose(found[0])
        updates.after_backward()
        for name in () if self._looking else AFTER_UPDATE:
            self._looking[name] = self._after_looking(name, getattr(inference, name))
            setattr(inference, name, self._looking[name])
        return found

    def finish(self) -> None:
        """The program ends."""
        recorder = self._inference.recorder
        if recorder is not None and not recorder.is_cut:
            self.look(FINISH)

    def _after_looking(self, name: str, method: Callable[..., Any]) -> Callable[..., Any]:
        def looks(*args: Any) -> Any:
            self.look(name)
            return method(*args)

        return looks

    @safely("updates")
    def look(self, name: str) -> None:
        """End the step if parameters were updated since its backward pass; method ``name`` is about to be called."""
        inference, updates = self._inference, self._updates
        recorder = inference.recorder
        if (
            not self._looking
            or recorder is None
            or not recorder.passes
            or BACKWARD in recorder.stack
            or not inference.is_own_thread
        ):
            return
        if inference.ends_of_steps_are_known:
            for method, ours in self._looking.items():
                if vars(inference).get(method) is ours:  # else that part of observation has failed
                    delattr(inference, method)
            return
        before = updates.boundary
        if updates.happened(at_fetch=name == "fetch_begins", has_optimizers=inference.optimizers > 0):
            if updates.boundary != before:
                recorder.delimited_by(str(updates.boundary))
            if name not in (UNSEEN_FORWARD, FINISH):
                recorder.credit(OPTIMIZER)
            recorder.cut()
            inference.end_step(recorder)
