"""See a program run its network forward, and switch it between training and evaluation.

The network is what is wrapped in DistributedDataParallel, or the module whose parameters an optimizer was given. Only
that one module is watched, never its layers.
"""

from __future__ import annotations

import functools
import gc
import weakref
from collections import deque
from typing import Any, Callable, Deque, List, Set, Tuple

from ...recording.arrival import Arrival, watch_ddp
from ..inference.step_inference import StepInference
from ..safety import safely
from .dynamo_skip import leave_uncompiled

SLOT = "_compiled_call_impl"  # where Module.compile puts what is called in a module's place
MOST_ASKED = 8  # modules that were asked for their parameters last, among which an optimizer's is


class Networks:
    """The networks of this process, and which of them reduced its gradients in the last backward."""

    def __init__(self, inference: StepInference) -> None:
        self.session = inference.session
        self.failed = inference.failed
        self._inference = inference
        self._parallel: List["weakref.ref[Any]"] = []  # no WeakSet: each backward walks it
        self._roots: "weakref.WeakSet[Any]" = weakref.WeakSet()
        self._shells: "weakref.WeakSet[Any]" = weakref.WeakSet()
        self._asked: Deque["weakref.ref[Any]"] = deque(maxlen=MOST_ASKED)
        self._runs = False  # a network runs, and others inside it are part of it

    @safely("networks", True)
    def reduced(self) -> bool:
        """Whether the last backward averaged gradients: True unless all were told to keep theirs (``no_sync``)."""
        nowhere = True
        for reference in self._parallel:
            network = reference()
            if network is not None:
                if network.require_backward_grad_sync:
                    return True
                nowhere = False
        return nowhere

    def parallel(self) -> List[Any]:
        """Every network there is that DistributedDataParallel reduces."""
        return [network for network in [reference() for reference in self._parallel] if network is not None]

    def watch(self) -> None:
        """Wrap the entry points; called once, after torch was imported."""
        from torch import nn  # noqa: PLC0415  this runs after torch was imported
        from torch.nn.parallel import DistributedDataParallel  # noqa: PLC0415

        _need(nn.Module, SLOT)
        self._wrap_parallel(DistributedDataParallel)
        self._wrap_eval(nn.Module)
        self._wrap_parameters(nn.Module)
        self._wrap_compile(nn.Module)

    def watch_arrivals(self, attach: Callable[[Arrival], None]) -> None:
        """Have ``attach`` given what knows arrivals, of each DistributedDataParallel that is made from now on."""
        watch_ddp(attach)

    def compiled(self, eval_frame: Any) -> None:
        """Watch networks that ``torch.compile`` makes, from outside; called when dynamo was imported."""
        leave_uncompiled(eval_frame.skip_code)
        construct = eval_frame.OptimizedModule.__init__

        @functools.wraps(construct)
        def observed(made: Any, module: Any, *args: Any, **kwargs: Any) -> None:
            construct(made, module, *args, **kwargs)
            self._made_shell(made, module)

        eval_frame.OptimizedModule.__init__ = observed

    @safely("networks")
    def given_to(self, optimizer: Any) -> None:
        """An optimizer was made: whatever module holds its parameters is a network, or several are that do together."""
        theirs = {id(parameter) for group in optimizer.param_groups for parameter in group["params"]}
        asked = [module for module in [reference() for reference in reversed(self._asked)] if module is not None]
        shares = _shares(theirs, [*self._roots, *asked])
        if not any(share == theirs for _, share in shares):
            shares += _shares(theirs, _alive())
        self._asked.clear()
        for module, share in sorted(shares, key=lambda one: -len(one[1])):  # stable: of equals, who was asked last
            if share & theirs:
                self._watch_calls(module)
                theirs -= share

    @safely("networks")
    def _made_shell(self, shell: Any, module: Any) -> None:
        self._shells.add(shell)
        if module in self._roots:
            self._watch_calls(shell)

    def _wrap_parallel(self, parallel: Any) -> None:
        construct = parallel.__init__

        @functools.wraps(construct)
        def observed(made: Any, *args: Any, **kwargs: Any) -> None:
            construct(made, *args, **kwargs)
            self._made_parallel(made)

        parallel.__init__ = observed

    @safely("networks")
    def _made_parallel(self, made: Any) -> None:
        self._parallel = [*(weakref.ref(network) for network in self.parallel()), weakref.ref(made)]
        self._watch_calls(made)

    def _wrap_eval(self, base: Any) -> None:
        """``train`` is left alone: it calls itself for every layer, and some programs call it every step."""
        from torch.compiler import is_compiling  # noqa: PLC0415

        evaluate = base.eval

        @functools.wraps(evaluate)
        def observed(module: Any) -> Any:
            if not is_compiling():
                self._evaluates(module)
            return evaluate(module)

        base.eval = observed

    def _wrap_parameters(self, base: Any) -> None:
        from torch.compiler import is_compiling  # noqa: PLC0415

        asked, named = self._asked, base.named_parameters

        @functools.wraps(named)
        def observed(module: Any, *args: Any, **kwargs: Any) -> Any:
            if not is_compiling() and not (asked and asked[-1]() is module):
                asked.append(weakref.ref(module))
            return named(module, *args, **kwargs)

        base.named_parameters = observed

    def _wrap_compile(self, base: Any) -> None:
        """A network that is compiled in place is called as it was compiled, and seen as before."""
        in_place = base.compile

        @functools.wraps(in_place)
        def observed(module: Any, *args: Any, **kwargs: Any) -> Any:
            answer = in_place(module, *args, **kwargs)
            if module in self._roots:
                self._stand_before(module)
            return answer

        base.compile = observed

    def _watch_calls(self, network: Any) -> None:
        """See calls of ``network``, of what it was compiled into, and of the one part that does all its work."""
        while network is not None and network not in self._roots:
            self._roots.add(network)
            self._stand_before(network)
            for shell in list(self._shells):
                if shell._orig_mod is network:
                    self._watch_calls(shell)
            network = _heart(network)

    def _stand_before(self, network: Any) -> None:
        """See each call of ``network``.

        A forward hook would be copied, saved and compiled along with it; torch leaves this slot out of all three.
        """
        from torch import is_grad_enabled  # noqa: PLC0415
        from torch.compiler import is_dynamo_compiling  # noqa: PLC0415

        inference, compiled = self._inference, vars(network).get(SLOT)
        reference: Any = weakref.ref(network)  # it has us, so we must not have it

        def observed(*args: Any, **kwargs: Any) -> Any:
            module = reference()
            call = compiled or module._call_impl
            if self._runs or is_dynamo_compiling():
                return call(*args, **kwargs)
            self._runs = True
            depth = inference.forward_begins(args or kwargs, is_grad_enabled() and module.training)
            try:
                return call(*args, **kwargs)
            finally:
                self._runs = False
                inference.leave(depth)

        object.__setattr__(network, SLOT, observed)  # a compiled network's own would set it on what it compiled

    @safely("networks")
    def _evaluates(self, module: Any) -> None:
        if self._holds_network(module) or (self._inference.steps_taken and self._holds_copy(module)):
            reference = weakref.ref(module)
            self._inference.evaluation_begins(lambda: getattr(reference(), "training", True))

    def _holds_network(self, module: Any) -> bool:
        """Whether ``module`` is a network or holds one; a layer that is frozen is neither."""
        return module in self._roots or any(part in self._roots for part in module.modules())

    def _holds_copy(self, module: Any) -> bool:
        """Whether part of ``module`` has the type of a network and as many parameters: its average, most likely."""
        kinds = {type(root) for root in self._roots}
        parts = [part for part in module.modules() if type(part) in kinds]
        sizes = {(type(root), len(list(root.parameters()))) for root in (self._roots if parts else ())}
        return any((type(part), len(list(part.parameters()))) in sizes for part in parts)


def watch_gradients(inference: StepInference, reduces: Callable[[], bool]) -> None:
    """Time each backward pass; ``reduces`` tells whether the one that just ran averaged its gradients over ranks."""
    from torch import autograd  # noqa: PLC0415  this runs after torch was imported

    backward = autograd.backward

    @functools.wraps(backward)
    def observed(*args: Any, **kwargs: Any) -> None:
        depth = inference.backward_begins()
        try:
            backward(*args, **kwargs)
        finally:
            inference.backward_ends(depth, reduces)

    autograd.backward = observed


def _shares(wanted: Set[int], modules: List[Any]) -> List[Tuple[Any, Set[int]]]:
    """Each of ``modules``, with the ids of those of its parameters that are wanted."""
    return [(module, wanted & {id(parameter) for parameter in module.parameters()}) for module in modules]


def _heart(network: Any) -> Any:
    """The one part of ``network`` that holds all its parameters, or None: a shell is not always what is called."""
    parameters = len(list(network.parameters()))
    for part in network.children():
        if parameters and len(list(part.parameters())) == parameters:
            return part
    return None


def _alive() -> List[Any]:
    """Every module there is, the small ones first."""
    from torch import nn  # noqa: PLC0415

    found = [thing for thing in gc.get_objects() if issubclass(type(thing), nn.Module)]
    return sorted(found, key=lambda module: len(list(module.parameters())))


def _need(holder: Any, name: str) -> None:
    if not hasattr(holder, name):
        raise AttributeError(f"{holder.__name__} has no {name}")
