"""Single-precision master weights for a network in half precision: Apex's O2.

NVIDIA Apex's mode O2, after Micikevicius et al., "Mixed Precision Training" (2017): everything except norm layers is
in half precision, and each step updates single-precision "master" weights, which are then rounded into the network.
``state_dict`` returns and ``load_state_dict`` loads the masters, so that a checkpoint is independent of the precision.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from allpull.train.optim.optimizer import NORM_LAYERS

OWN_TYPES = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm)
"""Norms that accept half-precision input with single-precision weights and statistics, and compute in the latter."""


class MasterWeights:
    """The single-precision weights of ``model``, whose parameters and buffers outside norms become ``half``.

    Construct it with the network on its device and before it is distributed; ranks get the masters of rank 0. Then call
    ``attach_to`` with the optimizer. ``weights`` are the masters by the names of the network's parameters.
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
        # their public names are newer than the oldest torch that allpull supports
        model._register_state_dict_hook(self._into_state)  # type: ignore[no-untyped-call]
        model._register_load_state_dict_pre_hook(self._from_state)  # type: ignore[no-untyped-call]

    def attach_to(self, optimizer: torch.optim.Optimizer) -> None:
        """Let ``optimizer``, made from the network's parameters and before its first step, update the masters."""
        for group in optimizer.param_groups:
            group["params"] = [self._by_half.get(id(parameter), parameter) for parameter in group["params"]]

    def take_gradients(self) -> None:
        """Move the network's gradients to the masters in single precision, and clear them in the network."""
        targets, values = [], []
        for name, parameter in self._halves.items():
            master, gradient = self.weights[name], parameter.grad
            master.grad = None
            if gradient is not None:
                master.grad = self._gradients[name]  # at a fixed address, as CUDA graphs need
                targets.append(master.grad)
                values.append(gradient)
            parameter.grad = None
        if targets:
            torch._foreach_copy_(targets, values)

    def drop_gradients(self) -> None:
        """Clear the gradients of the network and the masters."""
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

    def _from_state(self, state: dict[str, Any], prefix: str, *_arguments: Any) -> None:
        with torch.no_grad():
            for name, master in self.weights.items():
                value = state.get(prefix + name)
                if isinstance(value, Tensor) and value.shape == master.shape:  # otherwise torch reports the mismatch
                    master.copy_(value)


def _in_norms(model: nn.Module) -> set[int]:
    """The ids of all tensors in norm layers, which are recognised by type."""
    held: set[int] = set()
    for module in model.modules():
        if isinstance(module, NORM_LAYERS):
            held |= {id(tensor) for tensor in (*module.parameters(), *module.buffers())}
    return held


def _widen(_module: nn.Module, inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    return tuple(value.float() for value in inputs)


def _narrow(_module: nn.Module, _inputs: tuple[Tensor, ...], output: Tensor) -> Tensor:
    return output.half()
