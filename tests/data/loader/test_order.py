"""Order and augmentation belong to (seed, epoch, sample), whatever the number of ranks."""

from __future__ import annotations

import gzip
import struct

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from allpull.data.datasets import digits, fashion_mnist
from allpull.data.datasets.dataset import Part
from allpull.data.loader.batches import DRAWS, Plan, augment, evaluation_batches, training_batches
from allpull.data.loader.order import epoch_order, rank_slice, uniforms
from allpull.errors import BadInput


def part_of(count: int) -> Part:
    images = np.arange(count, dtype=np.uint8)[:, None, None, None] * np.ones((1, 4, 4, 1), np.uint8)
    return Part(images=images, labels=np.arange(count))


@given(count=st.integers(1, 200), batch=st.integers(1, 70), ranks=st.integers(1, 9), seed=st.integers(0, 2**32 - 1))
def test_the_ranks_together_see_every_sample_once_in_the_order_of_one_rank(count, batch, ranks, seed):
    part = part_of(count)
    whole = [b.labels for b in training_batches(part, _plan(batch, 0, 1, seed), epoch=3)]
    shares = [list(training_batches(part, _plan(batch, rank, ranks, seed), epoch=3)) for rank in range(ranks)]
    for step, labels in enumerate(whole):
        parts = [own[step].labels[: own[step].samples] for own in shares]
        assert np.concatenate(parts).tolist() == labels.tolist()
        sizes = [len(p) for p in parts]
        assert max(sizes) - min(sizes) <= 1
        assert {own[step].global_samples for own in shares} == {len(labels)}
    assert sorted(np.concatenate(whole).tolist()) == list(range(count))


def _plan(batch: int, rank: int, ranks: int, seed: int) -> Plan:
    return Plan(global_batch=batch, rank=rank, ranks=ranks, seed=seed)


@given(count=st.integers(1, 300), ranks=st.integers(1, 17), size=st.integers(1, 50))
def test_evaluation_gives_every_sample_to_exactly_one_rank(count, ranks, size):
    part = part_of(count)
    seen = [
        label
        for rank in range(ranks)
        for batch in evaluation_batches(part, rank=rank, ranks=ranks, size=size)
        for label in batch.labels.tolist()
    ]
    assert sorted(seen) == list(range(count))


@given(seed=st.integers(0, 2**32 - 1), epoch=st.integers(0, 1000), rotate=st.integers(0, 9))
def test_numbers_of_a_sample_do_not_depend_on_its_company(seed, epoch, rotate):
    samples = np.arange(10)
    together = uniforms(seed, epoch, samples, DRAWS)
    moved = uniforms(seed, epoch, np.roll(samples, rotate), DRAWS)
    assert np.array_equal(np.roll(together, rotate, axis=0), moved)


def test_numbers_look_uniform_and_independent():
    """Kolmogorov's bound at 1 in 10,000, and no correlation between draws, samples or epochs."""
    draws = uniforms(1, 2, np.arange(20_000), 3)
    assert draws.min() >= 0
    assert draws.max() < 1
    for column in draws.T:
        distance = np.abs(np.sort(column) - (np.arange(20_000) + 0.5) / 20_000).max()
        assert distance < 2.2 / np.sqrt(20_000)
    next_epoch = uniforms(1, 3, np.arange(20_000), 3)
    table = np.column_stack([draws, next_epoch, np.roll(draws[:, 0], 1)])
    off_diagonal = np.corrcoef(table.T) - np.eye(7)
    assert np.abs(off_diagonal).max() < 0.04


def test_orders_differ_between_epochs_and_seeds():
    orders = {tuple(epoch_order(50, seed, epoch)) for seed in range(5) for epoch in range(5)}
    assert len(orders) == 25


def test_slices_of_a_batch_are_contiguous():
    assert [rank_slice(np.arange(5), rank, 2).tolist() for rank in (0, 1)] == [[0, 1, 2], [3, 4]]


def test_shift_moves_whole_images_and_flip_mirrors_half():
    image = np.zeros((1, 5, 5, 1), np.uint8)
    image[0, 2, 2] = 7
    images = np.repeat(image, 4000, axis=0)
    moved = augment(images, uniforms(0, 0, np.arange(4000), DRAWS), shift_pixels=2, flip=False)
    places, counts = np.unique(moved.reshape(4000, 25).argmax(1), return_counts=True)
    assert len(places) == 25  # every shift from -2 to 2 in both directions
    assert counts.min() > 100
    corner = np.zeros((4000, 3, 3, 1), np.uint8)
    corner[:, 0, 0] = 1
    mirrored = augment(corner, uniforms(0, 0, np.arange(4000), DRAWS), shift_pixels=0, flip=True)
    assert 0.45 < mirrored[:, 0, 2].mean() < 0.55
    assert (mirrored.sum((1, 2, 3)) == 1).all()


def test_digits_are_the_uci_set():
    data = digits.read("")
    assert (len(data.train), len(data.test), data.classes) == (1437, 360, 10)
    assert data.train.images.shape[1:] == (8, 8, 1)
    assert data.train.images.max() == 16
    both = np.concatenate([data.train.labels, data.test.labels])
    assert np.bincount(both).tolist() == [178, 182, 177, 183, 181, 182, 181, 179, 174, 180]  # as UCI publishes
    test = {image.tobytes() for image in data.test.images}
    assert not test & {image.tobytes() for image in data.train.images}
    with pytest.raises(BadInput, match="embedded"):
        digits.read("/somewhere")


def _idx(shape: tuple[int, ...], data: bytes) -> bytes:
    return struct.pack(f">HBB{len(shape)}I", 0, 8, len(shape), *shape) + data


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "not an IDX file"),
        (b"\x00\x00\x0d\x03" + b"\0" * 12, "not an IDX file"),
        (_idx((2, 2), b"1234"), "not an IDX file of 3"),
        (_idx((2, 2, 2), b"1234567"), "8 bytes announced, only 7"),
        (_idx((2, 2, 2), b"123456789"), "8 bytes announced, more"),
        (_idx((2**31, 2**31, 4), b"1"), "claims"),
        (b"\x00\x00\x08\x03\x00", "requires a buffer"),
    ],
)
def test_a_damaged_idx_file_is_one_clear_error(tmp_path, content, message):
    path = tmp_path / "x.idx"
    path.write_bytes(content)
    with pytest.raises(BadInput, match=message):
        fashion_mnist.read_array(path, dimensions=3)
    zipped = tmp_path / "x.gz"
    zipped.write_bytes(gzip.compress(content)[:-4] if "requires" in message else gzip.compress(content))
    with pytest.raises(BadInput):
        fashion_mnist.read_array(zipped, dimensions=3)


def test_fashion_mnist_reads_plain_and_gzipped_files(tmp_path):
    for prefix, count in (("train", 3), ("t10k", 2)):
        images = _idx((count, 28, 28), bytes(count * 784))
        (tmp_path / f"{prefix}-images-idx3-ubyte.gz").write_bytes(gzip.compress(images))
        (tmp_path / f"{prefix}-labels-idx1-ubyte").write_bytes(_idx((count,), bytes(range(count))))
    data = fashion_mnist.read_fashion_mnist(str(tmp_path))
    assert (len(data.train), len(data.test), data.train.images.shape) == (3, 2, (3, 28, 28, 1))
    (tmp_path / "t10k-labels-idx1-ubyte").unlink()
    with pytest.raises(BadInput, match="has no t10k-labels"):
        fashion_mnist.read_fashion_mnist(str(tmp_path))
    with pytest.raises(BadInput, match="no Fashion-MNIST at"):
        fashion_mnist.read_fashion_mnist(str(tmp_path / "nowhere"))
