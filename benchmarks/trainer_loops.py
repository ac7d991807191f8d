"""The trainings that ``trainer_peers.py`` measures: one of them in this process, and what its steps took.

    python benchmarks/trainer_loops.py LOOP SETTING

SETTING is a JSON object with the fields of ``Setting``; the last line printed is one with those of ``Rate``. A peer
that is not installed ends the process with its ImportError. Each loop is as its own documentation writes it, for the
same network, data, loss and optimizer, and asks a ``Stopwatch`` after each step whether to stop. Lightning and
accelerate are found in ``build/frameworks`` (`make frameworks`) where the environment has none.
"""

from __future__ import annotations

import json
import resource
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

import psutil
import torch
from torch import Tensor, nn

from allpull.config.load import load_spec
from allpull.schema.trainspec import ModelSpec
from allpull.train.loop import train
from allpull.train.models.build import build
from allpull.train.precision import allow_tf32
from allpull.train.ranks import join
from stored import ROOT
from trainer_data import ON_GPU, RATE, Setting, loader_of

FRAMEWORKS = ROOT / "build" / "frameworks"
DEVICE = torch.device("cuda" if ON_GPU else "cpu")
CHANNELS, CLASSES = 3, 4
SIDE = 2048  # of the matrices whose product shows what the device can do


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


def ours(setting: Setting, stop: Stopwatch, more: tuple[str, ...] = ()) -> Losses:
    """The trainer of allpull as it is, by ``train``, in one rank that nobody observes; ``more`` options than all."""
    spec = load_spec(setting.recipe, setting.options(*more))
    with tempfile.TemporaryDirectory() as scratch:
        return [*train(spec, join(setting.threads), Path(scratch), stop).losses]


def example(setting: Setting, stop: Stopwatch, layout: torch.memory_format = torch.contiguous_format) -> Losses:
    """The loop of PyTorch's ImageNet example, which has its loss and accuracy told in each step."""
    model = network_of(setting).to(DEVICE, memory_format=layout)  # type: ignore[call-overload]  # torch's stubs
    criterion, optimizer = nn.CrossEntropyLoss(), sgd(model)
    losses, right = Losses(), 0.0
    model.train()
    for images, target in loader_of(setting):
        images = images.to(DEVICE, non_blocking=True, memory_format=layout)  # noqa: PLW2901  as it is written there
        target = target.to(DEVICE, non_blocking=True)  # noqa: PLW2901
        with torch.autocast(DEVICE.type, torch.bfloat16, enabled=setting.precision == "bf16"):
            output = model(images)
            loss = criterion(output, target)
        losses.append(loss.item())
        right += (output.argmax(1) == target).sum().item()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if stop():
            break
    return losses


def lightning(setting: Setting, stop: Stopwatch) -> Losses:
    """Lightning's Trainer, with nothing logged, saved or drawn."""
    pl = import_module("lightning.pytorch")
    precision = "bf16-mixed" if setting.precision == "bf16" else "32-true"
    losses = Losses()

    class Classifier(pl.LightningModule):  # type: ignore[misc,name-defined]  # installed elsewhere, or not
        def __init__(self) -> None:
            super().__init__()
            self.network, self.criterion = network_of(setting), nn.CrossEntropyLoss()

        def training_step(self, batch: list[Tensor], _: int) -> Any:
            images, target = batch
            loss = self.criterion(self.network(images), target)
            losses.append(loss.detach())
            return loss

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return sgd(self)

        def on_train_batch_end(self, *_: object) -> None:
            stop()

    trainer = pl.Trainer(
        accelerator="gpu" if ON_GPU else "cpu",
        devices=1,
        precision=precision,
        max_steps=setting.in_all,
        **dict.fromkeys(("logger", "enable_checkpointing", "enable_progress_bar", "enable_model_summary"), False),
    )
    trainer.fit(Classifier(), loader_of(setting))
    return losses


def accelerate(setting: Setting, stop: Stopwatch) -> Losses:
    """The loop of accelerate's own examples."""
    precision = "bf16" if setting.precision == "bf16" else "no"
    accelerator = import_module("accelerate").Accelerator(cpu=not ON_GPU, mixed_precision=precision)
    model, criterion = network_of(setting), nn.CrossEntropyLoss()
    optimizer = sgd(model)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader_of(setting))
    losses = Losses()
    model.train()
    for images, target in loader:
        loss = criterion(model(images), target)
        losses.append(loss.detach())
        accelerator.backward(loss)
        optimizer.step()
        optimizer.zero_grad()
        if stop():
            break
    return losses


def timm(setting: Setting, stop: Stopwatch) -> Losses:
    """The loop and loader of timm's train.py: normalised on the device, channels last, nothing told in between."""
    data, model = import_module("timm.data"), network_of(setting)
    loader = data.create_loader(
        data.ImageDataset(setting.folder),
        input_size=(CHANNELS, setting.size, setting.size),
        batch_size=setting.batch,
        is_training=True,
        color_jitter=0.0,
        num_workers=setting.workers,
        device=DEVICE,
    )
    model.to(DEVICE, memory_format=torch.channels_last)  # type: ignore[call-overload]  # torch's stubs
    criterion, optimizer = nn.CrossEntropyLoss(), sgd(model)
    losses = Losses()
    model.train()
    for images, target in loader:
        with torch.autocast(DEVICE.type, torch.bfloat16, enabled=setting.precision == "bf16"):
            loss = criterion(model(images.contiguous(memory_format=torch.channels_last)), target)
        losses.append(loss.detach())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if stop():
            break
    return losses


def products_per_s(precision: str) -> float:
    """Floating-point operations a second in products of large square matrices, the best of ten, in ``precision``."""
    left, right = (torch.randn(SIDE, SIDE, device=DEVICE) for _ in range(2))
    if precision == "bf16":
        left, right = left.bfloat16(), right.bfloat16()
    best_s = float("inf")
    for _ in range(10):
        begin_s = time.perf_counter()
        left @ right
        if ON_GPU:
            torch.cuda.synchronize()
        best_s = min(best_s, time.perf_counter() - begin_s)
    return 2 * SIDE**3 / best_s


LOOPS: dict[str, Callable[[Setting, Stopwatch], Losses]] = {
    "allpull": ours,
    "allpull, compiled": partial(ours, more=("train.compile=default",)),
    "example": example,
    "example, channels last": partial(example, layout=torch.channels_last),
    "Lightning": lightning,
    "accelerate": accelerate,
    "timm": timm,
}
"""Way of training → the loop, which returns the loss of each step."""


def main(name: str, words: str) -> None:
    """Train as ``words`` say, and print the rate; with ``products`` for a name, that of multiplying matrices."""
    fields = json.loads(words)
    setting = Setting(**{**fields, "sets": tuple(fields["sets"])})
    sys.path.append(str(FRAMEWORKS))  # last: what the environment has itself comes before
    torch.set_num_threads(setting.threads)
    if ON_GPU:
        allow_tf32(setting.precision != "fp32")  # as allpull's fp32 means it, for all of them
    if name == "products":
        print(products_per_s(setting.precision))
        return
    stop = Stopwatch(setting)
    losses = LOOPS[name](setting, stop)
    print(json.dumps(asdict(stop.rate(losses))))


if __name__ == "__main__":
    main(*sys.argv[1:])
