"""Open the data of a specification as a feed of one rank's batches.

The data are a data set in memory (``DATASETS``), synthetic, a pair of packs (``pack``), or a pair of folders of image
files (``imagefolder``). The trainer and the probes
use all of them alike.
"""

from __future__ import annotations

from allpull import marks
from allpull.data.datasets.dataset import DATASETS, Dataset, read
from allpull.data.datasets.synthetic import synthetic
from allpull.data.loader.applicable import refuse_in_folder, refuse_in_memory, refuse_in_pack
from allpull.data.loader.batches import Plan
from allpull.data.loader.feed import Facts, Feed
from allpull.data.loader.folder_feed import FolderFeed, inspect_folders
from allpull.data.loader.memory_feed import MemoryFeed, refuse_size
from allpull.data.loader.pack_feed import PackFeed, inspect_packs
from allpull.data.loader.pool import pins_memory
from allpull.errors import BadInput, UnknownName
from allpull.schema.trainspec import DataSpec

__all__ = ["IMAGEFOLDER", "PACK", "SYNTHETIC", "Facts", "Feed", "check", "known", "open_feed"]

PACK, IMAGEFOLDER, SYNTHETIC = "pack", "imagefolder", "synthetic"
IN_TURN = 4  # synthetic batches used in turn: a single one would stay in the caches, unlike real data


def known() -> list[str]:
    """All values of ``data.name``, sorted."""
    return sorted({*DATASETS.names(), PACK, IMAGEFOLDER, SYNTHETIC})


def open_feed(data: DataSpec, *, rank: int, ranks: int, global_batch: int, seed: int, epochs: int) -> Feed:
    """The batches of rank ``rank`` of ``ranks``, of ``data``.

    ``global_batch`` samples per step on all ranks together; order and augmentation depend on ``seed``, the epoch and
    the sample alone. ``epochs`` are those of the whole training, which progressive resizing refers to.

    Raises:
        BadInput: the data do not exist or are damaged, or an option does not apply to them.
        MissingPart: a library that decodes them is not installed.
    """
    plan = Plan(
        global_batch=global_batch,
        rank=rank,
        ranks=ranks,
        seed=seed,
        shift_pixels=data.shift_pixels,
        flip=data.flip,
    )
    if data.name == PACK:
        refuse_in_pack(data)
        return PackFeed(data, plan, epochs=epochs)
    if data.name == IMAGEFOLDER:
        refuse_in_folder(data)
        return FolderFeed(data, plan)
    dataset = _in_memory(data, seed)
    if data.name == SYNTHETIC and not data.cached:
        pinned = ", in pinned memory" if pins_memory() else ""
        marks.remark(f"data.name = synthetic: {IN_TURN} batches{pinned}, made before the first step and used in turn")
        return MemoryFeed(dataset, plan, in_turn=IN_TURN)
    return MemoryFeed(dataset, plan, limit=data.limit, cached=data.cached)


def check(data: DataSpec) -> None:
    """Check ``data`` as ``open_feed`` does, without opening the files of a pack or listing those of a folder.

    Raises:
        BadInput: as ``open_feed``.
    """
    if data.name == PACK:
        refuse_in_pack(data)
        inspect_packs(data)
    elif data.name == IMAGEFOLDER:
        refuse_in_folder(data)
        inspect_folders(data)
    else:
        _in_memory(data, seed=0)


def _in_memory(data: DataSpec, seed: int) -> Dataset:
    if data.name not in known():
        raise UnknownName("data set", data.name, known())
    refuse_in_memory(data)
    if data.name == SYNTHETIC:
        if data.path:
            raise BadInput(f"data.path is '{data.path}', but synthetic data are generated", hint="omit data.path")
        return synthetic(
            samples=data.limit,
            size=data.size,
            bands=data.bands,
            classes=data.classes,
            multi_label=data.multi_label,
            seed=seed,
        )
    dataset = read(data.name, data.path)
    refuse_size(data, dataset)
    return dataset
