"""Observe optimizer steps, and steps that a gradient scaler skips."""

from __future__ import annotations

import functools
from typing import Any, Callable, Dict, Tuple

from ...recording.step_line import OPTIMIZER
from ..inference.phases import NOT_SEEN
from ..inference.step_inference import StepInference
from ..safety import safely
from .noted_calls import stepping


def watch_optimizers(inference: StepInference, made: Any) -> None:
    """Time each ``step`` by torch's global optimizer hooks; ``made`` is called with each new optimizer."""
    from torch.optim import optimizer as optim  # noqa: PLC0415  this runs after torch was imported

    begins, ends = stepping(inference.deferred, Closures(inference).observed_in)
    optim.register_optimizer_step_pre_hook(begins)
    optim.register_optimizer_step_post_hook(ends)
    construct = optim.Optimizer.__init__

    @functools.wraps(construct)
    def observed(self: Any, *args: Any, **kwargs: Any) -> None:
        construct(self, *args, **kwargs)
        inference.makes_optimizer()
        made(self)

    optim.Optimizer.__init__ = observed  # type: ignore[method-assign]  # wrapping is the point
    _watch_dropping(inference, optim.Optimizer)


class Closures:
    """What the closure of an optimizer does is no part of the optimizer's phase.

    LBFGS runs the network in it, and Lightning and Composer all that they do in a step.
    """

    def __init__(self, inference: StepInference) -> None:
        self.session = inference.session
        self.failed = inference.failed
        self._inference = inference

    def observed_in(self, args: Tuple[Any, ...], kwargs: Dict[str, Any]) -> Any:
        """The arguments of ``step`` with their closure observed; None: it has none."""
        if callable(kwargs.get("closure")):
            return args, {**kwargs, "closure": self._observed(kwargs["closure"])}
        if len(args) > 1 and callable(args[1]):  # the first is the optimizer
            return (args[0], self._observed(args[1]), *args[2:]), kwargs
        return None

    def _observed(self, closure: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(closure)
        def observed(*args: Any, **kwargs: Any) -> Any:
            depth = self._begin()
            try:
                return closure(*args, **kwargs)
            finally:
                self._end(depth)

        return observed

    @safely("optimizers", NOT_SEEN)
    def _begin(self) -> int:
        """The program goes on in its closure; returns the depth of the optimizer's phase, which is suspended."""
        if self._inference.deferred.is_on:
            return NOT_SEEN  # this step has seen its forward pass already, and the closure does nothing (Lightning)
        recorder = self._inference.recorder
        if recorder is None or not self._inference.is_own_thread or recorder.stack[-1:] != [OPTIMIZER]:
            return NOT_SEEN
        recorder.leave()
        return len(recorder.stack)

    @safely("optimizers")
    def _end(self, depth: int) -> None:
        recorder = None if depth == NOT_SEEN else self._inference.recorder
        if recorder is not None:
            recorder.leave_until(depth)
            recorder.enter(OPTIMIZER)


def _watch_dropping(inference: StepInference, base: Any) -> None:
    """Observe ``zero_grad`` until an optimizer is observed to step.

    A step out of sight has changed the parameters; a program that accumulates may drop gradients for reasons of its
    own, such as Opacus, which adds up those of each sample elsewhere.
    """
    from torch.compiler import is_dynamo_compiling  # noqa: PLC0415  this runs after torch was imported

    zero = base.zero_grad
    before: Dict[int, object] = {}

    @functools.wraps(zero)
    def observed(self: Any, *args: Any, **kwargs: Any) -> None:
        if not is_dynamo_compiling():
            if not inference.steps_taken:
                state = _state(self)
                if before.get(id(self)) != state:
                    inference.gradients_dropped()
                before[id(self)] = state
            elif base.zero_grad is observed:
                base.zero_grad = zero  # not needed any more
        zero(self, *args, **kwargs)

    base.zero_grad = observed


def _state(optimizer: Any) -> object:
    """What a change of the first parameter with a gradient changes; not equal to any if it is not known.

    Its version shows all changes but those through ``data``.
    """
    try:
        parameters = (one for group in optimizer.param_groups for one in group["params"] if one.grad is not None)
        first = next(parameters)
        return first._version, float(first.detach().sum())
    except Exception:  # noqa: BLE001  a class of the program's own, or there is none
        return object()


def watch_scalers(inference: StepInference) -> None:
    """Count ``GradScaler.step`` as the optimizer's time, and detect the steps that it skips.

    One that is switched off, as many programs have on CPUs, only calls an optimizer that is observed itself.
    """
    from torch.amp import grad_scaler  # noqa: PLC0415  this runs after torch was imported

    step = grad_scaler.GradScaler.step

    @functools.wraps(step)
    def observed(self: Any, optimizer: Any, *args: Any, **kwargs: Any) -> Any:
        before = inference.steps_taken
        if before and not self.is_enabled():
            return step(self, optimizer, *args, **kwargs)
        recorder = inference.recorder
        depth = inference.enter(OPTIMIZER)
        try:
            return step(self, optimizer, *args, **kwargs)
        finally:
            inference.leave(depth)
            if recorder is not None and inference.steps_taken == before:
                inference.optimizer_skips(id(optimizer))

    grad_scaler.GradScaler.step = observed  # type: ignore[method-assign]
