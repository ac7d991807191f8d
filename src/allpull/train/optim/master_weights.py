"""A network in half precision, of which the optimizer has the weights in single precision: Apex's O2.

NVIDIA Apex's mode O2, after Micikevicius et al., "Mixed Precision Training" (2017): everything but the norm layers is
in half precision, and each step is made with single-precision "master" weights, which are then rounded into the
network. Outwards the network has its masters: ``state_dict`` gives them and ``load_state_dict`` takes them, so that a
checkpoint does not know in which precision it was made.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from allpull.train.optim.optimizer import NORM_LAYERS

OWN_TYPES = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm)
"""Norms that take half-precision input beside single-precision weights and statistics, and compute in the latter."""


class Masters:
    """The single-precision weights of ``model``, whose parameters and buffers outside of norms become ``half``.

    Make it when the network stands on its device and before it is shared out; ranks get the masters of rank 0. The
    optimizer is then given to ``into``. ``weights`` are the masters by the names of the network's parameters.
    """

    def __init__(self, model: nn.Module, half: torch.dtype = torch.float16) -> None:
        normed = _in_norms(model)
        self.weights: dict[str, nn.Parameter] = {}
        self._halves: dict[str, nn.Parameter] = {}
        self._gradients: dict[str, Tensor] = {}
        self._by_half: dict[int, nn.Parameter] = {}
        for name, parameter in model.named_parameters():
            if id(parameter) in normed or not parameter.is_floating_point():
                continue
            master = nn.Parameter(parameter.detach().clone(), requires_grad=parameter.requires_grad)
            if dist.is_initialized():
                dist.broadcast(master.data, 0)  # initial weights could differ in their last bits from host to host
            self.weights[name] = self._by_half[id(parameter)] = master
            self._halves[name] = parameter
            self._gradients[name] = torch.zeros_like(master)
            parameter.data = master.detach().to(half)
        for buffer in model.buffers():
            if id(buffer) not in normed and buffer.is_floating_point():
                buffer.data = buffer.data.to(half)
        for module in model.modules():
            if isinstance(module, NORM_LAYERS) and type(module) not in OWN_TYPES:
                module.register_forward_pre_hook(_widen)
                module.register_forward_hook(_narrow)
        # the public names of these two are younger than the oldest torch that allpull runs with
        model._register_state_dict_hook(self._into_state)  # type: ignore[no-untyped-call]
        model._register_load_state_dict_pre_hook(self._from_state)  # type: ignore[no-untyped-call]

    def into(self, optimizer: torch.optim.Optimizer) -> None:
        """Have ``optimizer``, which was made of the network's parameters and has made no step, move the masters."""
        for group in optimizer.param_groups:
            group["params"] = [self._by_half.get(id(parameter), parameter) for parameter in group["params"]]

    def take_gradients(self) -> None:
        """Move the network's gradients to the masters, in single precision; the network has none afterwards."""
        into, values = [], []
        for name, parameter in self._halves.items():
            master, gradient = self.weights[name], parameter.grad
            master.grad = None
            if gradient is not None:
                master.grad = self._gradients[name]  # of one address for ever, as a recorded step needs it
                into.append(master.grad)
                values.append(gradient)
            parameter.grad = None
        if into:
            torch._foreach_copy_(into, values)

    def drop_gradients(self) -> None:
        """Neither the network nor the masters have gradients afterwards."""
        for parameter in (*self._halves.values(), *self.weights.values()):
            parameter.grad = None

    def give_weights(self) -> None:
        """Round the masters into the network."""
        if self._halves:
            with torch.no_grad():
                torch._foreach_copy_([*self._halves.values()], [self.weights[name] for name in self._halves])

    def _into_state(self, _module: nn.Module, state: dict[str, Any], prefix: str, _about: Any) -> None:
        for name, master in self.weights.items():
            state[prefix + name] = master.detach()

    def _from_state(self, state: dict[str, Any], prefix: str, *_others: Any) -> None:
        with torch.no_grad():
            for name, master in self.weights.items():
                value = state.get(prefix + name)
                if isinstance(value, Tensor) and value.shape == master.shape:  # else torch says what is wrong
                    master.copy_(value)


def _in_norms(model: nn.Module) -> set[int]:
    """The identities of all that norm layers, known by their type, hold."""
    held: set[int] = set()
    for module in model.modules():
        if isinstance(module, NORM_LAYERS):
            held |= {id(tensor) for tensor in (*module.parameters(), *module.buffers())}
    return held


def _widen(_module: nn.Module, inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    return tuple(value.float() for value in inputs)


def _narrow(_module: nn.Module, _inputs: tuple[Tensor, ...], output: Tensor) -> Tensor:
    return output.half()
