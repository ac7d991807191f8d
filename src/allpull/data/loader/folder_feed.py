"""The feed of data set `imagefolder`: class folders of image files to train on, and others to test on."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from allpull import marks
from allpull.data.loader.bad_samples import BadSamples
from allpull.data.loader.batches import Batch, Plan
from allpull.data.loader.crop import Transform
from allpull.data.loader.feed import Facts
from allpull.data.loader.folder_batches import FileReading, FolderBatches, ImageFiles
from allpull.data.loader.pack_feed import TESTS, TRAIN, transforms
from allpull.data.pack_format import INDEX
from allpull.data.sources.imagefolder import class_folders, image_paths
from allpull.errors import BadInput
from allpull.schema.trainspec import DataSpec

# of ImageNet, in units of bytes: torchvision's, which its examples and weights use
IMAGENET_MEAN, IMAGENET_STD = (123.675, 116.28, 103.53), (58.395, 57.12, 57.375)
LAYOUT = "data.path is a folder with train and val (or test), or the training part, with the other in data.test_path"


@dataclass(frozen=True, slots=True, kw_only=True)
class FolderPair:
    """Two matching image folders, and the transforms of their images."""

    train: Path
    test: Path
    classes: list[str]
    transform: Transform
    test_transform: Transform
    mean: tuple[float, ...]
    std: tuple[float, ...]


class FolderFeed:
    """Batches of a pair of image folders, each file read on its own in each epoch.

    Images are resized with Pillow's antialiased filter, as in torchvision, unless ``data.resizer`` says otherwise, and
    in evaluation always. Files are listed by each rank, as by any program that uses torchvision's ImageFolder.
    """

    def __init__(self, data: DataSpec, plan: Plan) -> None:
        """List the files; worker processes start with the first batch.

        Raises:
            BadInput: a folder is missing or has no images, they do not match, or options contradict each other.
            MissingPart: a library that decodes images is not installed.
        """
        folders = inspect_folders(data)
        plan = Plan(global_batch=plan.global_batch, rank=plan.rank, ranks=plan.ranks, seed=plan.seed)
        reading = FileReading(
            workers=data.workers,
            ahead=data.ahead,
            on_odd=data.on_odd,
            odd_limit=data.odd_limit,
            resizer="pillow" if data.resizer == "auto" else data.resizer,
            cached=data.cached,
        )
        marks.metric("data_workers", data.workers)
        train, test = list_files(folders.train, folders.classes, data.limit), list_files(folders.test, folders.classes)
        exact = replace(reading, on_odd="skip", odd_limit=1.0, resizer="pillow", cached=False)
        self._train = FolderBatches(train, plan, folders.transform, reading)
        self._test = FolderBatches(test, plan, folders.test_transform, exact)
        self._facts = Facts(
            data=f"imagefolder {train.digest(folders.train):08x}",
            channels=3,
            classes=len(folders.classes),
            multi_label=False,
            pixels=(folders.transform.size, folders.transform.size),
            test_pixels=(folders.test_transform.size, folders.test_transform.size),
            mean=folders.mean,
            std=folders.std,
            samples=len(train),
            test_samples=len(test),
        )

    @property
    def facts(self) -> Facts:
        """See ``feed.Feed``."""
        return self._facts

    @property
    def steps(self) -> int:
        """See ``feed.Feed``."""
        return self._train.steps

    @property
    def bad_samples(self) -> Mapping[str, BadSamples]:
        """See ``feed.Feed``."""
        return {"train": self._train.bad_samples, "test": self._test.bad_samples}

    def pixels(self, epoch: int) -> tuple[int, int]:  # noqa: ARG002  the same in all epochs
        """See ``feed.Feed``."""
        return self._facts.pixels

    def training(self, epoch: int, first_step: int = 0) -> Iterator[Batch]:
        """See ``feed.Feed``."""
        return self._train.training(epoch, first_step)

    def evaluation(self, size: int, *, rank: int, ranks: int) -> Iterator[Batch]:
        """See ``feed.Feed``."""
        return self._test.evaluation(size, rank=rank, ranks=ranks)

    def close(self) -> None:
        """See ``feed.Feed``."""
        self._train.close()
        self._test.close()


def inspect_folders(data: DataSpec) -> FolderPair:
    """Both parts, with the transforms of ``data``; no file is listed.

    Raises:
        BadInput: as ``FolderFeed``.
    """
    train, test = find_folders(data)
    classes, test_classes = class_folders(train), class_folders(test)
    unknown = sorted(set(test_classes) - set(classes))
    if unknown:
        raise BadInput(
            f"{test} has {len(unknown):,} class folders that {train} does not have: {', '.join(unknown[:4])}",
            hint="both parts need the same class folders",
        )
    transform, test_transform = transforms(data, None)
    mean, std = data.mean or IMAGENET_MEAN, data.std or IMAGENET_STD
    for name, numbers in (("mean", mean), ("std", std)):
        if len(numbers) != len(IMAGENET_MEAN):
            raise BadInput(
                f"data.{name} has {len(numbers)} numbers, and the images have 3 channels",
                hint="give one per channel, in units of the stored numbers (0 to 255)",
            )
    return FolderPair(
        train=train,
        test=test,
        classes=classes,
        transform=transform,
        test_transform=test_transform,
        mean=mean,
        std=std,
    )


def find_folders(data: DataSpec) -> tuple[Path, Path]:
    """The folders of the training part and of the test part.

    Raises:
        BadInput: ``data.path`` or ``data.test_path`` has none.
    """
    if not data.path:
        raise BadInput("data.path is empty, and data.name is 'imagefolder'", hint=LAYOUT)
    path = Path(data.path)
    train = path / TRAIN if (path / TRAIN).is_dir() else path
    if not train.is_dir():
        raise BadInput(f"data.path: no folder {path}", hint=LAYOUT)
    if (train / INDEX).exists():
        raise BadInput(f"{train} is a pack", hint="set data.name = pack")
    if data.test_path:
        return train, Path(data.test_path)
    test = next((path / name for name in TESTS if (path / name).is_dir()), None) if train != path else None
    if test is None:
        raise BadInput(f"{path} has no {TRAIN} with {' or '.join(TESTS)} next to it", hint=LAYOUT)
    return train, test


def list_files(root: Path, classes: list[str], limit: int = 0) -> ImageFiles:
    """The images of ``root``, each labelled by the position of its class folder in ``classes``.

    ``limit``: only this many, evenly spaced, so that all classes keep their shares; 0: all.

    Raises:
        BadInput: there is none, or a folder cannot be read.
    """
    listed = [
        (path, label)
        for label, name in enumerate(classes)
        if (root / name).is_dir()
        for path in image_paths(f"{root}/{name}")
    ]
    if not listed:
        raise BadInput(f"{root}: no images in its {len(classes):,} class folders", hint="such as class/1.jpg")
    if 0 < limit < len(listed):
        listed = [listed[index * len(listed) // limit] for index in range(limit)]
    return ImageFiles((path for path, _ in listed), (label for _, label in listed))
