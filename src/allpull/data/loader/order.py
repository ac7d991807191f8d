"""The order of samples: full or block shuffles, the same global order for any number of ranks.

Everything here is a pure function of (seed, epoch, sample), so resuming needs no state beyond (epoch, step), and
trainings on 1 × 64 and on 2 × 32 have the same global batches.

Block shuffles keep reads of a pack long: blocks of neighbouring records are shuffled, and the samples of each ``mixed``
blocks that become neighbours. Block boundaries differ between epochs.
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
    """This rank's share of a global batch: contiguous, of nearly equal sizes, larger ones first.

    >>> [rank_slice(np.arange(7), rank, 3).tolist() for rank in range(3)]
    [[0, 1, 2], [3, 4], [5, 6]]
    """
    return np.array_split(batch, ranks)[rank]


def uniforms(seed: int, epoch: int, samples: Indices, draws: int) -> Uniforms:
    """``draws`` numbers in [0, 1) for each sample, [n, draws], from (seed, epoch, sample) alone.

    SplitMix64 (Steele, Lea & Flood 2014) as a counter-based generator: stateless, so any rank can generate any
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


ORDER, EDGES = 1, 2  # random streams apart from that of ``epoch_order``


@dataclass(frozen=True, slots=True, kw_only=True)
class Quality:
    """The quality of an order.

    ``shuffle``: the share of neighbouring records in the pack that are in different global batches, divided by the
    share expected of a full shuffle, 1 − (batch − 1) / (samples − 1). About 1 for a full shuffle, 0 without shuffling,
    None if one batch holds all. ``records_per_read``: mean length of runs of neighbouring records in a batch, which
    one rank reads at once.
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
    """The quality of ``order`` with batches of ``global_batch``: shuffling and read length.

    >>> unshuffled = quality(np.arange(1000), 10)
    >>> round(unshuffled.shuffle, 3), unshuffled.records_per_read
    (0.1, 10.0)
    """
    samples = len(order)
    batch_of = np.empty(samples, np.int64)
    batch_of[order] = np.arange(samples) // global_batch
    same_batch = int((batch_of[1:] == batch_of[:-1]).sum())  # neighbours in one batch are one read
    reads = samples - same_batch
    expected = 1 - (min(global_batch, samples) - 1) / max(1, samples - 1)
    different = 1 - same_batch / max(1, samples - 1)
    return Quality(
        shuffle=different / expected if expected > 0 else None,
        records_per_read=samples / reads if samples else 0.0,
    )
