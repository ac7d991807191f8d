"""Observe forward and backward passes of a program's network, and its switch to evaluation.

The network is the module in DistributedDataParallel, or the one whose parameters an optimizer was given. Where each of
several optimizers was given a part, calls of the module that holds these parts are observed, too. Layers never are.
"""

from __future__ import annotations

import functools
import gc
import weakref
from collections import deque
from typing import Any, Callable, Deque, Iterable, List, Optional, Set, Tuple

from ...recording.arrival import Arrival, watch_ddp
from ..inference.step_inference import StepInference
from ..safety import safely
from .dynamo_skip import skip_our_code
from .noted_calls import is_within_function, learning, running
from .untrained import Untrained

SLOT = "_compiled_call_impl"  # where Module.compile stores the call that replaces the module's own
MANY = 2  # networks, which a module may hold that is called as a whole
MOST_RECENT = 8  # modules whose parameters were listed last: that of a new optimizer is among them


class Networks:
    """The networks of this process."""

    def __init__(self, inference: StepInference) -> None:
        self.session = inference.session
        self.failed = inference.failed
        self._inference = inference
        self._parallel: List[Tuple[int, "weakref.ref[Any]"]] = []
        self._made = 0  # how many of them were made, as ``recording.arrival`` counts them
        self._roots: "weakref.WeakSet[Any]" = weakref.WeakSet()
        self._order: List["weakref.ref[Any]"] = []  # of the same, in the order in which they were found
        self._parts: "weakref.WeakSet[Any]" = weakref.WeakSet()
        self._holders: "weakref.WeakSet[Any]" = weakref.WeakSet()
        self._shells: "weakref.WeakSet[Any]" = weakref.WeakSet()
        self._recent: Deque["weakref.ref[Any]"] = deque(maxlen=MOST_RECENT)
        self._waits_for_training = False
        self._observed_train: Optional[Callable[..., Any]] = None
        self._untrained = Untrained(inference, self._wrap_untrained)
        self.see_inputs: Optional[Callable[[Iterable[Any]], None]] = None  # called with the inputs of each call

    def parallel(self) -> List[Tuple[int, Any]]:
        """Every live DistributedDataParallel network, with its number in the order in which they were made."""
        known = [(number, reference()) for number, reference in self._parallel]
        return [(number, network) for number, network in known if network is not None]

    def outermost(self) -> List[Any]:
        """The networks that are no part of another one, without DDP and compilation around them, the first first."""
        alive = [network for network in (reference() for reference in self._order) if network is not None]
        bare: List[Any] = []
        for network in map(_bare, alive):
            if not any(network is other for other in bare):
                bare.append(network)
        inside = {id(part) for network in bare for part in network.modules() if part is not network}
        return [network for network in bare if id(network) not in inside]

    def convolves(self) -> bool:
        """Whether a network has convolutions."""
        from torch.nn.modules.conv import _ConvNd  # noqa: PLC0415  this runs after torch was imported

        return any(isinstance(part, _ConvNd) for root in list(self._roots) for part in root.modules())

    def watch(self) -> None:
        """Wrap the entry points; called once, after torch was imported."""
        from torch import nn  # noqa: PLC0415  this runs after torch was imported
        from torch.nn.parallel import DistributedDataParallel  # noqa: PLC0415

        _need(nn.Module, SLOT)
        self._wrap_parallel(DistributedDataParallel)
        self._wrap_eval(nn.Module)
        self._wrap_freezing(nn.Module)
        _wrap_replicas(nn.Module)
        self._wrap_parameters(nn.Module)
        self._wrap_compile(nn.Module)

    def watch_arrivals(self, attach: Callable[[Arrival], None]) -> None:
        """Call ``attach`` with the arrival clock of each DistributedDataParallel that is made from now on."""
        watch_ddp(attach)

    def compiled(self, eval_frame: Any) -> None:
        """Observe networks that ``torch.compile`` makes, from outside; called when dynamo was imported."""
        skip_our_code(eval_frame.skip_code)
        construct = eval_frame.OptimizedModule.__init__

        @functools.wraps(construct)
        def observed(made: Any, module: Any, *args: Any, **kwargs: Any) -> None:
            construct(made, module, *args, **kwargs)
            self._made_shell(made, module)

        eval_frame.OptimizedModule.__init__ = observed

    def given_to(self, optimizer: Any) -> None:
        """An optimizer was made: the module or modules that hold its parameters are networks."""
        self.learns([parameter for group in optimizer.param_groups for parameter in group["params"]])

    @safely("networks")
    def learns(self, learned: List[Any]) -> None:
        """These parameters are learned: the module or modules that hold them are networks."""
        parameters = {id(parameter) for parameter in learned}
        recent = [module for module in [reference() for reference in reversed(self._recent)] if module is not None]
        shares = _shares(parameters, [*self._roots, *recent])
        if not any(share == parameters for _, share in shares):
            shares += _shares(parameters, _alive())
        self._recent.clear()
        for module, share in sorted(shares, key=lambda one: -len(one[1])):  # stable: among equals the most recent
            if share & parameters:
                self._watch_calls(module)
                parameters -= share
        self._watch_holder()
        self._untrained.judge(list(self._roots))

    @safely("networks")
    def watch_parts(self) -> None:
        """The program learns without calling a network as a whole: observe calls of its parts."""
        for network in list(self._roots):
            for part in _called_parts(network):
                if part not in self._roots and part not in self._parts:
                    self._parts.add(part)
                    self._wrap_calls(part)
        self._inference.in_parts = bool(self._parts)

    def _watch_holder(self) -> None:
        """Observe calls of the smallest module that holds all networks, and of its compiled form, where several are."""
        networks = {id(network) for network in self.outermost()}
        if len(networks) < MANY or any(_holds(one, networks) for one in list(self._holders)):
            return
        modules = (module for module in _alive() if module not in self._shells and not _is_list(module))
        holder = next((module for module in modules if _holds(module, networks)), None)
        if holder is not None:
            self._holders.add(holder)
            for module in (holder, *(shell for shell in self._shells if shell._orig_mod is holder)):
                self._wrap_calls(module)

    @safely("networks")
    def _made_shell(self, shell: Any, module: Any) -> None:
        self._shells.add(shell)
        if module in self._roots:
            self._watch_calls(shell)
        elif module in self._holders:
            self._wrap_calls(shell)
        elif module in self._untrained:
            self._wrap_untrained(shell)

    def _wrap_parallel(self, parallel: Any) -> None:
        construct = parallel.__init__

        @functools.wraps(construct)
        def observed(made: Any, *args: Any, **kwargs: Any) -> None:
            construct(made, *args, **kwargs)
            self._made_parallel(made)

        parallel.__init__ = observed

    @safely("networks")
    def _made_parallel(self, made: Any) -> None:
        alive = [(number, weakref.ref(network)) for number, network in self.parallel()]
        self._parallel = [*alive, (self._made, weakref.ref(made))]
        self._made += 1
        self._watch_calls(made)

    def _wrap_eval(self, base: Any) -> None:
        """Wrap ``eval``; ``train`` calls itself for every layer, and some programs call it in every step."""
        from torch.compiler import is_compiling  # noqa: PLC0415

        evaluate = base.eval

        @functools.wraps(evaluate)
        def observed(module: Any) -> Any:
            if is_compiling():
                return evaluate(module)
            self._evaluates(module)
            answer = evaluate(module)
            self._wrap_train()
            return answer

        base.eval = observed

    def _wrap_train(self) -> None:
        """Wrap ``train`` while an evaluation by mode goes on, which it ends.

        Where others have wrapped it meanwhile, it stays wrapped, once.
        """
        if self._waits_for_training or not self._inference.is_still_evaluated():
            return
        self._waits_for_training = True
        if self._observed_train is not None:
            return
        from torch import nn  # noqa: PLC0415  this runs after torch was imported

        base: Any = nn.Module
        train = base.train

        @functools.wraps(train)
        def observed(module: Any, mode: bool = True) -> Any:
            answer = train(module, mode)
            if mode and self._waits_for_training and not self._inference.is_still_evaluated():
                self._waits_for_training = False
                if base.train is observed:
                    base.train = train
                    self._observed_train = None
            return answer

        self._observed_train = observed
        base.train = observed

    def _wrap_freezing(self, base: Any) -> None:
        from torch.compiler import is_compiling  # noqa: PLC0415

        freeze = base.requires_grad_

        @functools.wraps(freeze)
        def observed(module: Any, requires_grad: bool = True) -> Any:
            if not (requires_grad or is_compiling()):
                self._untrained.may_be(module, list(self._roots))
            return freeze(module, requires_grad)

        base.requires_grad_ = observed

    def _wrap_parameters(self, base: Any) -> None:
        from torch.compiler import is_compiling  # noqa: PLC0415

        recent, named = self._recent, base.named_parameters

        @functools.wraps(named)
        def observed(module: Any, *args: Any, **kwargs: Any) -> Any:
            if not is_compiling() and not (recent and recent[-1]() is module):
                recent.append(weakref.ref(module))
            return named(module, *args, **kwargs)

        base.named_parameters = observed

    def _wrap_compile(self, base: Any) -> None:
        """A network that is compiled in place is still observed."""
        in_place = base.compile

        @functools.wraps(in_place)
        def observed(module: Any, *args: Any, **kwargs: Any) -> Any:
            answer = in_place(module, *args, **kwargs)
            if module in self._roots or module in self._holders:
                self._wrap_calls(module)
            return answer

        base.compile = observed

    def _watch_calls(self, network: Any) -> None:
        """Observe calls of ``network``, of its compiled form, and of the submodule that holds all its parameters."""
        while network is not None and network not in self._roots:
            self._roots.add(network)
            self._order.append(weakref.ref(network))
            self._wrap_calls(network)
            for shell in list(self._shells):
                if shell._orig_mod is network:
                    self._watch_calls(shell)
            network = _core(network)

    def _wrap_untrained(self, network: Any) -> None:
        for module in (network, *_called_parts(network)):
            self._wrap_calls(module, is_trained=False)

    def _wrap_calls(self, network: Any, *, is_trained: bool = True) -> None:
        """Observe each call of ``network``.

        A forward hook would be copied, saved and compiled along with it; torch excludes this slot from all three.
        """
        reference: Any = weakref.ref(network)  # it refers to us: avoid a cycle
        calls, follow = self._inference.deferred, self._follow if is_trained else self._untrained.follow
        bare: Any = weakref.ref(_bare(network))
        observed = running(calls, reference, bare, vars(network).get(SLOT), follow, is_trained=is_trained)
        object.__setattr__(network, SLOT, observed)  # the setattr of a compiled network would set it on the original

    def _follow(self, network: Any, inputs: Any, learns: bool) -> int:
        """A call of ``network`` begins that is not noted; returns its depth."""
        from torch import is_grad_enabled  # noqa: PLC0415  this runs after torch was imported

        if self.see_inputs is not None:
            self.see_inputs(inputs.values() if isinstance(inputs, dict) else inputs)
        calls = self._inference.deferred
        learns = learns or (_bare(network).training and is_within_function())
        if calls.has_learned and not (is_grad_enabled() or _bare(network).training):
            self._inference.is_evaluated(_in_training(network))
            self._wrap_train()
        return calls.followed().forward_begins(inputs, learns)

    @safely("networks")
    def _evaluates(self, module: Any) -> None:
        if self._holds_network(module):
            self._inference.evaluation_begins(_in_training(module))
            return
        self._untrained.may_be(module, list(self._roots))
        if self._inference.steps_taken and self._holds_copy(module):
            self._inference.evaluation_begins(_in_training(module), is_asked=self._untrained.is_asked(module))

    def _holds_network(self, module: Any) -> bool:
        """Whether ``module`` is a network or holds one; a layer that is frozen is neither."""
        return module in self._roots or any(part in self._roots for part in module.modules())

    def _holds_copy(self, module: Any) -> bool:
        """Whether a part of ``module`` has the type and parameter count of a network: a weight average, most likely."""
        kinds = {type(root) for root in self._roots}
        parts = [part for part in module.modules() if type(part) in kinds]
        sizes = {(type(root), len(list(root.parameters()))) for root in (self._roots if parts else ())}
        return any((type(part), len(list(part.parameters()))) in sizes for part in parts)


def watch_gradients(inference: StepInference, networks: Networks) -> None:
    """Time each backward pass; where there is no optimizer, its graph shows the parameters of ``networks``."""
    from torch import autograd  # noqa: PLC0415  this runs after torch was imported

    def otherwise(tensors: Any) -> None:
        if not inference.steps_taken:
            found = inference.updates.after_backward(tensors)
            if found:
                networks.learns(found)
            elif inference.calls_no_network:
                networks.watch_parts()

    backward = autograd.backward
    autograd.backward = functools.wraps(backward)(learning(inference.deferred, backward, otherwise))


def _wrap_replicas(base: Any) -> None:
    """Replicas that DataParallel makes copy the slot, too, which would call the original network on its own device."""
    replicate = base._replicate_for_data_parallel

    @functools.wraps(replicate)
    def observed(module: Any) -> Any:
        replica = replicate(module)
        vars(replica).pop(SLOT, None)
        return replica

    base._replicate_for_data_parallel = observed


def _in_training(network: Any) -> Callable[[], bool]:
    """Whether ``network`` without a wrapper, such as DDP, is in training mode, or gone."""
    reference = weakref.ref(_bare(network))
    return lambda: getattr(reference(), "training", True)


def _shares(wanted: Set[int], modules: List[Any]) -> List[Tuple[Any, Set[int]]]:
    """Each of ``modules`` with the ids of its wanted parameters."""
    return [(module, wanted & {id(parameter) for parameter in module.parameters()}) for module in modules]


def _bare(network: Any) -> Any:
    """``network`` without DistributedDataParallel and ``torch.compile`` around it."""
    from torch.nn.parallel import DistributedDataParallel  # noqa: PLC0415

    inner = network.module if isinstance(network, DistributedDataParallel) else getattr(network, "_orig_mod", None)
    return network if inner is None else _bare(inner)


def _core(network: Any) -> Any:
    """The one child of ``network`` that holds all its parameters, or None: programs may call it directly."""
    parameters = len(list(network.parameters()))
    for part in network.children():
        if parameters and len(list(part.parameters())) == parameters:
            return part
    return None


def _called_parts(network: Any) -> List[Any]:
    """The parts of ``network`` that have parameters and that a program may call; a container is none."""
    parts: List[Any] = []
    for part in network.children():
        if _is_list(part):
            parts += _called_parts(part)
        elif next(part.parameters(), None) is not None:
            parts.append(part)
    return parts


def _is_list(module: Any) -> bool:
    """Whether ``module`` only keeps others, and cannot be called."""
    from torch import nn  # noqa: PLC0415

    return isinstance(module, (nn.ModuleList, nn.ModuleDict))


def _holds(module: Any, networks: Set[int]) -> bool:
    """Whether all ``networks``, by their ids, are parts of ``module``."""
    return networks <= {id(part) for part in module.modules()}


def _alive() -> List[Any]:
    """Every live module, small ones first."""
    from torch import nn  # noqa: PLC0415

    modules = [thing for thing in gc.get_objects() if issubclass(type(thing), nn.Module)]
    return sorted(modules, key=lambda module: len(list(module.parameters())))


def _need(holder: Any, name: str) -> None:
    if not hasattr(holder, name):
        raise AttributeError(f"{holder.__name__} has no {name}")
