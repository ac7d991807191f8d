"""Shuffle blocks of neighbouring records, so that reads stay long; and say how good a shuffle that is.

Blocks are shuffled, and the samples of each ``mixed`` blocks that come to stand together. Blocks begin elsewhere in
each epoch, so that their edges are not always the same. Nothing depends on the number of ranks.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from allpull.data.loader.order import Indices, epoch_order

ORDER, EDGES = 1, 2  # streams of numbers beside that of ``epoch_order``


@dataclass(frozen=True, slots=True, kw_only=True)
class Quality:
    """What an order is worth.

    ``shuffle``: of all records that are neighbours in the pack, the share that comes into different global batches,
    divided by the share expected of a full shuffle, 1 − (batch − 1) / (samples − 1). About 1 for a full shuffle, 0 for
    none. None where one batch holds all. ``records_per_read``: mean length of the runs of neighbouring records in a
    batch: what one rank gets by one read.
    """

    shuffle: float | None
    records_per_read: float


def block_order(samples: int, seed: int, epoch: int, *, block: int = 1, mixed: int = 1) -> Indices:
    """A permutation of ``samples`` indices: blocks of ``block`` neighbours, ``mixed`` of them shuffled together.

    ``block`` 1 is the full shuffle of ``order.epoch_order``.

    >>> sorted(block_order(10, 0, 3, block=4).tolist()) == list(range(10))
    True
    """
    if block < 1 or mixed < 1:
        raise ValueError(f"blocks of {block}, {mixed} of them mixed")
    if block == 1 or samples == 0:
        return epoch_order(samples, seed, epoch)
    generator = np.random.Generator(np.random.Philox(key=[seed, epoch], counter=[0, 0, 0, EDGES]))
    first = int(generator.integers(1, block + 1))  # records of the first block
    begins = np.concatenate([[0], np.arange(first, samples, block)])
    ends = np.append(begins[1:], samples)
    shuffled = generator.permutation(len(begins))
    order = np.concatenate([np.arange(begins[one], ends[one]) for one in shuffled]).astype(np.int64)
    if mixed > 1:
        inner = np.random.Generator(np.random.Philox(key=[seed, epoch], counter=[0, 0, 0, ORDER]))
        for start in range(0, samples, block * mixed):
            inner.shuffle(order[start : start + block * mixed])
    return order


def quality(order: Indices, global_batch: int) -> Quality:
    """How well ``order`` shuffles a pack, and how long its reads are, in batches of ``global_batch``.

    >>> unshuffled = quality(np.arange(1000), 10)
    >>> round(unshuffled.shuffle, 3), unshuffled.records_per_read
    (0.1, 10.0)
    """
    samples = len(order)
    place = np.empty(samples, np.int64)
    place[order] = np.arange(samples) // global_batch
    together = int((place[1:] == place[:-1]).sum())  # neighbours of one batch are one read
    reads = samples - together
    expected = 1 - (min(global_batch, samples) - 1) / max(1, samples - 1)
    apart = 1 - together / max(1, samples - 1)
    return Quality(
        shuffle=apart / expected if expected > 0 else None,
        records_per_read=samples / reads if samples else 0.0,
    )
