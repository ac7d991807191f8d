"""The trainings of others, each as its own documentation writes it, in our words, for ``trainer_loops.py``.

All have the network, data, loss and optimizer that ``trainer_shared.py`` gives them, and ask a ``Stopwatch`` after each
step whether to stop. What they choose themselves stays their choice: layout, kind of mixed precision, whether cuDNN
tries its convolutions out, and what is read from the device in each step.
"""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from trainer_data import CHANNELS, CLASSES, DEVICE, MEAN, ON_GPU, ONE_BATCH, STD, Setting, files_by, loader_of
from trainer_shared import Losses, Stopwatch, network_of, sgd


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
    torch.backends.cudnn.benchmark = True
    data, model = import_module("timm.data"), network_of(setting)
    loader = loader_of(setting)
    if setting.data != ONE_BATCH:
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


def torchvision(setting: Setting, stop: Stopwatch) -> Losses:
    """The loop of torchvision's reference for classification, with its ``--amp`` where mixed precision is asked for.

    That is float16 with loss scaling. Copies wait for the device, and in each step its log reads the loss and two
    accuracies. Network, folder and transforms are torchvision's where that can be imported, else those of all ways.
    """
    torch.backends.cudnn.benchmark = True
    mixed = setting.precision == "bf16"
    model = _torchvision_network(setting).to(DEVICE)
    criterion, optimizer = nn.CrossEntropyLoss(), sgd(model)
    scaler = torch.amp.GradScaler(DEVICE.type, enabled=mixed)
    losses, told = Losses(), list[tuple[float, ...]]()
    model.train()
    for images, target in _torchvision_loader(setting):
        images, target = images.to(DEVICE), target.to(DEVICE)  # noqa: PLW2901  as it is written there
        with torch.autocast(DEVICE.type, torch.float16, enabled=mixed):
            output = model(images)
            loss = criterion(output, target)
        optimizer.zero_grad()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        losses.append(loss.item())
        told.append(tuple(right.item() for right in _right_within(output, target, (1, 5))))
        if stop():
            break
    return losses


def _right_within(output: Tensor, target: Tensor, guesses: tuple[int, ...]) -> list[Tensor]:
    """For each number the share of ``target`` [n] that is among so many first guesses of ``output`` [n, classes]."""
    most = min(max(guesses), output.shape[1])
    hit = output.topk(most, dim=1).indices == target[:, None]
    return [hit[:, :count].any(1).float().mean() for count in guesses]


def _torchvision_network(setting: Setting) -> nn.Module:
    try:
        models = import_module("torchvision.models")
    except (ImportError, RuntimeError):  # its compiled half is for another torch
        return network_of(setting)
    torch.manual_seed(0)
    network: nn.Module = models.get_model(setting.model, num_classes=CLASSES)
    return network


def _torchvision_loader(setting: Setting) -> Any:
    try:
        folders, transforms = (import_module(f"torchvision.{name}") for name in ("datasets", "transforms"))
    except (ImportError, RuntimeError):
        return loader_of(setting)
    if setting.data == ONE_BATCH:
        return loader_of(setting)
    steps = [transforms.RandomResizedCrop(setting.size), transforms.RandomHorizontalFlip(), transforms.PILToTensor()]
    steps += [transforms.ConvertImageDtype(torch.float), transforms.Normalize(MEAN.tolist(), STD.tolist())]
    return files_by(folders.ImageFolder(str(Path(setting.folder)), transforms.Compose(steps)), setting)
