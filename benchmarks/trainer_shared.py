"""What all trainings that ``trainer_peers.py`` compares have in common: network, optimizer, and a stopwatch."""

from __future__ import annotations

import resource
import time
from collections.abc import Sequence
from dataclasses import dataclass

import psutil
import torch
from torch import Tensor, nn

from allpull.schema.trainspec import ModelSpec
from allpull.train.models.build import build
from trainer_data import CHANNELS, CLASSES, ON_GPU, RATE, Setting


@dataclass(frozen=True, slots=True, kw_only=True)
class Rate:
    """How fast the timed steps were, and the losses of the first step and the last; None: not measured.

    CPU time is of all threads and of the loader's processes.
    """

    images_per_s: float
    cpu_s_per_image: float | None = None
    first_loss: float | None = None
    last_loss: float | None = None


Losses = list[Tensor | float]
"""Of each step; on a GPU they stay there."""


class Stopwatch:
    """To be called after each step: reads the clocks around the timed ones, and says whether they are over."""

    def __init__(self, setting: Setting) -> None:
        self._setting = setting
        self._ended = 0
        self._read: list[tuple[float, float]] = []

    def __call__(self) -> bool:
        """Whether to stop now."""
        self._ended += 1
        if self._ended in (self._setting.warm_up, self._setting.in_all):
            if ON_GPU:
                torch.cuda.synchronize()
            self._read.append((time.perf_counter(), _cpu_s()))
        return self._ended >= self._setting.in_all

    def rate(self, losses: Sequence[Tensor | float]) -> Rate:
        """What was found; all steps must have been made, of ``losses``."""
        (begin_s, begin_cpu_s), (end_s, end_cpu_s) = self._read
        images = self._setting.steps * self._setting.batch
        return Rate(
            images_per_s=images / (end_s - begin_s),
            cpu_s_per_image=(end_cpu_s - begin_cpu_s) / images,
            first_loss=float(losses[0]),
            last_loss=float(losses[-1]),
        )


def _cpu_s() -> float:
    """CPU time of this process, of its children that live and of those that have ended."""
    ended = resource.getrusage(resource.RUSAGE_CHILDREN)
    children_s = ended.ru_utime + ended.ru_stime
    for child in psutil.Process().children():
        times = child.cpu_times()
        children_s += times.user + times.system
    return time.process_time() + children_s


def network_of(setting: Setting) -> nn.Module:
    """The network that all of them train."""
    torch.manual_seed(0)
    pixels = (setting.size, setting.size)
    return build(ModelSpec(name=setting.model), channels=CHANNELS, classes=CLASSES, pixels=pixels)


def sgd(model: nn.Module) -> torch.optim.SGD:
    """The optimizer of PyTorch's ImageNet example, at a lower rate."""
    return torch.optim.SGD(model.parameters(), lr=RATE, momentum=0.9, weight_decay=1e-4)
