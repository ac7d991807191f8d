"""The input of the loader probe: a pack, image files, or a data set in memory, loaded as in the trainer."""

from __future__ import annotations

import os
from collections.abc import Generator, Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import chain, count
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import psutil

from allpull.data.datasets import dataset
from allpull.data.loader.batches import Batch, Plan, training_batches
from allpull.data.loader.crop import Transform
from allpull.data.loader.folder_batches import FileReading, FolderBatches, ImageFiles
from allpull.data.loader.folder_feed import list_files
from allpull.data.loader.order import quality
from allpull.data.loader.pack_batches import PackBatches, Reading
from allpull.data.loader.pack_feed import TRAIN
from allpull.data.loader.sharding import Sharding
from allpull.data.pack.read import Pack, read_index, split_shards
from allpull.data.pack_format import INDEX, RAW, shard_name
from allpull.data.sources.imagefolder import class_folders
from allpull.errors import BadInput
from allpull.units import show_bytes

USED_OF_PACKS = (
    *("size", "crop", "min_area", "flip", "turn", "ahead", "block", "mixed"),
    *("by_files", "on_odd", "access", "resizer", "fast_decode"),
)
USED_OF_FILES = ("size", "crop", "min_area", "flip", "turn", "ahead", "on_odd", "resizer", "limit")
USED_IN_MEMORY = ("path", "shift_pixels", "flip")
"""Options of ``schema.trainspec.DataSpec`` that change how samples are loaded."""

FILES = "files"
"""The kind of a folder of image files, which worker processes read one by one."""

MOST_FILES = 20_000  # whose pages are dropped and looked at one by one, which takes seconds
JPEG_SIZE = 224  # pixels per side, as usual for ImageNet
CHANCE_SEED = 0
MOST_OF_MEMORY = 0.5  # share of the available memory that one rank's batches may take


class Source(Protocol):
    """Makes batches."""

    def training(self, epoch: int) -> Iterator[Batch]:
        """The batches of ``epoch``."""
        ...


class InMemory:
    """The training part of a data set of ``DATASETS``; batches are made on demand."""

    def __init__(self, part: dataset.Part, plan: Plan) -> None:
        self._part, self._plan = part, plan

    def training(self, epoch: int) -> Iterator[Batch]:
        """The batches of ``epoch``."""
        return training_batches(self._part, self._plan, epoch=epoch)


@dataclass(frozen=True, slots=True, kw_only=True)
class LoaderInput:
    """The data to load: ``options`` of ``DataSpec``, and ``shards``, the files that are read (none: data in memory).

    ``images`` are these files with their labels where each holds one sample.
    """

    name: str
    kind: str
    records: int
    bytes_per_sample: float
    size: int
    batch: int
    shards: tuple[Path, ...]
    options: Mapping[str, Any]
    images: ImageFiles | None = None

    def open(self, *, rank: int, ranks: int, threads: int) -> PackBatches | FolderBatches | InMemory:
        """The source of rank ``rank`` of ``ranks``, each with batches of ``batch``; ``threads`` are workers for files.

        Raises:
            AllpullError: the data are damaged, or a library is missing.
        """
        options = self.options
        if not self.shards:
            shift, flip = options["shift_pixels"], options["flip"]
            plan = Plan(global_batch=self.batch * ranks, rank=rank, ranks=ranks, seed=0, shift_pixels=shift, flip=flip)
            return InMemory(dataset.read(self.name, options["path"]).train, plan)
        plan = Plan(global_batch=self.batch * ranks, rank=rank, ranks=ranks, seed=0)
        transform = Transform(
            size=self.size,
            crop=options["crop"],
            area=(options["min_area"], 1.0),
            mirror=options["flip"],
            turn=options["turn"],
        )
        if self.images is not None:
            own = {name: options[name] for name in ("ahead", "on_odd", "resizer")}
            own["resizer"] = "pillow" if own["resizer"] == "auto" else own["resizer"]  # as the trainer
            return FolderBatches(self.images, plan, transform, FileReading(workers=threads, **own))
        reading = Reading(
            threads=threads,
            ahead=options["ahead"],
            fast=options["fast_decode"],
            **{name: options[name] for name in ("block", "mixed", "by_files", "on_odd", "resizer", "access")},
        )
        return PackBatches(self.name, plan, transform, reading)


def describe_input(name: str, options: Mapping[str, Any], *, batch: int, ranks: int) -> LoaderInput:
    """The input called ``name``: the folder of a pack, one of class folders of images, or a name of ``DATASETS``.

    Raises:
        BadInput: it is neither, it is damaged, it has too few files for ``ranks``, or memory would not suffice.
    """
    if (Path(name) / INDEX).exists():
        return _packed(name, options, batch, ranks)
    if name in dataset.DATASETS.names():
        return _in_memory(name, options, batch)
    if Path(name).is_dir():
        return _files(name, options, batch)
    known = ", ".join(dataset.DATASETS.names())
    raise BadInput(
        f"{name}: neither a pack, nor a folder, nor the name of a data set",
        hint=f"allpull pack makes packs; a folder has one folder of images per class; data sets: {known}",
    )


def _files(name: str, options: Mapping[str, Any], batch: int) -> LoaderInput:
    """Class folders of images, or the part ``train`` of a folder that has one; at most ``data.limit`` files of them."""
    root = Path(name, TRAIN) if Path(name, TRAIN).is_dir() else Path(name)
    images = list_files(root, class_folders(root), options["limit"] or MOST_FILES)
    paths = tuple(Path(os.fsdecode(images.path(index))) for index in range(len(images)))
    size = options["size"] or JPEG_SIZE
    subject = LoaderInput(
        name=name,
        kind=FILES,
        records=len(images),
        bytes_per_sample=max(1.0, sum(path.stat().st_size for path in paths) / len(paths)),
        size=size,
        batch=batch,
        shards=paths,
        options=options,
        images=images,
    )
    return _checked(subject, 3 * size * size)


def _in_memory(name: str, options: Mapping[str, Any], batch: int) -> LoaderInput:
    part = dataset.read(name, options["path"]).train
    subject = LoaderInput(
        name=name,
        kind="memory",
        records=len(part),
        bytes_per_sample=part.images.nbytes / len(part),
        size=int(part.images.shape[1]),
        batch=batch,
        shards=(),
        options=options,
    )
    return _checked(subject, part.images[0].nbytes)


def _packed(name: str, options: Mapping[str, Any], batch: int, ranks: int) -> LoaderInput:
    header, rows, _ = read_index(Path(name))
    if header.records == 0:
        raise BadInput(f"{name}: a pack without records", hint="see its skipped.txt")
    if options["by_files"]:
        split_shards(header, 0, ranks)
    shards = tuple(Path(name) / shard_name(number) for number in range(len(header.shards)))
    missing = next((shard for shard in shards if not shard.is_file()), None)
    if missing is not None:
        raise BadInput(f"{missing}: there is no such file", hint="copy or make the pack again")
    raw = bool((rows["codec"] == RAW).all())
    size = options["size"] or (int(np.median(rows["height"])) if raw else JPEG_SIZE)
    subject = LoaderInput(
        name=name,
        kind=header.kind,
        records=header.records,
        bytes_per_sample=float(rows["length"].mean(dtype=np.float64)),
        size=size,
        batch=batch,
        shards=shards,
        options=options,
    )
    pixel_bytes = int(rows["channels"].max()) * np.dtype(header.dtype).itemsize if raw else 3
    return _checked(subject, size * size * pixel_bytes)


def _checked(subject: LoaderInput, sample_bytes: int) -> LoaderInput:
    """``subject``, provided that its batches fit into memory."""
    need = sample_bytes * min(subject.batch, subject.records) * (subject.options["ahead"] + 2)
    if need > psutil.virtual_memory().available * MOST_OF_MEMORY:
        raise BadInput(
            f"batches of {subject.batch:,} samples of {subject.size} pixels would take {show_bytes(need)}, more "
            "than half of the free memory",
            hint="choose a smaller --batch or --size",
        )
    return subject


def epochs(source: Source, *, once: bool) -> Generator[Batch]:
    """The batches of epoch 0, and, unless ``once``, of all later epochs without end."""
    for epoch in count():
        made = 0
        for made, batch in enumerate(source.training(epoch), start=1):  # noqa: B007  the count is read below
            yield batch
        if once or not made:
            return


def until(batches: Iterable[Batch], over: Any) -> Iterator[Batch]:
    """``batches``, at least one, until ``over()`` holds."""
    for batch in batches:
        yield batch
        if over():
            return


def again(last: Batch | None, batches: Iterable[Batch]) -> Iterator[Batch]:
    """``batches`` after ``last``, which starts the clock of ``throughput.drain`` and is not counted."""
    return chain([] if last is None else [last], batches)


def shuffle(subject: LoaderInput, ranks: int) -> dict[str, Any] | None:
    """The quality of epoch 0's order as a ``schema.probes.LoaderShuffle``; None where every shuffle is complete.

    With ``by_files`` each rank only ever sees its own files' records. The total variation distance of their labels from
    all labels, ½ Σ |p − q|, measures how unrepresentative they are; random assignment gives the reference.
    """
    if not subject.shards or subject.images is not None:
        return None
    options, global_batch = subject.options, subject.batch * ranks
    with Pack.open(subject.name, shards=range(0)) as pack:
        splits = [pack.split(rank, ranks).records for rank in range(ranks)] if options["by_files"] else []
        labels = None if pack.header.multi_label else pack.labels
    parts = splits or [range(subject.records)]
    plans = [Plan(global_batch=global_batch, rank=rank, ranks=ranks, seed=0) for rank in range(len(parts))]
    shares = [Sharding(plan=plan, parts=parts, block=options["block"], mixed=options["mixed"]) for plan in plans]
    if splits:
        each = [list(one.of(0)) for one in shares]
        dealt = [one.records[: one.counted] for step in zip(*each, strict=True) for one in step]
        order = np.concatenate(dealt)
    else:
        order = shares[0].order(0)
    order_quality = quality(order, -(-len(order) // shares[0].steps))
    return {
        "quality": order_quality.shuffle,
        "records_per_read": order_quality.records_per_read,
        "seen_share": min(map(len, parts)) / subject.records,
        "label_distance": None if labels is None else label_distance(labels, parts),
        "label_distance_by_chance": None
        if labels is None
        else label_distance(np.random.default_rng(CHANCE_SEED).permutation(labels), parts),
    }


def label_distance(labels: npt.NDArray[np.int64], parts: Iterable[range]) -> float:
    """The largest total variation distance between the labels in one of ``parts`` and all of ``labels``.

    >>> label_distance(np.array([0, 0, 1, 1]), [range(2), range(2, 4)])
    0.5
    """
    classes = int(labels.max()) + 1
    whole = np.bincount(labels, minlength=classes) / len(labels)
    shares = [np.bincount(labels[part.start : part.stop], minlength=classes) / len(part) for part in parts]
    return float(max(np.abs(one - whole).sum() / 2 for one in shares))
