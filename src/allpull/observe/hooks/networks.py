"""See a program run its network forward, and switch it between training and evaluation.

The network is what is wrapped in DistributedDataParallel, or the module whose parameters an optimizer was given. Only
that one module is watched, never its layers.
"""

from __future__ import annotations

import functools
import weakref
from typing import Any, Dict, List

from ..arrival import watch_ddp
from .watcher import NOT_SEEN, Watcher, safely

MOST_ASKED = 8  # modules that were asked for their parameters last, among which an optimizer's is


class Networks:
    """The networks of this process, and which of them reduced its gradients in the last backward."""

    def __init__(self, watcher: Watcher) -> None:
        self.session = watcher.session
        self.failed = watcher.failed
        self._watcher = watcher
        self._parallel: "weakref.WeakSet[Any]" = weakref.WeakSet()
        self._roots: "weakref.WeakSet[Any]" = weakref.WeakSet()
        self._asked: List[Any] = []  # weak references
        self._open: Dict[int, List[int]] = {}

    @safely("networks", True)
    def reduced(self) -> bool:
        """Whether the last backward averaged gradients: True unless all were told to keep theirs (``no_sync``)."""
        return any(network.require_backward_grad_sync for network in self._parallel) or not self._parallel

    def parallel(self) -> List[Any]:
        """Every network there is that DistributedDataParallel reduces."""
        return list(self._parallel)

    def watch(self) -> None:
        """Wrap the entry points; called once, after torch was imported."""
        from torch import nn  # noqa: PLC0415  this runs after torch was imported
        from torch.nn.parallel import DistributedDataParallel  # noqa: PLC0415

        self._wrap_parallel(DistributedDataParallel)
        self._wrap_modes(nn.Module)
        self._wrap_parameters(nn.Module)

    def watch_arrivals(self) -> None:
        """Have it known when the last gradient is ready in each DistributedDataParallel that is made from now on."""
        watch_ddp(self._watcher.reduces)

    def compiled(self, eval_frame: Any) -> None:
        """Watch networks that ``torch.compile`` makes, from outside; called when dynamo was imported."""
        construct = eval_frame.OptimizedModule.__init__

        @functools.wraps(construct)
        def observed(made: Any, module: Any, *args: Any, **kwargs: Any) -> None:
            construct(made, module, *args, **kwargs)
            if self._is_root(module):  # what is compiled sees no hooks of ours: the shell around it has them
                self._hook(made)

        eval_frame.OptimizedModule.__init__ = observed

    @safely("networks")
    def given_to(self, optimizer: Any) -> None:
        """An optimizer was made: the module that gave it its parameters is a network."""
        theirs = {id(parameter) for group in optimizer.param_groups for parameter in group["params"]}
        for reference in reversed(self._asked):
            module = reference()
            if module is not None and any(id(parameter) in theirs for parameter in module.parameters()):
                self._hook(module)
                break
        self._asked.clear()

    @safely("networks", False)
    def _is_root(self, module: Any) -> bool:
        return module in self._roots

    def _wrap_parallel(self, parallel: Any) -> None:
        from torch.compiler import is_compiling  # noqa: PLC0415

        watcher, forward, construct = self._watcher, parallel.forward, parallel.__init__

        @functools.wraps(construct)
        def observed_construct(made: Any, *args: Any, **kwargs: Any) -> None:
            construct(made, *args, **kwargs)
            self._made_parallel(made)

        @functools.wraps(forward)
        def observed_forward(network: Any, *args: Any, **kwargs: Any) -> Any:
            if is_compiling():
                return forward(network, *args, **kwargs)
            depth = self._forward_begins(network, args, kwargs)
            try:
                return forward(network, *args, **kwargs)
            finally:
                watcher.leave(depth)

        parallel.__init__ = observed_construct
        parallel.forward = observed_forward

    @safely("networks")
    def _made_parallel(self, made: Any) -> None:
        self._parallel.add(made)
        self._roots.add(made.module)

    def _wrap_modes(self, base: Any) -> None:
        watcher, to_evaluate, to_train = self._watcher, base.eval, base.train

        @functools.wraps(to_evaluate)
        def observed_eval(module: Any) -> Any:
            if self._holds_network(module):
                watcher.evaluation_begins()
            return to_evaluate(module)

        @functools.wraps(to_train)
        def observed_train(module: Any, mode: bool = True) -> Any:
            if mode and watcher.evaluating and self._holds_network(module):
                watcher.evaluation_ends()
            return to_train(module, mode)

        base.eval, base.train = observed_eval, observed_train

    def _wrap_parameters(self, base: Any) -> None:
        asked, named = self._asked, base.named_parameters

        @functools.wraps(named)
        def observed(module: Any, *args: Any, **kwargs: Any) -> Any:
            if len(asked) < MOST_ASKED and not (asked and asked[-1]() is module):
                asked.append(weakref.ref(module))
            return named(module, *args, **kwargs)

        base.named_parameters = observed

    @safely("networks")
    def _hook(self, network: Any) -> None:
        """Hooks on one module; they survive a copy of it, and see only its own calls."""
        if network in self._parallel or network in self._roots:
            return
        from torch.compiler import is_compiling  # noqa: PLC0415

        self._roots.add(network)
        open_calls = self._open

        def begins(module: Any, args: Any, kwargs: Any) -> None:
            if not is_compiling():
                open_calls.setdefault(id(module), []).append(self._forward_begins(module, args, kwargs))

        def ends(module: Any, *_: Any) -> None:
            if not is_compiling() and open_calls.get(id(module)):
                self._watcher.leave(open_calls[id(module)].pop())

        network.register_forward_pre_hook(begins, prepend=True, with_kwargs=True)
        network.register_forward_hook(ends, always_call=True)

    @safely("networks", NOT_SEEN)
    def _forward_begins(self, network: Any, args: Any, kwargs: Any) -> int:
        from torch import is_grad_enabled  # noqa: PLC0415

        return self._watcher.forward_begins(args or kwargs, learns=is_grad_enabled() and bool(network.training))

    @safely("networks", False)
    def _holds_network(self, module: Any) -> bool:
        """Whether ``module`` is a network or holds one; a layer that is frozen is neither."""
        if not self._roots or module in self._roots or module in self._parallel:
            return True
        return any(part in self._roots for part in module.modules())
