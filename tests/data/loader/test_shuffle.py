"""Block shuffling is a permutation, keeps reads long, and its quality is a number that means what it says."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from allpull.data.loader.order import block_order, epoch_order, quality


@given(
    samples=st.integers(0, 300),
    seed=st.integers(0, 2**32 - 1),
    block=st.integers(1, 40),
    mixed=st.integers(1, 9),
)
def test_every_sample_comes_once(samples, seed, block, mixed):
    assert sorted(block_order(samples, seed, 2, block=block, mixed=mixed).tolist()) == list(range(samples))


def test_blocks_of_one_are_the_full_shuffle():
    assert np.array_equal(block_order(100, 5, 6, block=1, mixed=7), epoch_order(100, 5, 6))


def test_orders_differ_between_epochs_also_in_what_is_together():
    orders = [block_order(1000, 0, epoch, block=50) for epoch in range(4)]
    firsts = {tuple(sorted(order[:50].tolist())) for order in orders}
    assert len(firsts) == 4
    assert len({order[0] % 50 for order in orders}) > 1  # blocks begin elsewhere


def test_quality_of_the_ends_and_of_what_lies_between():
    """Blocks of k within one batch: of k − 1 in k neighbours none is parted, so 1/k is left; reads are k long."""
    assert quality(np.arange(10_000), 100).shuffle == pytest.approx(0.01, rel=0.02)
    assert quality(epoch_order(10_000, 1, 1), 100).shuffle == pytest.approx(1, abs=0.01)
    blocks = quality(block_order(10_000, 1, 1, block=20), 100)
    assert blocks.shuffle == pytest.approx(1 / 20, rel=0.4)
    assert blocks.records_per_read == pytest.approx(20, rel=0.3)


def test_mixing_blocks_buys_shuffle_for_length_of_reads():
    """Blocks mixed over w batches: neighbours stay in one batch with 1/w, so 1 − 1/w of the parting is left."""
    mixed = quality(block_order(20_000, 1, 1, block=100, mixed=8), 100)
    assert mixed.shuffle == pytest.approx(1 - 1 / 8, abs=0.02)
    assert mixed.records_per_read < quality(block_order(20_000, 1, 1, block=100), 100).records_per_read


def test_one_batch_of_all_has_no_quality():
    assert quality(np.arange(8), 8).shuffle is None
