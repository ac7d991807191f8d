"""One door to all data: what is in memory comes as it always did, and refuses what is for packs."""

from __future__ import annotations

import tracemalloc
from dataclasses import fields
from itertools import pairwise
from types import SimpleNamespace

import numpy as np
import pytest

from allpull import marks
from allpull.data.datasets import digits
from allpull.data.datasets.dataset import Part, with_statistics
from allpull.data.datasets.synthetic import synthetic
from allpull.data.loader.applicable import FOR_FILES, FOR_FOLDERS_ALONE, FOR_PACKS_ALONE
from allpull.data.loader.batches import Plan, evaluation_batches, training_batches
from allpull.data.loader.memory_feed import MemoryFeed
from allpull.data.loader.open_feed import check, known, open_feed
from allpull.data.loader.progressive_resize import Growth, growth
from allpull.errors import BadInput, UnknownName
from allpull.schema.trainspec import DataSpec


def feed_of(data: DataSpec, *, rank=0, ranks=1, global_batch=64, seed=3, epochs=4):
    return open_feed(data, rank=rank, ranks=ranks, global_batch=global_batch, seed=seed, epochs=epochs)


def same(left, right) -> bool:
    return all(
        np.array_equal(one.images, other.images)
        and np.array_equal(one.labels, other.labels)
        and (one.samples, one.global_samples) == (other.samples, other.global_samples)
        for one, other in zip(left, right, strict=True)
    )


@pytest.mark.parametrize("rank", [0, 1])
def test_digits_come_as_without_a_feed(rank):
    data, plan = digits.read(""), Plan(global_batch=64, rank=rank, ranks=2, seed=3, shift_pixels=1, flip=True)
    feed = feed_of(DataSpec(shift_pixels=1, flip=True, limit=150), rank=rank, ranks=2)
    assert same(feed.training(2, 1), training_batches(data.train.first(150), plan, epoch=2, first_step=1))
    assert same(feed.evaluation(50, rank=rank, ranks=2), evaluation_batches(data.test, rank=rank, ranks=2, size=50))
    facts = feed.facts
    assert (facts.mean, facts.std) == (data.mean, data.std)
    assert (facts.channels, facts.classes, facts.multi_label) == (1, 10, False)
    assert facts.pixels == facts.test_pixels == feed.pixels(0) == (8, 8)
    assert (facts.samples, facts.test_samples, feed.steps) == (150, 360, 3)
    assert not feed.bad_samples


def test_other_data_of_one_name_and_as_many_samples_are_told_apart():
    train = synthetic(samples=100, size=8).train
    plan, told = Plan(global_batch=4, rank=0, ranks=1, seed=0), []
    for images, labels in (
        (train.images, train.labels),
        (255 - train.images, train.labels),
        (train.images, train.labels + 1),
    ):
        part = Part(images=images, labels=labels)
        told.append(MemoryFeed(with_statistics("photos", part, part, 2000), plan).facts.data)
    assert len(set(told)) == 3
    assert all(one.startswith("photos ") for one in told)


@pytest.mark.parametrize(("rank", "ranks"), [(0, 1), (0, 3), (1, 3), (2, 3)])
def test_evaluation_may_be_shared_otherwise_than_training(rank, ranks):
    """Rank 0 of 1 is how one rank of two evaluates alone."""
    feed, data = feed_of(DataSpec(), rank=1, ranks=2), digits.read("")
    found = np.concatenate([batch.labels for batch in feed.evaluation(100, rank=rank, ranks=ranks)])
    assert np.array_equal(found, data.test.labels[rank::ranks])


def test_every_option_of_packs_is_named_in_one_error():
    other = {"crop": "whole", "on_odd": "substitute", "access": "map", "resizer": "pillow", "min_area": 0.5}
    other |= {"test_path": "x", "turn": True, "by_files": True, "fast_decode": True}
    data = DataSpec(**{name: other.get(name, 7) for name in (*FOR_FILES, *FOR_PACKS_ALONE)})
    for door in (feed_of, check):
        with pytest.raises(BadInput) as caught:
            door(data)
        assert all(f"data.{name}" in caught.value.message for name in (*FOR_FILES, *FOR_PACKS_ALONE))


def test_no_option_that_says_it_is_for_packs_is_forgotten():
    said = {kind: set() for kind in ("packs", "packs, imagefolder", "imagefolder")}
    for one in fields(DataSpec):
        kind = one.metadata["help"].partition(":")[0]
        if kind in said:
            said[kind].add(one.name)
    assert list(said.values()) == [set(FOR_PACKS_ALONE), set(FOR_FILES), set(FOR_FOLDERS_ALONE)]


def test_what_is_in_memory_is_not_resized():
    assert feed_of(DataSpec(size=8)).facts.pixels == (8, 8)
    with pytest.raises(BadInput, match="size is 16, and the images of 'digits' have 8 × 8"):
        check(DataSpec(size=16))


def test_an_unknown_data_set_is_told_all_that_there_are():
    assert {"digits", "fashion-mnist", "pack", "synthetic"} <= set(known())
    with pytest.raises(UnknownName, match="did you mean 'synthetic'"):
        check(DataSpec(name="synthetik"))


def test_cached_is_the_first_batch_again_for_as_many_steps_as_are_left():
    feed, cached = feed_of(DataSpec(limit=150)), feed_of(DataSpec(limit=150, cached=True))
    for first in (0, 2):
        wanted = next(iter(feed.training(1, first)))
        found = list(cached.training(1, first))
        assert len(found) == 3 - first
        assert same(found, [wanted] * len(found))
    assert list(cached.training(1, 3)) == []
    assert same(cached.evaluation(100, rank=0, ranks=1), feed.evaluation(100, rank=0, ranks=1))


def test_synthetic_pictures_are_uniform_bytes_of_any_size_that_all_differ():
    feed = feed_of(DataSpec(name="synthetic", size=16, limit=100), global_batch=100)
    (batch,) = feed.training(0)
    assert batch.images.shape == (100, 16, 16, 3)
    assert len({image.tobytes() for image in batch.images}) == 100
    assert batch.images.mean() == pytest.approx(feed.facts.mean, abs=3)
    assert batch.images.std() == pytest.approx(feed.facts.std, abs=2)
    (again,) = feed_of(DataSpec(name="synthetic", size=16, limit=100), global_batch=100).training(0)
    (other,) = feed_of(DataSpec(name="synthetic", size=16, limit=100), global_batch=100, seed=4).training(0)
    assert same([batch], [again])
    assert not same([batch], [other])
    assert (feed.facts.classes, feed.facts.channels, feed.facts.test_samples) == (1000, 3, 256)


def test_synthetic_data_may_have_any_bands_and_labels():
    """As BigEarthNet: 12 bands, 43 labels, about three of them per sample."""
    data = DataSpec(name="synthetic", size=8, limit=400, bands=12, classes=43, multi_label=True)
    feed = feed_of(data, global_batch=400)
    (batch,) = feed.training(0)
    assert (feed.facts.channels, feed.facts.classes, feed.facts.multi_label) == (12, 43, True)
    assert batch.images.shape == (400, 8, 8, 12)
    assert batch.labels.shape == (400, 43)
    assert set(np.unique(batch.labels)) == {0, 1}
    assert batch.labels.sum(1).mean() == pytest.approx(3, abs=1)
    (single,) = feed_of(DataSpec(name="synthetic", size=8, limit=400, classes=7), global_batch=400).training(0)
    assert set(single.labels) == set(range(7))


def test_synthetic_batches_are_made_once_and_given_in_turn():
    """In all epochs; the global batches are the same on any number of ranks, and each sample of a step counts."""
    data = DataSpec(name="synthetic", size=8, limit=130)
    feed = feed_of(data, global_batch=16)
    first = list(feed.training(0))
    again = list(feed.training(1))
    assert all(one is other for one, other in zip(first, again, strict=True))
    assert [list(map(id, first)).index(id(one)) for one in first] == [0, 1, 2, 3, 0, 1, 2, 3, 8]
    assert [one.samples for one in first] == [16] * 8 + [2]
    assert [one is other for one, other in zip(feed.training(2, 6), first[6:], strict=True)] == [True] * 3
    halves = [list(feed_of(data, rank=rank, ranks=2, global_batch=16).training(0)) for rank in (0, 1)]
    for whole, *parts in zip(first, *halves, strict=True):
        assert np.array_equal(whole.images, np.concatenate([one.images for one in parts]))
        assert np.array_equal(whole.labels, np.concatenate([one.labels for one in parts]))


def test_a_run_of_synthetic_data_says_how_they_were_made():
    said = []
    before = marks.listen(SimpleNamespace(remark=said.append))
    try:
        feed_of(DataSpec(name="synthetic", size=8))
        feed_of(DataSpec(limit=8))
    finally:
        marks.listen(before)
    assert said == ["data.name = synthetic: 4 batches, made before the first step and used in turn"]


def test_a_million_synthetic_pictures_take_the_memory_of_few():
    tracemalloc.start()
    data = synthetic(samples=1 << 20, size=224)
    _, peak_bytes = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert data.train.images.shape == (1 << 20, 224, 224, 3)
    assert peak_bytes < 80e6  # 64 bytes of pixels and 8 of label each; the pictures would be 158 GB


def test_synthetic_has_the_usual_size_and_no_folder():
    facts = feed_of(DataSpec(name="synthetic")).facts
    assert (facts.samples, facts.pixels) == (1280, (224, 224))
    with pytest.raises(BadInput, match=r"data\.path"):
        check(DataSpec(name="synthetic", path="/somewhere"))


@pytest.mark.parametrize(("first", "last", "step"), [(128, 224, 32), (160, 192, 32), (100, 130, 32), (10, 27, 4)])
def test_pictures_grow_from_the_first_size_to_the_last_and_never_shrink(first, last, step):
    sizes = [growth(first, last, 0, 12).size(epoch) for epoch in range(12)]
    assert (sizes[0], sizes[-1]) == (first, last)
    assert all(before <= after for before, after in pairwise(sizes))
    assert all(size in (first, last) or size % step == 0 for size in sizes)
    assert growth(first, last, 3, 12).size(2) < last == growth(first, last, 3, 12).size(3)


def test_no_growth_is_the_same_size_always():
    assert {growth(0, 224, 0, 9).size(epoch) for epoch in range(9)} == {224}
    assert Growth(first=128, last=224, epochs=0).size(0) == 224  # of one epoch, the last is the first
