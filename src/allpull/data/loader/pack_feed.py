"""A pack to train on and one to test on, as the source of a rank's batches: the data set `pack`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from allpull import marks
from allpull.data.loader.bad_samples import Odd
from allpull.data.loader.batches import Batch, Plan
from allpull.data.loader.crop import Look
from allpull.data.loader.decode import form
from allpull.data.loader.feed import HELD, Facts
from allpull.data.loader.pack_batches import PackedSource, Reading
from allpull.data.loader.pool import usual_threads
from allpull.data.loader.progressive_resize import growth
from allpull.data.pack.read import Index, Pack, digest, read_index
from allpull.data.pack.statistics import Statistics, statistics
from allpull.data.pack_format import INDEX, Header, Rows
from allpull.errors import BadInput
from allpull.schema.trainspec import DataSpec

TRAIN, TESTS = "train", ("val", "test")
USUAL_PIXELS = 224  # of networks for photographs since Krizhevsky et al. 2012
RESIZED = 8 / 7  # 256 for 224: what is cut off at the edges of photographs in evaluation, there too
LAYOUT = "data.path is a folder with the packs train and val (or test), or a pack, with the other in data.test_path"


@dataclass(frozen=True, slots=True, kw_only=True)
class PackSet:
    """Two packs that belong together, and what becomes of the records of each."""

    train: Path
    test: Path
    index: Index
    test_index: Index
    look: Look
    test_look: Look
    channels: int
    classes: int
    multi_label: bool
    test_samples: int


class PackFeed:
    """Batches of a pair of packs.

    Options that trade exactness for speed are for training. Evaluation decodes exactly, resizes by Pillow whatever is
    installed, shares the whole test pack out whatever ``by_files`` says, and puts no sample in another's place.
    """

    def __init__(self, data: DataSpec, plan: Plan, *, epochs: int) -> None:
        """Open both packs.

        Raises:
            BadInput: one is missing or damaged, they do not belong together, or options contradict each other.
            MissingPart: a library that decodes them is not installed.
        """
        found = examine(data)
        data = replace(data, threads=data.threads or usual_threads())
        marks.metric("data_threads", data.threads)
        self._growth = growth(data.first_size, found.look.size, data.growth_epochs, epochs)
        normal = _statistics(data, found)
        dealt = Plan(global_batch=plan.global_batch, rank=plan.rank, ranks=plan.ranks, seed=plan.seed)
        self._train = PackedSource(found.train, dealt, found.look, _reading(data), found.index)
        try:
            exact = Reading(threads=data.threads, ahead=data.ahead, held=HELD, resizer="pillow", access=data.access)
            self._test = PackedSource(found.test, dealt, found.test_look, exact, found.test_index)
        except BaseException:
            self._train.close()
            raise
        self._facts = Facts(
            data=f"pack {digest(found.index)}",
            channels=found.channels,
            classes=found.classes,
            multi_label=found.multi_label,
            pixels=(found.look.size, found.look.size),
            test_pixels=(found.test_look.size, found.test_look.size),
            mean=normal.mean,
            std=normal.std,
            samples=len(self._train),
            test_samples=found.test_samples,
        )

    @property
    def facts(self) -> Facts:
        """See ``facts.Feed``."""
        return self._facts

    @property
    def steps(self) -> int:
        """See ``facts.Feed``."""
        return self._train.steps

    @property
    def odd(self) -> Mapping[str, Odd]:
        """See ``facts.Feed``."""
        return {"train": self._train.odd, "test": self._test.odd}

    @property
    def resizer(self) -> str:
        """What training resizes by: opencv or pillow."""
        return self._train.resizer

    def pixels(self, epoch: int) -> tuple[int, int]:
        """See ``facts.Feed``."""
        return self._growth.size(epoch), self._growth.size(epoch)

    def training(self, epoch: int, first_step: int = 0) -> Iterator[Batch]:
        """See ``facts.Feed``."""
        return self._train.training(epoch, first_step, size=self._growth.size(epoch))

    def evaluation(self, size: int, *, rank: int, ranks: int) -> Iterator[Batch]:
        """See ``facts.Feed``."""
        return self._test.evaluation(size, rank=rank, ranks=ranks)

    def close(self) -> None:
        """See ``facts.Feed``."""
        self._train.close()
        self._test.close()


def _statistics(data: DataSpec, found: PackSet) -> Statistics:
    """Mean and deviation as ``data`` says them, else as the pack to train on does.

    A pack of an older allpull says none: all its shards are opened then, once, to look at a sample of its records.
    """
    header, _, _ = found.index
    mean, std = data.mean or header.mean, data.std or header.std
    if not (mean and std):
        with Pack(found.train, index=found.index) as pack:
            own = statistics(pack, channels=found.channels, threads=data.threads)
        mean, std = mean or own.mean, std or own.std
    for name, numbers in (("mean", mean), ("std", std)):
        if len(numbers) != found.channels:
            raise BadInput(
                f"data.{name} has {len(numbers)} numbers, and the pictures have {found.channels} channels",
                hint="give one a channel, in units of the stored numbers (of 8 bits: 0 to 255)",
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


def examine(data: DataSpec) -> PackSet:
    """Both packs by their indices, and how ``data`` wants their records seen.

    Raises:
        BadInput: as ``PackFeed``.
    """
    train, test = find(data)
    index, test_index = read_index(train), read_index(test)
    header, rows, _ = index
    test_header, test_rows, _ = test_index
    channels = _agreed(train, header, rows)
    test_channels = _agreed(test, test_header, test_rows)
    _belong_together(train, header, test, test_header)
    if channels != test_channels:
        raise BadInput(
            f"{train} has {channels[0]} channels of {channels[1]}, {test} {test_channels[0]} of {test_channels[1]}",
            hint="pack both in the same way",
        )
    look, test_look = looks(data, own_side(rows))
    return PackSet(
        train=train,
        test=test,
        index=index,
        test_index=test_index,
        look=look,
        test_look=test_look,
        channels=channels[0],
        classes=len(header.classes),
        multi_label=header.multi_label,
        test_samples=len(test_rows),
    )


def find(data: DataSpec) -> tuple[Path, Path]:
    """The folders of the pack to train on and of the pack to test on.

    Raises:
        BadInput: there are none where ``data.path`` and ``data.test_path`` say.
    """
    if not data.path:
        raise BadInput("data.path is empty, and data.name is 'pack'", hint=LAYOUT)
    path = Path(data.path)
    if not path.is_dir():
        raise BadInput(f"data.path: no folder {path}", hint=LAYOUT)
    if (path / INDEX).exists():
        if not data.test_path:
            raise BadInput(f"{path} is a pack to train on, and none to test on is given", hint="set data.test_path")
        return path, Path(data.test_path)
    if not (path / TRAIN).is_dir():
        raise BadInput(f"{path} is no pack and holds no pack {TRAIN}", hint=LAYOUT)
    if data.test_path:
        return path / TRAIN, Path(data.test_path)
    test = next((path / name for name in TESTS if (path / name).is_dir()), None)
    if test is None:
        raise BadInput(f"{path} holds a pack {TRAIN}, but no {' or '.join(TESTS)} beside it", hint=LAYOUT)
    return path / TRAIN, test


def looks(data: DataSpec, own: int | None) -> tuple[Look, Look]:
    """How pictures are seen in training, at their full size, and in evaluation; ``own``: the side they all have.

    Evaluation takes the middle of the resized picture; where training sees whole pictures, so does evaluation, unless
    ``data.test_resize`` says otherwise.

    Raises:
        BadInput: sizes contradict each other.
    """
    if data.shift_pixels:
        raise BadInput("data.shift_pixels is not for packs", hint="set it to 0; data.crop = random shifts as well")
    size = data.size or own or USUAL_PIXELS
    test_size = data.test_size or size
    if data.first_size > size:
        raise BadInput(
            f"data.first_size is {data.first_size}, more than the {size} pixels that it grows to",
            hint="make it smaller, or data.size larger",
        )
    if data.growth_epochs and not data.first_size:
        raise BadInput("data.growth_epochs is given, and data.first_size is not", hint="give both, or neither")
    if 0 < data.test_resize < test_size:
        raise BadInput(
            f"data.test_resize is {data.test_resize}, less than the {test_size} pixels that are cut out of it",
            hint="make it larger, or data.test_size smaller",
        )
    look = Look(
        size=size,
        crop="random" if data.crop == "random" else "whole",
        area=(data.min_area, 1.0),
        mirror=data.flip,
        turn=data.turn,
    )
    if data.crop == "whole" and not data.test_resize:
        return look, Look(size=test_size, crop="whole")
    return look, Look(size=test_size, crop="centre", short_side=data.test_resize or round(test_size * RESIZED))


def own_side(rows: Rows) -> int | None:
    """The side of the pictures, where all are square and of one size."""
    side = int(rows["height"][0])
    return side if bool(((rows["height"] == side) & (rows["width"] == side)).all()) else None


def _agreed(path: Path, header: Header, rows: Rows) -> tuple[int, str]:
    """Channels and type of a pack that can be learned from, or an error."""
    if not len(rows):
        raise BadInput(f"{path}: a pack without records", hint="see its skipped.txt")
    if not header.classes:
        raise BadInput(f"{path}: a pack without classes", hint="there is nothing to learn: pack a source with labels")
    unlabelled = 0 if header.multi_label else int(np.count_nonzero(rows["label"] < 0))
    if unlabelled:
        raise BadInput(f"{path}: {unlabelled:,} records have no label", hint="pack a source with labels")
    return form(path, header, rows)


def _belong_together(train: Path, header: Header, test: Path, other: Header) -> None:
    """Refuse packs whose labels mean different things; a test part may lack the last classes.

    Raises:
        BadInput: they do.
    """
    if header.multi_label != other.multi_label:
        several = train if header.multi_label else test
        raise BadInput(f"of {train} and {test}, only {several} has several labels a record", hint=LAYOUT)
    shorter = header.classes[: len(other.classes)] == other.classes and not header.multi_label
    if header.classes != other.classes and not shorter:
        raise BadInput(
            f"{test} has other classes than {train}: {_words(other.classes)} and not {_words(header.classes)}",
            hint="pack both from folders with the same classes, or with the same --classes",
        )


def _words(classes: tuple[str, ...], shown: int = 4) -> str:
    return f"{len(classes)} ({', '.join(classes[:shown])}{', …' if len(classes) > shown else ''})"
