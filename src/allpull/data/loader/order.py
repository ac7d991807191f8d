"""Which samples a rank sees when: the same global order for any number of ranks.

Everything here is a pure function of (seed, epoch, sample), so resuming needs no state beyond (epoch, step), and
a training on 1 × 64 and on 2 × 32 sees the same global batches.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Indices = npt.NDArray[np.int64]
Uniforms = npt.NDArray[np.float64]

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_MIX_1 = np.uint64(0xBF58476D1CE4E5B9)
_MIX_2 = np.uint64(0x94D049BB133111EB)
_TO_UNIT = 2.0**-53


def epoch_order(samples: int, seed: int, epoch: int) -> Indices:
    """A permutation of ``samples`` indices for this epoch.

    >>> sorted(epoch_order(5, seed=0, epoch=3).tolist())
    [0, 1, 2, 3, 4]
    """
    generator = np.random.Generator(np.random.Philox(key=[seed, epoch]))
    return generator.permutation(samples).astype(np.int64)


def steps_per_epoch(samples: int, global_batch: int) -> int:
    """Steps of one epoch; the last may be smaller.

    >>> steps_per_epoch(1437, 64)
    23
    """
    return -(-samples // global_batch)


def rank_slice(batch: Indices, rank: int, ranks: int) -> Indices:
    """This rank's share of a global batch: contiguous, sizes as equal as can be, larger ones first.

    >>> [rank_slice(np.arange(7), rank, 3).tolist() for rank in range(3)]
    [[0, 1, 2], [3, 4], [5, 6]]
    """
    return np.array_split(batch, ranks)[rank]


def uniforms(seed: int, epoch: int, samples: Indices, draws: int) -> Uniforms:
    """``draws`` numbers in [0, 1) for each sample, [n, draws], from (seed, epoch, sample) alone.

    SplitMix64 (Steele, Lea & Flood 2014) as a counter-based generator: stateless, so any rank can make any
    sample's numbers.

    >>> one = uniforms(1, 2, np.array([7]), 3); both = uniforms(1, 2, np.array([4, 7]), 3)
    >>> bool((one[0] == both[1]).all())
    True
    """
    start = _mix(np.array([seed], np.uint64) * _GOLDEN + np.uint64(epoch))
    key = _mix(start + samples.astype(np.uint64) * _GOLDEN)
    counter = np.arange(1, draws + 1, dtype=np.uint64) * _GOLDEN
    return (_mix(key[:, None] + counter) >> np.uint64(11)).astype(np.float64) * _TO_UNIT


def _mix(state: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    mixed = (state ^ (state >> np.uint64(30))) * _MIX_1
    mixed = (mixed ^ (mixed >> np.uint64(27))) * _MIX_2
    mixed ^= mixed >> np.uint64(31)
    return mixed


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
