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
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import torch
from PIL import Image
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

from allpull.config.load import load_spec
from allpull.load.crop import DRAWS, Look, views
from allpull.load.order import uniforms
from allpull.schema.trainspec import ModelSpec
from allpull.train.loop import train
from allpull.train.models.build import build
from allpull.train.precision import allow_tf32
from allpull.train.ranks import join
from loader_peers import MEAN, STD
from stored import ROOT

FRAMEWORKS = ROOT / "build" / "frameworks"
ON_GPU = torch.cuda.is_available()
DEVICE = torch.device("cuda" if ON_GPU else "cpu")
CHANNELS, CLASSES = 3, 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """What is trained, on what, and how: ``steps`` are timed, after ``warm_up`` steps that are not.

    ``folder`` has the pictures as files, a folder a class, ``pack`` the same ones packed. ``threads`` compute, and
    ``workers`` load: threads of allpull's, processes of torch's DataLoader. ``sets`` are more options of allpull's.
    """

    precision: str
    threads: int
    workers: int
    model: str
    size: int
    batch: int
    warm_up: int
    steps: int
    folder: str
    pack: str
    recipe: str
    sets: tuple[str, ...] = ()

    @property
    def in_all(self) -> int:
        """Steps that are made."""
        return self.warm_up + self.steps

    def options(self, *more: str) -> list[str]:
        """Options of allpull's that ask for this, as ``--set`` takes them."""
        return [
            *("data.name=pack", f"data.path={self.pack}", f"data.test_path={self.pack}", f"data.size={self.size}"),
            *("data.flip=true", f"data.threads={self.workers}", f"model.name={self.model}", "train.epochs=1"),
            *(f"train.batch={self.batch}", f"train.precision={self.precision}", f"launch.threads={self.threads}"),
            *(*more, *self.sets),
        ]


@dataclass(frozen=True, slots=True, kw_only=True)
class Rate:
    """How fast the timed steps were; CPU time is of all threads and of the loader's processes, None: not measured."""

    images_per_s: float
    cpu_s_per_image: float | None = None


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

    def rate(self) -> Rate:
        """What was found; all steps must have been made."""
        (begin_s, begin_cpu_s), (end_s, end_cpu_s) = self._read
        images = self._setting.steps * self._setting.batch
        return Rate(images_per_s=images / (end_s - begin_s), cpu_s_per_image=(end_cpu_s - begin_cpu_s) / images)


def _cpu_s() -> float:
    """CPU time of this process, of its children that live and of those that have ended."""
    ended = resource.getrusage(resource.RUSAGE_CHILDREN)
    children_s = ended.ru_utime + ended.ru_stime
    for child in psutil.Process().children():
        times = child.cpu_times()
        children_s += times.user + times.system
    return time.process_time() + children_s


class Files(Dataset[tuple[Tensor, int]]):
    """ImageFolder with RandomResizedCrop, RandomHorizontalFlip, ToTensor and Normalize, as torchvision's with Pillow.

    Boxes are drawn as allpull draws them, which is how torchvision does it too, but not from the same numbers.
    """

    def __init__(self, folder: Path, size: int) -> None:
        self._files = sorted(folder.rglob("*.jpg"))
        classes = sorted({path.parent.name for path in self._files})
        self._labels = [classes.index(path.parent.name) for path in self._files]
        self._look = Look(size=size, mirror=True)

    def __len__(self) -> int:
        return len(self._files)

    def __getitem__(self, number: int) -> tuple[Tensor, int]:
        with Image.open(self._files[number]) as file:
            picture = file.convert("RGB")
        draws = uniforms(0, 0, np.array([number]), DRAWS)
        (view,) = views(self._look, np.array([[picture.height, picture.width]]), draws)
        box, side = view.box, self._look.size
        cut = picture.crop((box.left, box.top, box.left + box.width, box.top + box.height))
        made = cut.resize((side, side), Image.Resampling.BILINEAR)
        if view.mirrored:
            made = made.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
        tensor = torch.from_numpy(np.array(made)).permute(2, 0, 1).contiguous().float().div_(255)
        return tensor.sub_(MEAN[:, None, None]).div_(STD[:, None, None]), self._labels[number]


def loader_of(setting: Setting) -> DataLoader[tuple[Tensor, int]]:
    """The pictures as PyTorch's ImageNet example loads them."""
    files = Files(Path(setting.folder), setting.size)
    return DataLoader(files, batch_size=setting.batch, shuffle=True, num_workers=setting.workers, pin_memory=ON_GPU)


def network_of(setting: Setting) -> nn.Module:
    """The network that all of them train."""
    torch.manual_seed(0)
    pixels = (setting.size, setting.size)
    return build(ModelSpec(name=setting.model), channels=CHANNELS, classes=CLASSES, pixels=pixels)


def sgd(model: nn.Module) -> torch.optim.SGD:
    """The optimizer of PyTorch's ImageNet example."""
    return torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=1e-4)


def ours(setting: Setting, stop: Stopwatch, more: tuple[str, ...] = ()) -> None:
    """The trainer of allpull as it is, by ``train``, in one rank that nobody observes; ``more`` options than all."""
    spec = load_spec(setting.recipe, setting.options(*more))
    with tempfile.TemporaryDirectory() as scratch:
        train(spec, join(setting.threads), Path(scratch), stop)


def example(setting: Setting, stop: Stopwatch, layout: torch.memory_format = torch.contiguous_format) -> None:
    """The loop of PyTorch's ImageNet example, which has its loss and accuracy told in each step."""
    model = network_of(setting).to(DEVICE, memory_format=layout)  # type: ignore[call-overload]  # torch's stubs
    criterion, optimizer = nn.CrossEntropyLoss(), sgd(model)
    loss_sum, right = 0.0, 0.0
    model.train()
    for images, target in loader_of(setting):
        images = images.to(DEVICE, non_blocking=True, memory_format=layout)  # noqa: PLW2901  as it is written there
        target = target.to(DEVICE, non_blocking=True)  # noqa: PLW2901
        with torch.autocast(DEVICE.type, torch.bfloat16, enabled=setting.precision == "bf16"):
            output = model(images)
            loss = criterion(output, target)
        loss_sum += loss.item() * len(images)
        right += (output.argmax(1) == target).sum().item()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if stop():
            break


def lightning(setting: Setting, stop: Stopwatch) -> None:
    """Lightning's Trainer, with nothing logged, saved or drawn."""
    pl = import_module("lightning.pytorch")
    precision = "bf16-mixed" if setting.precision == "bf16" else "32-true"

    class Classifier(pl.LightningModule):  # type: ignore[misc,name-defined]  # installed elsewhere, or not
        def __init__(self) -> None:
            super().__init__()
            self.network, self.criterion = network_of(setting), nn.CrossEntropyLoss()

        def training_step(self, batch: list[Tensor], _: int) -> Any:
            images, target = batch
            return self.criterion(self.network(images), target)

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


def accelerate(setting: Setting, stop: Stopwatch) -> None:
    """The loop of accelerate's own examples."""
    precision = "bf16" if setting.precision == "bf16" else "no"
    accelerator = import_module("accelerate").Accelerator(cpu=not ON_GPU, mixed_precision=precision)
    model, criterion = network_of(setting), nn.CrossEntropyLoss()
    optimizer = sgd(model)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader_of(setting))
    model.train()
    for images, target in loader:
        loss = criterion(model(images), target)
        accelerator.backward(loss)
        optimizer.step()
        optimizer.zero_grad()
        if stop():
            break


def timm(setting: Setting, stop: Stopwatch) -> None:
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
    model.train()
    for images, target in loader:
        with torch.autocast(DEVICE.type, torch.bfloat16, enabled=setting.precision == "bf16"):
            loss = criterion(model(images.contiguous(memory_format=torch.channels_last)), target)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if stop():
            break


LOOPS: dict[str, Callable[[Setting, Stopwatch], None]] = {
    "allpull": ours,
    "allpull, cached batch": partial(ours, more=("data.cached=true",)),
    "example": example,
    "example, channels last": partial(example, layout=torch.channels_last),
    "Lightning": lightning,
    "accelerate": accelerate,
    "timm": timm,
}
"""Way of training → the loop; a cached batch again and again is what allpull would do if data were free."""


def main(name: str, words: str) -> None:
    """Train as ``words`` say, and print the rate."""
    fields = json.loads(words)
    setting = Setting(**{**fields, "sets": tuple(fields["sets"])})
    sys.path.append(str(FRAMEWORKS))  # last: what the environment has itself comes before
    torch.set_num_threads(setting.threads)
    if ON_GPU:
        allow_tf32(setting.precision != "fp32")  # as allpull's fp32 means it, for all of them
    stop = Stopwatch(setting)
    LOOPS[name](setting, stop)
    print(json.dumps(asdict(stop.rate())))


if __name__ == "__main__":
    main(*sys.argv[1:])
