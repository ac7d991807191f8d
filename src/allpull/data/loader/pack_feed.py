"""The feed of data set `pack`: one pack to train on and one to test on."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from allpull import marks
from allpull.data.loader.bad_samples import BadSamples
from allpull.data.loader.batches import Batch, Plan
from allpull.data.loader.crop import Transform
from allpull.data.loader.decode import form
from allpull.data.loader.feed import HELD, Facts
from allpull.data.loader.pack_batches import PackBatches, Reading
from allpull.data.loader.pool import default_threads
from allpull.data.loader.progressive_resize import growth
from allpull.data.pack.read import Index, Pack, digest, read_index
from allpull.data.pack.statistics import Statistics, statistics
from allpull.data.pack_format import INDEX, Header, Rows
from allpull.errors import BadInput
from allpull.schema.trainspec import DataSpec

TRAIN, TESTS = "train", ("val", "test")
USUAL_PIXELS = 224  # usual since Krizhevsky et al. 2012
RESIZED = 8 / 7  # 256 for 224: the usual margin of the centre crop in evaluation, also since then
LAYOUT = "data.path is a folder with packs train and val (or test), or one pack, with the other in data.test_path"


@dataclass(frozen=True, slots=True, kw_only=True)
class PackPair:
    """Two matching packs, and the transforms of their records."""

    train: Path
    test: Path
    index: Index
    test_index: Index
    transform: Transform
    test_transform: Transform
    channels: int
    classes: int
    multi_label: bool
    test_samples: int


class PackFeed:
    """Batches of a pair of packs.

    Options that trade exactness for speed apply to training. Evaluation decodes exactly, always resizes with Pillow,
    splits the whole test pack over ranks regardless of ``by_files``, and substitutes no sample.
    """

    def __init__(self, data: DataSpec, plan: Plan, *, epochs: int) -> None:
        """Open both packs.

        Raises:
            BadInput: one is missing or damaged, they do not match, or options contradict each other.
            MissingPart: a library that decodes them is not installed.
        """
        packs = inspect_packs(data)
        data = replace(data, threads=data.threads or default_threads())
        marks.metric("data_threads", data.threads)
        self._growth = growth(data.first_size, packs.transform.size, data.growth_epochs, epochs)
        normalisation = _statistics(data, packs)
        plan = Plan(global_batch=plan.global_batch, rank=plan.rank, ranks=plan.ranks, seed=plan.seed)
        self._train = PackBatches(packs.train, plan, packs.transform, _reading(data), packs.index)
        try:
            exact = Reading(threads=data.threads, ahead=data.ahead, held=HELD, resizer="pillow", access=data.access)
            self._test = PackBatches(packs.test, plan, packs.test_transform, exact, packs.test_index)
        except BaseException:
            self._train.close()
            raise
        self._facts = Facts(
            data=f"pack {digest(packs.index)}",
            channels=packs.channels,
            classes=packs.classes,
            multi_label=packs.multi_label,
            pixels=(packs.transform.size, packs.transform.size),
            test_pixels=(packs.test_transform.size, packs.test_transform.size),
            mean=normalisation.mean,
            std=normalisation.std,
            samples=len(self._train),
            test_samples=packs.test_samples,
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

    @property
    def resizer(self) -> str:
        """The library that resizes training images: opencv or pillow."""
        return self._train.resizer

    def pixels(self, epoch: int) -> tuple[int, int]:
        """See ``feed.Feed``."""
        return self._growth.size(epoch), self._growth.size(epoch)

    def training(self, epoch: int, first_step: int = 0) -> Iterator[Batch]:
        """See ``feed.Feed``."""
        return self._train.training(epoch, first_step, size=self._growth.size(epoch))

    def evaluation(self, size: int, *, rank: int, ranks: int) -> Iterator[Batch]:
        """See ``feed.Feed``."""
        return self._test.evaluation(size, rank=rank, ranks=ranks)

    def close(self) -> None:
        """See ``feed.Feed``."""
        self._train.close()
        self._test.close()


def _statistics(data: DataSpec, packs: PackPair) -> Statistics:
    """Mean and standard deviation from ``data``, otherwise from the training pack.

    A pack of an older version has none: then all its shards are opened once to sample its records.
    """
    header, _, _ = packs.index
    mean, std = data.mean or header.mean, data.std or header.std
    if not (mean and std):
        with Pack(packs.train, index=packs.index) as pack:
            own = statistics(pack, channels=packs.channels, threads=data.threads)
        mean, std = mean or own.mean, std or own.std
    for name, numbers in (("mean", mean), ("std", std)):
        if len(numbers) != packs.channels:
            raise BadInput(
                f"data.{name} has {len(numbers)} numbers, and the images have {packs.channels} channels",
                hint="give one per channel, in units of the stored numbers (8 bits: 0 to 255)",
            )
    return Statistics(mean=mean, std=std)


def _reading(data: DataSpec) -> Reading:
    return Reading(
        threads=data.threads,
        ahead=data.ahead,
        held=HELD,
        block=data.block,
        mixed=data.mixed,
        by_files=data.by_files,
        on_odd=data.on_odd,
        odd_limit=data.odd_limit,
        resizer=data.resizer,
        fast=data.fast_decode,
        access=data.access,
        cached=data.cached,
        limit=data.limit,
    )


def inspect_packs(data: DataSpec) -> PackPair:
    """Both packs by their indices, with the transforms of ``data``.

    Raises:
        BadInput: as ``PackFeed``.
    """
    train, test = find_packs(data)
    index, test_index = read_index(train), read_index(test)
    header, rows, _ = index
    test_header, test_rows, _ = test_index
    channels = _checked_format(train, header, rows)
    test_channels = _checked_format(test, test_header, test_rows)
    _check_match(train, header, test, test_header)
    if channels != test_channels:
        raise BadInput(
            f"{train} has {channels[0]} channels of {channels[1]}, {test} {test_channels[0]} of {test_channels[1]}",
            hint="pack both with the same options",
        )
    transform, test_transform = transforms(data, common_side(rows))
    return PackPair(
        train=train,
        test=test,
        index=index,
        test_index=test_index,
        transform=transform,
        test_transform=test_transform,
        channels=channels[0],
        classes=len(header.classes),
        multi_label=header.multi_label,
        test_samples=len(test_rows),
    )


def find_packs(data: DataSpec) -> tuple[Path, Path]:
    """The folders of the training pack and of the test pack.

    Raises:
        BadInput: ``data.path`` or ``data.test_path`` has none.
    """
    if not data.path:
        raise BadInput("data.path is empty, and data.name is 'pack'", hint=LAYOUT)
    path = Path(data.path)
    if not path.is_dir():
        raise BadInput(f"data.path: no folder {path}", hint=LAYOUT)
    if (path / INDEX).exists():
        if not data.test_path:
            raise BadInput(f"{path} is a training pack, and no test pack is given", hint="set data.test_path")
        return path, Path(data.test_path)
    if not (path / TRAIN).is_dir():
        raise BadInput(f"{path} is not a pack and holds no pack {TRAIN}", hint=LAYOUT)
    if data.test_path:
        return path / TRAIN, Path(data.test_path)
    test = next((path / name for name in TESTS if (path / name).is_dir()), None)
    if test is None:
        raise BadInput(f"{path} holds a pack {TRAIN}, but no {' or '.join(TESTS)}", hint=LAYOUT)
    return path / TRAIN, test


def transforms(data: DataSpec, own: int | None) -> tuple[Transform, Transform]:
    """The transforms of training, at full size, and of evaluation; ``own``: the common side of all images.

    Evaluation crops the centre of the resized image; if training uses whole images, so does evaluation, unless
    ``data.test_resize`` is set.

    Raises:
        BadInput: sizes contradict each other.
    """
    if data.shift_pixels:
        raise BadInput("data.shift_pixels is not for packs", hint="set it to 0; data.crop = random also shifts")
    size = data.size or own or USUAL_PIXELS
    test_size = data.test_size or size
    if data.first_size > size:
        raise BadInput(
            f"data.first_size is {data.first_size}, more than the final {size} pixels",
            hint="reduce it, or increase data.size",
        )
    if data.growth_epochs and not data.first_size:
        raise BadInput("data.growth_epochs is set, but data.first_size is not", hint="set both or neither")
    if 0 < data.test_resize < test_size:
        raise BadInput(
            f"data.test_resize is {data.test_resize}, less than the crop of {test_size} pixels",
            hint="increase it, or reduce data.test_size",
        )
    transform = Transform(
        size=size,
        crop="random" if data.crop == "random" else "whole",
        area=(data.min_area, 1.0),
        mirror=data.flip,
        turn=data.turn,
    )
    if data.crop == "whole" and not data.test_resize:
        return transform, Transform(size=test_size, crop="whole")
    return transform, Transform(
        size=test_size, crop="centre", short_side=data.test_resize or round(test_size * RESIZED)
    )


def common_side(rows: Rows) -> int | None:
    """The side of the images, if all are square and of one size."""
    side = int(rows["height"][0])
    return side if bool(((rows["height"] == side) & (rows["width"] == side)).all()) else None


def _checked_format(path: Path, header: Header, rows: Rows) -> tuple[int, str]:
    """Channels and type of a labelled, non-empty pack."""
    if not len(rows):
        raise BadInput(f"{path}: a pack without records", hint="see its skipped.txt")
    if not header.classes:
        raise BadInput(f"{path}: a pack without classes", hint="pack a source with labels")
    unlabelled = 0 if header.multi_label else int(np.count_nonzero(rows["label"] < 0))
    if unlabelled:
        raise BadInput(f"{path}: {unlabelled:,} records have no label", hint="pack a source with labels")
    return form(path, header, rows)


def _check_match(train: Path, header: Header, test: Path, other: Header) -> None:
    """Refuse packs with different classes; a test part may lack the last ones.

    Raises:
        BadInput: they differ.
    """
    if header.multi_label != other.multi_label:
        several = train if header.multi_label else test
        raise BadInput(f"of {train} and {test}, only {several} has several labels per record", hint=LAYOUT)
    shorter = header.classes[: len(other.classes)] == other.classes and not header.multi_label
    if header.classes != other.classes and not shorter:
        raise BadInput(
            f"{test} has other classes than {train}: "
            f"{_class_list(other.classes)} and not {_class_list(header.classes)}",
            hint="pack both from folders with the same classes, or with the same --classes",
        )


def _class_list(classes: tuple[str, ...], shown: int = 4) -> str:
    return f"{len(classes)} ({', '.join(classes[:shown])}{', …' if len(classes) > shown else ''})"
