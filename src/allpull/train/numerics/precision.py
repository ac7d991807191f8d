"""The arithmetic of a training step: which numbers the network computes in, and how small gradients survive it.

====== =============================================================================================================
fp32   as torch computes it; on a GPU with TF32 switched off, which torch leaves on in convolutions
tf32   fp32, with products of matrices and convolutions in TF32, which NVIDIA GPUs have since Ampere
bf16   ``torch.autocast`` to bfloat16, whose range is that of fp32: gradients need no scaling
fp16   ``torch.autocast`` to float16, with dynamic loss scaling
o2     the network in float16 but for its norms, single-precision weights in the optimizer, dynamic loss scaling
====== =============================================================================================================

**Loss scaling** is ``torch.amp.GradScaler``: the loss is multiplied by a scale, gradients are divided by it, and where
one of them is infinite or no number the step is left out and the scale halved. Ranks exchange gradients before they
are divided, and a sum with an infinity in it is one for everyone: so all ranks leave out the same steps.

**Host and device.** An optimizer with ``fused=True`` is told on the device to leave a step out. Any other costs one
wait of the host for a GPU in each step, in ``GradScaler.step``, which reads whether there was an infinity. Nothing else
here waits: what is counted stays on the device until ``tell`` or ``state_dict``.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from allpull.errors import BadInput, MissingPart
from allpull.kernel import Tree
from allpull.train.optim.master_weights import Masters

AUTOCAST = {"bf16": torch.bfloat16, "fp16": torch.float16}
SCALED = ("fp16", "o2")
AMPERE = (8, 0)  # compute capability from which NVIDIA GPUs have TF32 and bfloat16

Clip = Callable[[list[nn.Parameter]], object]
"""Scales down the gradients of the parameters that it is given: those that the optimizer moves."""


class Precision:
    """What a training computes in, by ``name`` of ``train.precision``, on ``device``.

    Once, in this order: ``prepare`` the network, share it out, make the optimizer, ``attach`` it. In each step
    ``forward`` and ``backward``, as often as there are parts to accumulate, then whatever exchanges gradients after
    backward, then ``step``.

    Raises:
        MissingPart: the device has no such arithmetic.
    """

    def __init__(self, name: str, device: torch.device) -> None:
        check(name, device)
        if device.type == "cuda":
            allow_tf32(name != "fp32")
        self.name = name
        self.device = device
        self.masters: Masters | None = None
        self._scaler = torch.amp.GradScaler(device.type) if name in SCALED else None
        self._skipped = torch.zeros((), device=device)

    @property
    def scaled(self) -> bool:
        """Whether losses are scaled, and steps left out."""
        return self._scaler is not None

    def prepare(self, model: nn.Module) -> None:
        """Put ``model``, which stands on its device and is not shared out, into its numbers; a collective for ``o2``.

        Raises:
            BadInput: it computes in float64, and that is not what was asked for.
        """
        if self.name != "fp32" and any(parameter.dtype == torch.float64 for parameter in model.parameters()):
            raise BadInput(
                f"train.precision={self.name} is less than model.dtype=float64", hint="leave one of them out"
            )
        if self.name == "o2":
            self.masters = Masters(model)

    def attach(self, optimizer: torch.optim.Optimizer) -> None:
        """Give ``optimizer``, which was made of the network's parameters, the weights that it is to move."""
        if self.masters is not None:
            self.masters.into(optimizer)

    def forward(self, module: nn.Module, images: Tensor) -> Tensor:
        """``module`` of ``images``; the result is float32 in all of the lower precisions, so that losses are."""
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
        """Add the gradients of ``loss`` to those that are there, scaled where there is a scale."""
        torch.autograd.backward(loss if self._scaler is None else self._scaler.scale(loss))

    def step(self, optimizer: torch.optim.Optimizer, clip: Clip | None = None) -> None:
        """One step with the gradients that there are, ``clip`` applied to their true size; afterwards there are none.

        With loss scaling a step with infinities in it changes nothing but the scale. Whether it was one is not
        returned, since the host would have to wait for it; ``tell`` says how many there were.
        """
        if self.masters is not None:
            self.masters.take_gradients()
        if self._scaler is not None:
            self._scaled_step(self._scaler, optimizer, clip)
        else:
            if clip is not None:
                clip(moved(optimizer))
            optimizer.step()
        if self.masters is not None:
            self.masters.give_weights()
        optimizer.zero_grad()

    def _scaled_step(self, scaler: torch.amp.GradScaler, optimizer: torch.optim.Optimizer, clip: Clip | None) -> None:
        if getattr(optimizer, "_step_supports_amp_scaling", False):
            begin_momentum(optimizer)
        scaler.unscale_(optimizer)
        for infinite in scaler._found_inf_per_device(optimizer).values():
            self._skipped += infinite
        if clip is not None:
            clip(moved(optimizer))
        scaler.step(optimizer)
        scaler.update()

    def forget(self, optimizer: torch.optim.Optimizer) -> None:
        """Drop what a step that broke off has left, so that the next one begins anew."""
        if self.masters is not None:
            self.masters.drop_gradients()
        if self._scaler is not None:
            self._scaler._per_optimizer_states.clear()
        optimizer.zero_grad()

    def tell(self) -> dict[str, float]:
        """Metrics: ``loss_scale``, and ``skipped_steps`` so far; empty without scaling. The host waits for a GPU."""
        if self._scaler is None:
            return {}
        return {"loss_scale": self._scaler.get_scale(), "skipped_steps": self._skipped.item()}

    def state_dict(self) -> dict[str, Any]:
        """The scale and its history, as numbers; empty without scaling. Masters are in the network's own state."""
        if self._scaler is None:
            return {}
        state = self._scaler.state_dict()
        return {
            "scale": state["scale"],
            "growth_tracker": state["_growth_tracker"],
            "skipped_steps": int(self._skipped.item()),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from ``state_dict``; from an empty one, of another precision, scaling begins anew.

        Raises:
            BadInput: it is none; nothing was changed.
        """
        if self._scaler is None or not state:
            return
        scale = state.get("scale")
        counts = [state.get(name) for name in ("growth_tracker", "skipped_steps")]
        good = isinstance(scale, float) and math.isfinite(scale) and scale > 0
        if not good or not all(type(count) is int and 0 <= count < 2**31 for count in counts):
            raise BadInput("the checkpoint's state of loss scaling is none", hint="go on from another checkpoint")
        self._scaler.load_state_dict({**self._scaler.state_dict(), "scale": scale, "_growth_tracker": counts[0]})
        self._skipped.fill_(float(state["skipped_steps"]))


def moved(optimizer: torch.optim.Optimizer) -> list[nn.Parameter]:
    """The parameters that ``optimizer`` moves."""
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]


def begin_momentum(optimizer: torch.optim.Optimizer) -> None:
    """Let the momentum of a fused SGD that has none yet begin at 0, which makes the same first step.

    Else its first step takes uninitialised memory for it, and where that step is left out because of an infinity, as
    it often is while the scale is still being found, that memory is what the next step goes on from (seen with torch
    2.13).
    """
    if not isinstance(optimizer, torch.optim.SGD) or optimizer.state:
        return
    for group in optimizer.param_groups:
        for parameter in group["params"] if group["momentum"] else ():
            if parameter.requires_grad:
                optimizer.state[parameter]["momentum_buffer"] = torch.zeros_like(parameter)


def allow_tf32(allowed: bool) -> None:
    """Have this process's GPU products of float32, in matrices and convolutions, in TF32 or not.

    By the older of torch's two ways of saying it: torch.compile (2.13) still asks by it, and refuses a mixture of both.
    """
    torch.set_float32_matmul_precision("high" if allowed else "highest")
    torch.backends.cudnn.allow_tf32 = allowed


def check_here(name: str) -> None:
    """``check`` for a rank of this machine, before there is one.

    Raises:
        MissingPart: its device has no such arithmetic.
    """
    check(name, torch.device("cuda" if torch.cuda.is_available() else "cpu"))


def check(name: str, device: torch.device) -> None:
    """Make sure that ``device`` can compute in ``name``.

    Raises:
        MissingPart: it cannot.
    """
    problem = missing(name, device)
    if problem:
        raise MissingPart(f"train.precision={name}: {problem}", hint=f"take {instead(name)}")


def missing(name: str, device: torch.device) -> str:
    """Why ``device`` cannot compute in ``name``; "" if it can."""
    if name == "tf32" and device.type != "cuda":
        return f"TF32 is a way of NVIDIA GPUs to multiply, and this rank computes on {device.type}"
    if name not in ("tf32", "bf16") or device.type != "cuda" or torch.version.hip:
        return ""
    found = torch.cuda.get_device_capability(device)
    if found >= AMPERE:
        return ""
    what = "TF32" if name == "tf32" else "bfloat16"
    gpu = torch.cuda.get_device_name(device)
    return f"{gpu} has compute capability {found[0]}.{found[1]}, and {what} begins with {AMPERE[0]}.{AMPERE[1]}"


def instead(name: str) -> str:
    """What to take where the device has no ``name``."""
    return "train.precision=fp16, which has loss scaling" if name == "bf16" else "train.precision=fp32"


INSTRUCTIONS = frozenset({"amx_bf16", "avx512_bf16", "avx_ne_convert", "bf16", "svebf16", "sve_bf16"})
"""Products and conversions of bfloat16, as Linux and torch call them: of x86, then of Arm."""


def emulated(name: str, device: torch.device, told: frozenset[str] | None = None) -> str:
    """Why ``train.precision = name`` is slow on ``device``, in a sentence; "": it is not, or nobody knows.

    ``told`` stands for what the CPU is said to have.
    """
    if name != "bf16" or device.type != "cpu":
        return ""
    found = instructions() if told is None else told
    if not found or found & INSTRUCTIONS:
        return ""
    return (
        "train.precision: this CPU has no instructions for bfloat16; bf16 is emulated, and slower than fp32: "
        "--set train.precision=fp32"
    )


def instructions(tree: Tree | None = None) -> frozenset[str]:
    """The instruction sets of this CPU that Linux lists, and those that torch finds; none where neither says any.

    POWER lists none in Linux, and before torch 2.13 other systems have nobody to ask.
    """
    fields = (tree or Tree()).fields("proc/cpuinfo")
    listed = (fields.get("flags") or fields.get("Features") or "").split()
    ask = getattr(torch.cpu, "get_capabilities", dict)
    return frozenset(listed) | {name for name, has in ask().items() if has is True}
