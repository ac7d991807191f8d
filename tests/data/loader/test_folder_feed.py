"""An image folder is read as torchvision reads one: each file once per epoch, whatever the ranks and workers."""

from __future__ import annotations

import os
import shutil
import time
from pathlib import Path

import numpy as np
import psutil
import pytest
from PIL import Image

pytest.importorskip("torch", reason="torch is not installed")

from allpull.data.loader.bad_samples import Counts
from allpull.data.loader.crop import DRAWS, MIRROR, Transform, random_boxes
from allpull.data.loader.folder_feed import FolderFeed, list_files
from allpull.data.loader.open_feed import check, open_feed
from allpull.data.loader.order import epoch_order, uniforms
from allpull.errors import BadInput
from allpull.schema.trainspec import DataSpec

pytestmark = pytest.mark.torch


@pytest.fixture(scope="module")
def parts(tmp_path_factory: pytest.TempPathFactory, folder: Path) -> Path:
    """A folder with the 40 photographs as train, and one class of them as val."""
    root = tmp_path_factory.mktemp("parts")
    shutil.copytree(folder, root / "train")
    shutil.copytree(folder / "class 1", root / "val" / "class 1")
    return root


def feed_of(parts: Path, *, rank: int = 0, ranks: int = 1, **options: object) -> FolderFeed:
    data = DataSpec(name="imagefolder", path=str(parts), **{"size": 32, "flip": True, **options})
    feed = open_feed(data, rank=rank, ranks=ranks, global_batch=16, seed=5, epochs=2)
    assert isinstance(feed, FolderFeed)
    return feed


def pixels_and_labels(feed: FolderFeed, epoch: int, first_step: int = 0) -> list[tuple[np.ndarray, list[int]]]:
    return [
        (one.images[: one.samples].copy(), one.labels[: one.samples].tolist())
        for one in feed.training(epoch, first_step)
    ]


def test_samples_are_those_of_torchvision_to_the_bit(parts: Path) -> None:
    """Pillow's decoder, ``crop`` and ``resize(BILINEAR)`` are what RandomResizedCrop does to an image of Pillow."""
    feed = feed_of(parts)
    names = sorted((parts / "train").glob("*/*.jpg"))
    found = np.concatenate([images for images, _ in pixels_and_labels(feed, 1)])
    order = epoch_order(len(names), 5, 1)
    mirrored = 0
    for record, sample in zip(order, found, strict=True):
        picture = Image.open(names[record]).convert("RGB")
        draws = uniforms(5, 1, np.array([record]), DRAWS)
        size = np.array([[picture.height, picture.width]])
        top, left, height, width = random_boxes(Transform(size=32), size, draws)[0].tolist()
        wanted = picture.crop((left, top, left + width, top + height)).resize((32, 32), Image.Resampling.BILINEAR)
        if draws[0, MIRROR] < 0.5:
            wanted = wanted.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
            mirrored += 1
        assert np.array_equal(np.asarray(wanted), sample)
    assert 10 < mirrored < 30


@pytest.mark.parametrize("workers", [0, 2])
def test_ranks_together_read_every_file_once_in_the_same_global_batches(parts: Path, workers: int) -> None:
    """40 files in batches of 16: the last has 8. Workers are processes, and change nothing."""
    whole = pixels_and_labels(feed_of(parts), 1)
    assert [len(labels) for _, labels in whole] == [16, 16, 8]
    feeds = [feed_of(parts, rank=rank, ranks=3, workers=workers) for rank in range(3)]
    try:
        shared = [pixels_and_labels(feed, 1) for feed in feeds]
        for step, (images, labels) in enumerate(whole):
            assert np.array_equal(np.concatenate([one[step][0] for one in shared]), images)
            assert [label for one in shared for label in one[step][1]] == labels
        tested = [list(feed.evaluation(4, rank=rank, ranks=3)) for rank, feed in enumerate(feeds)]
        assert sum(batch.global_samples for own in tested for batch in own) == feeds[0].facts.test_samples == 13
        assert {label for own in tested for batch in own for label in batch.labels} == {1}
    finally:
        for feed in feeds:
            feed.close()


def test_an_epoch_begins_again_at_any_step_and_another_seed_is_another_order(parts: Path) -> None:
    feed = feed_of(parts, workers=1)
    try:
        whole, rest, other = pixels_and_labels(feed, 1), pixels_and_labels(feed, 1, 2), pixels_and_labels(feed, 0)
        assert len(rest) == 1
        assert np.array_equal(whole[2][0], rest[0][0])
        assert whole[0][1] != other[0][1]
        next(iter(feed.training(0)))  # left early
        assert np.array_equal(pixels_and_labels(feed, 1)[0][0], whole[0][0])
    finally:
        feed.close()


def test_workers_are_kept_between_epochs_and_end_with_the_feed(parts: Path) -> None:
    before = set(psutil.Process().children())
    feed = feed_of(parts, workers=2)
    assert set(psutil.Process().children()) == before
    pixels_and_labels(feed, 0)
    workers = set(psutil.Process().children()) - before
    assert len(workers) == 2
    pixels_and_labels(feed, 1)
    assert set(psutil.Process().children()) - before == workers
    batches = feed.training(0)
    next(batches)
    feed.close()
    deadline = time.monotonic() + 60
    while any(worker.is_running() for worker in workers) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not any(worker.is_running() for worker in workers)


@pytest.mark.parametrize("on_odd", ["skip", "substitute"])
def test_damaged_files_are_skipped_or_replaced_and_counted(parts: Path, tmp_path: Path, on_odd: str) -> None:
    """One cut short, one that is no image, one that disappeared: as samples of packs."""
    root = tmp_path / "parts"
    shutil.copytree(parts, root)
    cut, text, gone = sorted((root / "train" / "class 0").iterdir())[:3]
    cut.write_bytes(cut.read_bytes()[:200])
    text.write_bytes(b"no image")
    feed = feed_of(root, workers=1, on_odd=on_odd, odd_limit=0.1)
    gone.unlink()
    try:
        counted = sum(len(labels) for _, labels in pixels_and_labels(feed, 0))
        samples = feed.bad_samples["train"]
        assert counted == (37 if on_odd == "skip" else 40)
        lost = {"left_out": 3} if on_odd == "skip" else {"replaced": 3}
        assert samples.totals() == Counts(loaded=40, **lost)
        assert sorted(one.record for one in samples.new_entries()) == [0, 1, 2]
    finally:
        feed.close()
    strict = feed_of(root, on_odd=on_odd, odd_limit=0.05)
    with pytest.raises(BadInput, match=r"2 or more of 39 training samples could not be decoded"):
        pixels_and_labels(strict, 0)


def test_a_limit_keeps_the_shares_of_classes_and_facts_tell_folders_apart(parts: Path) -> None:
    feed = feed_of(parts, limit=12)
    labels = [label for _, some in pixels_and_labels(feed, 0) for label in some]
    assert sorted(labels) == [0] * 5 + [1] * 4 + [2] * 3 or [labels.count(one) for one in range(3)] == [4, 4, 4]
    assert feed.facts.data != feed_of(parts).facts.data
    assert (feed.facts.classes, feed.facts.channels, feed.facts.samples) == (3, 3, 12)
    assert feed.facts.mean == (123.675, 116.28, 103.53)
    cached = list(feed_of(parts, cached=True).training(0))
    assert len(cached) == 3
    assert cached[0] is cached[2]


def test_linked_folders_count_and_a_loop_of_links_is_an_error(parts: Path, tmp_path: Path) -> None:
    os.symlink(parts / "train" / "class 0", tmp_path / "cats")
    assert len(list_files(tmp_path, ["cats"])) == 14
    (tmp_path / "dogs").mkdir()
    os.symlink(tmp_path, tmp_path / "dogs" / "loop")
    with pytest.raises(BadInput, match="too deep"):
        list_files(tmp_path, ["dogs"])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"path": ""}, r"data\.path is empty"),
        ({"path": "/no/such"}, "no folder /no/such"),
        ({"threads": 4, "fast_decode": True}, r"data\.threads, data\.fast_decode: only for packs"),
        ({"shift_pixels": 1}, "not for image folders"),
        ({"mean": (1.0,)}, r"data\.mean has 1 numbers"),
        ({"name": "pack", "workers": 2}, r"data\.workers: only for image folders"),
        ({"name": "digits", "path": "", "workers": 2}, r"data\.workers: only for image folders"),
    ],
)
def test_what_does_not_apply_is_refused(parts: Path, options: dict[str, object], message: str) -> None:
    data = DataSpec(**{"name": "imagefolder", "path": str(parts), **options})
    with pytest.raises(BadInput, match=message):
        check(data)


def test_a_test_part_of_other_classes_is_refused(parts: Path, tmp_path: Path) -> None:
    (tmp_path / "unicorns").mkdir()
    with pytest.raises(BadInput, match=r"1 class folders that .* does not have: unicorns"):
        check(DataSpec(name="imagefolder", path=str(parts), test_path=str(tmp_path)))
    with pytest.raises(BadInput, match="no images in its 1 class folders"):
        list_files(tmp_path, ["unicorns"])
