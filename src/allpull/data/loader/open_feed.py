"""The one door to data: what a specification asks for, as a feed of one rank's batches.

A data set is in memory (``DATASETS``), made of chance (``synthetic``) or a pair of packs (``pack``). The trainer and
the probes see no difference.
"""

from __future__ import annotations

from allpull import marks
from allpull.data.datasets.dataset import DATASETS, Dataset, read
from allpull.data.datasets.synthetic import synthetic
from allpull.data.loader.batches import Plan
from allpull.data.loader.feed import Facts, Feed
from allpull.data.loader.memory_feed import MemoryFeed, refuse_pack_options, refuse_size
from allpull.data.loader.pack_feed import PackFeed, examine
from allpull.data.loader.pool import page_locks
from allpull.errors import BadInput, UnknownName
from allpull.schema.trainspec import DataSpec

__all__ = ["PACK", "SYNTHETIC", "Facts", "Feed", "check", "known", "open_feed"]

PACK, SYNTHETIC = "pack", "synthetic"
IN_TURN = 4  # of random bytes, one batch would do; several keep caches from holding what real data would not be in


def known() -> list[str]:
    """All that ``data.name`` may be, sorted."""
    return sorted({*DATASETS.names(), PACK, SYNTHETIC})


def open_feed(data: DataSpec, *, rank: int, ranks: int, global_batch: int, seed: int, epochs: int) -> Feed:
    """The batches of rank ``rank`` of ``ranks``, as ``data`` says.

    ``global_batch`` samples a step on all ranks together; order and augmentation follow from ``seed``, the epoch and
    the sample alone. ``epochs`` are those of the whole training: progressive resizing ends with them.

    Raises:
        BadInput: there are no such data, they are damaged, or an option is not for them.
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
        return PackFeed(data, plan, epochs=epochs)
    dataset = _in_memory(data, seed)
    if data.name == SYNTHETIC and not data.cached:
        locked = ", in page-locked memory" if page_locks() else ""
        marks.remark(f"data.name = synthetic: {IN_TURN} batches{locked}, made before the first step and given in turn")
        return MemoryFeed(dataset, plan, in_turn=IN_TURN)
    return MemoryFeed(dataset, plan, limit=data.limit, cached=data.cached)


def check(data: DataSpec) -> None:
    """Find what ``open_feed`` would find wrong, without opening the files of a pack.

    Raises:
        BadInput: as ``open_feed``.
    """
    if data.name == PACK:
        examine(data)
    else:
        _in_memory(data, seed=0)


def _in_memory(data: DataSpec, seed: int) -> Dataset:
    if data.name not in known():
        raise UnknownName("data set", data.name, known())
    refuse_pack_options(data)
    if data.name == SYNTHETIC:
        if data.path:
            raise BadInput(f"data.path is '{data.path}', but synthetic data are made", hint="leave data.path out")
        return synthetic(samples=data.limit, size=data.size, seed=seed)
    dataset = read(data.name, data.path)
    refuse_size(data, dataset)
    return dataset
