"""What the trainings of ``trainer_loops.py`` see: pictures in files, or one batch of them again and again."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from allpull.config.load import load_spec
from allpull.data.loader.crop import DRAWS, Transform, views
from allpull.data.loader.open_feed import open_feed
from allpull.data.loader.order import uniforms
from allpull.train.prepare import Prepare

MEAN, STD = torch.tensor([0.485, 0.456, 0.406]), torch.tensor([0.229, 0.224, 0.225])  # of ImageNet
ON_GPU = torch.cuda.is_available()
DEVICE = torch.device("cuda" if ON_GPU else "cpu")
CHANNELS, CLASSES = 3, 4
RATE = 0.001  # low enough that rounding does not lead trainings apart within a few steps
SPARE = 4  # batches that nobody trains on, so that loaders have work until the clock is stopped
PICTURES, ONE_BATCH = "pictures", "one batch"
DATA = (PICTURES, ONE_BATCH)


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """What is trained, on what, and how: ``steps`` are timed, after ``warm_up`` steps that are not.

    ``folder`` has the pictures as files, a folder a class, ``pack`` the same ones packed. ``data`` is one of ``DATA``.
    ``threads`` compute, and ``workers`` load: threads of allpull's, processes of torch's DataLoader. ``sets`` are more
    options of allpull's.
    """

    precision: str
    data: str
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
            f"data.cached={str(self.data == ONE_BATCH).lower()}",
            # a rate is per 256 samples there
            *(f"train.lr={RATE * 256 / self.batch}", "train.schedule=constant", "train.warmup_epochs=0"),
            *(*more, *self.sets),
        ]


class Files(Dataset[tuple[Tensor, int]]):
    """ImageFolder with RandomResizedCrop, RandomHorizontalFlip, ToTensor and Normalize, as torchvision's with Pillow.

    Boxes are drawn as allpull draws them, which is how torchvision does it too, but not from the same numbers.
    """

    def __init__(self, folder: Path, size: int) -> None:
        self._files = sorted(folder.rglob("*.jpg"))
        classes = sorted({path.parent.name for path in self._files})
        self._labels = [classes.index(path.parent.name) for path in self._files]
        self._look = Transform(size=size, mirror=True)

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


def one_batch(setting: Setting) -> tuple[Tensor, Tensor]:
    """The first batch of allpull's epoch, normalised, as a loader of torch's would hand it over.

    On a GPU it stays there, as if the copy were free for others, too; allpull copies its own in each step.
    """
    spec = load_spec(setting.recipe, setting.options())
    feed = open_feed(spec.data, rank=0, ranks=1, global_batch=setting.batch, seed=spec.train.seed, epochs=1)
    try:
        prepare = Prepare(feed.facts, device=torch.device("cpu"), dtype=torch.float32)
        images, targets = prepare(next(iter(feed.training(0))))
        return images.clone(memory_format=torch.contiguous_format).to(DEVICE), targets.clone().to(DEVICE)
    finally:
        feed.close()


def first(items: list[Any]) -> Any:
    """The batch that is the only item."""
    return items[0]


def loader_of(setting: Setting) -> DataLoader[Any]:
    """The pictures as PyTorch's ImageNet example loads them, or one batch of them as if loading were free."""
    if setting.data == ONE_BATCH:
        again: Any = [one_batch(setting)] * (setting.in_all + SPARE)
        return DataLoader(again, batch_size=1, collate_fn=first)
    return files_by(Files(Path(setting.folder), setting.size), setting)


def files_by(data: Dataset[Any], setting: Setting) -> DataLoader[Any]:
    """``data`` in batches, in another order each time, made by processes; page-locked where there is a GPU."""
    return DataLoader(data, batch_size=setting.batch, shuffle=True, num_workers=setting.workers, pin_memory=ON_GPU)
