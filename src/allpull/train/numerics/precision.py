"""The arithmetic of a training step: number formats, loss scaling, and what the device supports.

====== =============================================================================================================
fp32   as torch computes it; on a GPU without TF32, which torch enables for convolutions
tf32   fp32, with matrix products and convolutions in TF32, which NVIDIA GPUs have since Ampere
bf16   ``torch.autocast`` to bfloat16, whose range is that of fp32: gradients need no scaling
fp16   ``torch.autocast`` to float16, with dynamic loss scaling
o2     the network in float16 except its norms, single-precision weights in the optimizer, dynamic loss scaling
====== =============================================================================================================

**Loss scaling** is ``torch.amp.GradScaler``: the loss is multiplied by a scale, gradients are divided by it, and if
one of them is infinite or NaN the step is skipped and the scale halved. Ranks exchange gradients before they are
divided, and a sum with an infinity is infinite on every rank: so all ranks skip the same steps.

**Host and device.** An optimizer with ``fused=True`` skips a step on the device. With any other, the host waits once
per step for the GPU, in ``GradScaler.step``, which reads whether there was an infinity. Nothing else here waits: counts
stay on the device until ``metrics`` or ``state_dict``.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from allpull.errors import BadInput, MissingPart
from allpull.kernel import Tree
from allpull.train.optim.master_weights import MasterWeights

AUTOCAST = {"bf16": torch.bfloat16, "fp16": torch.float16}
SCALED = ("fp16", "o2")
AMPERE = (8, 0)  # compute capability from which NVIDIA GPUs have TF32 and bfloat16

Clip = Callable[[list[nn.Parameter]], object]
"""Clips the gradients of the given parameters, which are those that the optimizer updates."""


class Precision:
    """The precision ``name`` of ``train.precision`` on ``device``.

    Once, in this order: ``prepare`` the network, distribute it, make the optimizer, ``attach`` it. In each step
    ``forward`` and ``backward`` for each micro-batch, then the exchange of gradients after backward, then ``step``.

    Raises:
        MissingPart: the device does not support it.
    """

    def __init__(self, name: str, device: torch.device) -> None:
        check(name, device)
        if device.type == "cuda":
            allow_tf32(name != "fp32")
        self.name = name
        self.device = device
        self.masters: MasterWeights | None = None
        self._scaler = torch.amp.GradScaler(device.type) if name in SCALED else None
        self._skipped = torch.zeros((), device=device)

    @property
    def scaled(self) -> bool:
        """Whether losses are scaled and steps may be skipped."""
        return self._scaler is not None

    def prepare(self, model: nn.Module) -> None:
        """Convert ``model``, which is on its device and not distributed yet; a collective for ``o2``.

        Raises:
            BadInput: the model is float64 and the precision is lower.
        """
        if self.name != "fp32" and any(parameter.dtype == torch.float64 for parameter in model.parameters()):
            raise BadInput(
                f"train.precision={self.name} is lower than model.dtype=float64", hint="remove one of the two options"
            )
        if self.name == "o2":
            self.masters = MasterWeights(model)

    def attach(self, optimizer: torch.optim.Optimizer) -> None:
        """Give ``optimizer``, made from the network's parameters, the weights that it updates."""
        if self.masters is not None:
            self.masters.attach_to(optimizer)

    def forward(self, module: nn.Module, images: Tensor) -> Tensor:
        """The logits of ``module``; float32 in all lower precisions, so that losses are too."""
        if self.name == "o2":
            logits: Tensor = module(images.to(torch.float16))
            return logits.float()
        if self.name not in AUTOCAST:
            result: Tensor = module(images)
            return result
        with torch.autocast(self.device.type, dtype=AUTOCAST[self.name]):
            logits = module(images)
        return logits.float()

    def backward(self, loss: Tensor) -> None:
        """Accumulate the gradients of ``loss``, scaled if losses are."""
        torch.autograd.backward(loss if self._scaler is None else self._scaler.scale(loss))

    def step(self, optimizer: torch.optim.Optimizer, clip: Clip | None = None) -> None:
        """One step with the accumulated gradients, unscaled and then clipped; afterwards they are cleared.

        With loss scaling, a step with infinities changes only the scale. Whether it did is not returned, since the host
        would have to wait for it; ``metrics`` counts them.
        """
        if self.masters is not None:
            self.masters.take_gradients()
        if self._scaler is not None:
            self._scaled_step(self._scaler, optimizer, clip)
        else:
            if clip is not None:
                clip(optimized_parameters(optimizer))
            optimizer.step()
        if self.masters is not None:
            self.masters.give_weights()
        optimizer.zero_grad()

    def _scaled_step(self, scaler: torch.amp.GradScaler, optimizer: torch.optim.Optimizer, clip: Clip | None) -> None:
        if getattr(optimizer, "_step_supports_amp_scaling", False):
            zero_momentum(optimizer)
        scaler.unscale_(optimizer)
        for infinite in scaler._found_inf_per_device(optimizer).values():
            self._skipped += infinite
        if clip is not None:
            clip(optimized_parameters(optimizer))
        scaler.step(optimizer)
        scaler.update()

    def discard(self, optimizer: torch.optim.Optimizer) -> None:
        """Drop the partial state of a failed step."""
        if self.masters is not None:
            self.masters.drop_gradients()
        if self._scaler is not None:
            self._scaler._per_optimizer_states.clear()
        optimizer.zero_grad()

    def metrics(self) -> dict[str, float]:
        """Metrics: ``loss_scale``, and ``skipped_steps`` so far; empty without scaling. The host waits for a GPU."""
        if self._scaler is None:
            return {}
        return {"loss_scale": self._scaler.get_scale(), "skipped_steps": self._skipped.item()}

    def state_dict(self) -> dict[str, Any]:
        """The scale and its history, as numbers; empty without scaling. Master weights are in the network's state."""
        if self._scaler is None:
            return {}
        state = self._scaler.state_dict()
        return {
            "scale": state["scale"],
            "growth_tracker": state["_growth_tracker"],
            "skipped_steps": int(self._skipped.item()),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore ``state_dict``; with an empty one, of another precision, scaling starts afresh.

        Raises:
            BadInput: it is invalid; nothing was changed.
        """
        if self._scaler is None or not state:
            return
        scale = state.get("scale")
        counts = [state.get(name) for name in ("growth_tracker", "skipped_steps")]
        good = isinstance(scale, float) and math.isfinite(scale) and scale > 0
        if not good or not all(type(count) is int and 0 <= count < 2**31 for count in counts):
            raise BadInput("the checkpoint has an invalid state of loss scaling", hint="resume from another checkpoint")
        self._scaler.load_state_dict({**self._scaler.state_dict(), "scale": scale, "_growth_tracker": counts[0]})
        self._skipped.fill_(float(state["skipped_steps"]))


def optimized_parameters(optimizer: torch.optim.Optimizer) -> list[nn.Parameter]:
    """The parameters that ``optimizer`` updates."""
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]


def zero_momentum(optimizer: torch.optim.Optimizer) -> None:
    """Initialise the momentum of a fused SGD to 0, which gives the same first step.

    Otherwise its first step allocates uninitialised memory for it; if that step is skipped because of an infinity, as
    is common while the scale settles, the next step uses that memory (seen with torch 2.13).
    """
    if not isinstance(optimizer, torch.optim.SGD) or optimizer.state:
        return
    for group in optimizer.param_groups:
        for parameter in group["params"] if group["momentum"] else ():
            if parameter.requires_grad:
                optimizer.state[parameter]["momentum_buffer"] = torch.zeros_like(parameter)


def allow_tf32(allowed: bool) -> None:
    """Enable or disable TF32 for this process's float32 matrix products and convolutions on GPUs.

    It uses the older of torch's two interfaces: torch.compile (2.13) still reads it, and refuses a mixture of both.
    """
    torch.set_float32_matmul_precision("high" if allowed else "highest")
    torch.backends.cudnn.allow_tf32 = allowed


def check_here(name: str) -> None:
    """``check`` for a rank of this machine, before one is started.

    Raises:
        MissingPart: its device does not support it.
    """
    check(name, torch.device("cuda" if torch.cuda.is_available() else "cpu"))


def check(name: str, device: torch.device) -> None:
    """Check that ``device`` supports precision ``name``.

    Raises:
        MissingPart: it does not.
    """
    problem = missing(name, device)
    if problem:
        raise MissingPart(f"train.precision={name}: {problem}", hint=f"use {alternative(name)}")


def missing(name: str, device: torch.device) -> str:
    """Why ``device`` does not support ``name``; "" if it does."""
    if name == "tf32" and device.type != "cuda":
        return f"TF32 needs an NVIDIA GPU, and this rank computes on {device.type}"
    if name not in ("tf32", "bf16") or device.type != "cuda" or torch.version.hip:
        return ""
    capability = torch.cuda.get_device_capability(device)
    if capability >= AMPERE:
        return ""
    what = "TF32" if name == "tf32" else "bfloat16"
    gpu = torch.cuda.get_device_name(device)
    return f"{gpu} has compute capability {capability[0]}.{capability[1]}, and {what} needs {AMPERE[0]}.{AMPERE[1]}"


def alternative(name: str) -> str:
    """The precision to use instead of ``name``."""
    return "train.precision=fp16, which has loss scaling" if name == "bf16" else "train.precision=fp32"


BF16_INSTRUCTIONS = frozenset({"amx_bf16", "avx512_bf16", "avx_ne_convert", "bf16", "svebf16", "sve_bf16"})
"""Instructions for bfloat16 as Linux and torch name them: of x86, then of Arm."""


def bf16_emulation(name: str, device: torch.device, cpu_flags: frozenset[str] | None = None) -> str:
    """A warning if ``train.precision = name`` is emulated on ``device``; "" if it is not or cannot be known.

    Without bfloat16 instructions a CPU emulates them, and half the bits cost more time: bf16 steps took 1.8 to 2 times
    as long as fp32 with AVX-512 alone, and 7 to 8 times with AVX2. With AVX512_BF16 both took as long, and with AMX
    bf16 took 0.5 to 0.7 of the time (benchmarks/bf16_on_cpus.py). ``cpu_flags`` replaces ``instructions()`` in tests.
    """
    if name != "bf16" or device.type != "cpu":
        return ""
    flags = instructions() if cpu_flags is None else cpu_flags
    if not flags or flags & BF16_INSTRUCTIONS:
        return ""
    return (
        "train.precision: this CPU has no instructions for bfloat16; bf16 is emulated, and slower than fp32: "
        "--set train.precision=fp32"
    )


def instructions(tree: Tree | None = None) -> frozenset[str]:
    """The instruction sets of this CPU that Linux and torch report; empty if neither does.

    Linux lists none on POWER, and other systems have no source before torch 2.13.
    """
    fields = (tree or Tree()).fields("proc/cpuinfo")
    listed = (fields.get("flags") or fields.get("Features") or "").split()
    capabilities = getattr(torch.cpu, "get_capabilities", dict)
    return frozenset(listed) | {name for name, has in capabilities().items() if has is True}
