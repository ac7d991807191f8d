"""Training steps whose parts are timed: forward, backward, optimizer, on a CPU or an accelerator.

On an accelerator the parts are timed by events, without synchronisation between them: steps follow each other as in a
training. The host's time to issue a step is measured separately; if it is longer, the step is launch-bound.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn
from torch.nn import functional

LOWER = {"bf16": torch.bfloat16, "fp16": torch.float16}
RATE = 1e-6  # learning rate: weights must stay finite for any data; an update takes the same time as any other


@dataclass(slots=True)
class Moments:
    """Moments of the device, and of the host; seconds between them once the device has done its work."""

    device: torch.device
    marks: list[object] = field(default_factory=list)
    host_s: list[float] = field(default_factory=list)

    def mark(self) -> None:
        """Now: when the device will have done what it was given until here."""
        self.host_s.append(time.perf_counter())
        if self.device.type == "cuda":
            event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]  # torch's
            event.record()
            self.marks.append(event)

    def between(self) -> list[float]:
        """Seconds from each moment to the next, of the device."""
        if self.device.type != "cuda":
            return [after - before for before, after in zip(self.host_s, self.host_s[1:], strict=False)]
        torch.cuda.synchronize(self.device)
        pairs = zip(self.marks, self.marks[1:], strict=False)
        return [before.elapsed_time(after) / 1e3 for before, after in pairs]  # type: ignore[attr-defined]  # events


class Trained:
    """A model with one batch of noise, which it is trained on again and again."""

    def __init__(self, model: nn.Module, *, images: Tensor, classes: int, precision: str) -> None:
        self.model, self.device = model, images.device
        self._precision = precision
        self._images = images
        self._targets = torch.randint(classes, (len(images),), device=images.device)
        self._optimizer = sgd(model, fused=self.device.type == "cuda")
        self._scaler = torch.amp.GradScaler(self.device.type, enabled=precision == "fp16")

    def step(self, mark: Callable[[], None]) -> None:
        """One step; ``mark`` is called as it begins and after forward, backward and optimizer."""
        mark()
        with self._forward():
            loss = functional.cross_entropy(self.model(self._images), self._targets)
        mark()
        self._scaler.scale(loss).backward()  # type: ignore[no-untyped-call]  # torch's
        mark()
        self._scaler.step(self._optimizer)
        self._scaler.update()
        self._optimizer.zero_grad(set_to_none=True)
        mark()

    def _forward(self) -> AbstractContextManager[object]:
        lower = LOWER.get(self._precision)
        return torch.autocast(self.device.type, dtype=lower) if lower else nullcontext()


def sgd(model: nn.Module, *, fused: bool) -> torch.optim.SGD:
    """SGD with momentum in the trainer's form: ``fused`` on a GPU, one tensor at a time on a CPU.

    With loss scaling any other form than the fused one asks the device, within the step, whether to leave it out: the
    host would wait for forward and backward there, and every step seem launch-bound.
    """
    optimizer = torch.optim.SGD(model.parameters(), lr=RATE, momentum=0.9, fused=fused, foreach=False)
    for parameter in model.parameters():
        # a fused first step that is left out, as often while the scale is being found, leaves its momentum random
        if parameter.requires_grad:
            optimizer.state[parameter]["momentum_buffer"] = torch.zeros_like(parameter)
    return optimizer


def set_precision(precision: str) -> None:
    """Let matrix products of 32-bit numbers be done in TF32, or not."""
    torch.backends.cuda.matmul.allow_tf32 = precision == "tf32"
    torch.backends.cudnn.allow_tf32 = precision == "tf32"


def noise(size: tuple[int, int, int, int], device: torch.device) -> Tensor:
    """Images of noise in channels-last memory format, as in the trainer."""
    return torch.randn(size, device=device).contiguous(memory_format=torch.channels_last)


def matmul_flop_per_s(precision: str, device: torch.device, seconds: float) -> float:
    """Floating-point operations per second of a large square matrix product: the practical peak of the hardware."""
    set_precision(precision)
    side = 8192 if device.type == "cuda" else 1024
    left = torch.randn(side, side, device=device, dtype=LOWER.get(precision, torch.float32))
    torch.mm(left, left)
    best_s, end = float("inf"), time.perf_counter() + seconds
    while time.perf_counter() < end:
        moments = Moments(device)
        moments.mark()
        torch.mm(left, left)
        moments.mark()
        best_s = min(best_s, *moments.between())
    return 2 * side**3 / best_s
