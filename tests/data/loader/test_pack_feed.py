"""Packs through the trainer's door: every option does what it says, on any number of ranks, in bounded memory."""

from __future__ import annotations

import os
import shutil
import threading
from collections import Counter
from contextlib import closing
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
from PIL import Image
from tests.data.conftest import as_jpeg
from tests.data.loader.test_feed import feed_of

from allpull import marks
from allpull.data.images import decode
from allpull.data.loader import pack_batches, pool
from allpull.data.loader.bad_samples import LEFT_OUT, Counts
from allpull.data.loader.open_feed import check
from allpull.data.loader.order import block_order
from allpull.data.loader.resize import resize_antialiased
from allpull.data.pack import read
from allpull.data.pack.encode import Recipe
from allpull.data.pack.plan import Layout, plan
from allpull.data.pack.read import Pack, read_index
from allpull.data.pack.statistics import FEWEST, MOST, sample
from allpull.data.pack.write import write_pack
from allpull.data.pack_format import INDEX, RECORD, index_bytes, shard_name
from allpull.data.regular_files import open_regular
from allpull.data.sources import SOURCES, guess
from allpull.errors import BadInput
from allpull.schema.trainspec import DataSpec


def packed_as(source, target, kind):
    listing = SOURCES.load(guess(source))(source, None)
    return write_pack(plan(listing, Recipe(kind=kind), Layout(seed=0, shard_bytes=1 << 20)), target)


@pytest.fixture(scope="module")
def made(folder, photos, tmp_path_factory):
    """Packs ``train`` (40 photographs, 3 classes) and ``val`` (17 others) in one folder."""
    root = tmp_path_factory.mktemp("made")
    for number in range(17):
        place = root / "others" / f"class {number % 3}"
        place.mkdir(parents=True, exist_ok=True)
        cut = photos[number % len(photos)].crop((5 * number, 3 * number, 5 * number + 120, 3 * number + 90))
        (place / f"{number:02d}.jpg").write_bytes(as_jpeg(cut))
    packed_as(folder, root / "data" / "train", "jpeg-restart")
    packed_as(root / "others", root / "data" / "val", "jpeg")
    return root / "data"


@pytest.fixture
def data_folder(made, tmp_path):
    """A copy of ``made`` to damage."""
    return shutil.copytree(made, tmp_path / "data")


def spec(data_folder, **options) -> DataSpec:
    return DataSpec(
        **{"odd_limit": 1.0, "name": "pack", "path": str(data_folder), "size": 32, "resizer": "pillow", **options}
    )


def copied(batches):
    return [(one.images[: one.samples].copy(), one.labels[: one.samples], one.global_samples) for one in batches]


def together(data, ranks, epoch=1, first_step=0, **options):
    """Images and labels of the global batches of ``epoch``."""
    feeds = [feed_of(data, rank=rank, ranks=ranks, global_batch=7, **options) for rank in range(ranks)]
    shares = [copied(feed.training(epoch, first_step)) for feed in feeds]
    for feed in feeds:
        feed.close()
    return [
        tuple(np.concatenate(arrays) for arrays in list(zip(*step, strict=True))[:2])
        for step in zip(*shares, strict=True)
    ]


def same(left, right) -> bool:
    return len(left) == len(right) and all(
        np.array_equal(a, b) for one, other in zip(left, right, strict=True) for a, b in zip(one, other, strict=True)
    )


def evaluated(feed, rank=0, ranks=1, size=5):
    shares = copied(feed.evaluation(size, rank=rank, ranks=ranks))
    return np.concatenate([images for images, _, _ in shares]), np.concatenate([labels for _, labels, _ in shares])


@pytest.mark.parametrize(("said", "ranks", "threads"), [(0, "4", 3), (0, "64", 1), (0, None, 12), (5, "4", 5)])
def test_threads_are_the_processors_of_a_rank_unless_said_and_stand_in_the_record(
    data_folder, monkeypatch, said, ranks, threads
):
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(12)), raising=False)
    monkeypatch.setattr(pool, "cpu_quota", lambda tree: None)
    monkeypatch.delenv("LOCAL_WORLD_SIZE", raising=False)
    if ranks:
        monkeypatch.setenv("LOCAL_WORLD_SIZE", ranks)
    told = {}
    before = marks.listen(SimpleNamespace(metric=lambda name, value, step: told.update({name: value})))
    try:
        feed = feed_of(spec(data_folder, threads=said))
    finally:
        marks.listen(before)
    assert told == {"data_threads": threads}
    assert feed._train.reading.threads == feed._test.reading.threads == threads


@pytest.mark.parametrize("options", [{}, {"flip": True, "turn": True, "block": 4, "mixed": 2, "first_size": 16}])
def test_two_ranks_see_the_global_batches_of_one(data_folder, options):
    data = spec(data_folder, **options)
    one = together(data, 1)
    assert sum(len(labels) for _, labels in one) == 40
    threaded = spec(data_folder, threads=3, ahead=4, access="map", **options)
    assert same(one, together(data, 2))
    assert same(one, together(threaded, 3))
    assert not same(one, together(data, 1, epoch=2))
    assert not same(one, together(data, 1, seed=4))


def test_packs_of_other_records_or_another_order_are_told_apart_and_copies_are_not(folder, data_folder, tmp_path):
    told = []
    for name, seed in (("copy", 0), ("order", 1)):
        place = shutil.copytree(data_folder, tmp_path / name)
        shutil.rmtree(place / "train")
        listing = SOURCES.load(guess(folder))(folder, None)
        write_pack(plan(listing, Recipe(kind="jpeg-restart"), Layout(seed=seed, shard_bytes=1 << 22)), place / "train")
        with closing(feed_of(spec(place))) as feed:
            told.append(feed.facts.data)
    with closing(feed_of(spec(data_folder))) as feed:
        assert feed.facts.data == told[0]  # shards of another size do not matter
    assert told[1] != told[0]


def test_resume_is_the_rest_of_the_epoch_on_any_number_of_ranks(data_folder):
    data = spec(data_folder, flip=True, first_size=16)
    whole = together(data, 1, epoch=2)
    assert same(whole[4:], together(data, 1, epoch=2, first_step=4))
    assert same(whole[4:], together(data, 2, epoch=2, first_step=4))


def test_growing_pictures_are_those_of_that_size(data_folder):
    """A smaller size is another resize of the same part of the picture."""
    grown = spec(data_folder, first_size=8)
    feed = feed_of(grown, epochs=4)
    assert [feed.pixels(epoch)[0] for epoch in range(4)] == [8, 16, 24, 32]
    for epoch in range(4):
        side = feed.pixels(epoch)[0]
        assert same(together(grown, 2, epoch=epoch), together(spec(data_folder, size=side), 1, epoch=epoch))
    assert feed.facts.pixels == (32, 32)


@pytest.mark.parametrize("ranks", [1, 2, 5])
def test_each_test_sample_is_evaluated_once(data_folder, ranks):
    data = spec(data_folder, by_files=False)
    whole, labels = evaluated(feed_of(data))
    assert len(labels) == 17
    for training_ranks in (1, 2):
        feed = feed_of(data, ranks=training_ranks)
        shares = [evaluated(feed, rank, ranks) for rank in range(ranks)]
        assert np.array_equal(np.concatenate([images for images, _ in shares]), whole)
        assert np.array_equal(np.concatenate([labels for _, labels in shares]), labels)


def test_evaluation_is_the_middle_of_the_resized_picture_whatever_training_takes(data_folder):
    data = spec(data_folder, test_size=40, test_resize=50, fast_decode=True, flip=True, turn=True, on_odd="substitute")
    feed = feed_of(data)
    found, labels = evaluated(feed)
    assert feed.facts.test_pixels == found.shape[1:3] == (40, 40)
    with Pack.open(data_folder / "val") as pack:
        assert np.array_equal(labels, pack.labels)
        for record, image in enumerate(found):
            picture = Image.fromarray(decode(pack.record(record))[0])  # 120 × 90
            whole = picture.resize((50 * 120 // 90, 50), Image.Resampling.BILINEAR)
            cut = np.asarray(whole.crop((13, 5, 53, 45))).astype(int)
            assert np.abs(cut - image).max() <= 2  # Pillow rounds once for resizing with a box, here twice


def test_usual_sizes_are_those_of_imagenet_and_256_for_224(data_folder):
    feed = feed_of(spec(data_folder, size=0))
    assert feed.facts.pixels == (224, 224)
    assert feed._test.transform.short_side == 256


def test_fast_decoding_is_seen_in_training_alone(data_folder):
    exact, fast = spec(data_folder), spec(data_folder, fast_decode=True)
    assert not same(together(exact, 1), together(fast, 1))
    assert np.array_equal(evaluated(feed_of(exact))[0], evaluated(feed_of(fast))[0])


def test_whole_pictures_are_trained_on_and_evaluated(data_folder):
    feed = feed_of(spec(data_folder, crop="whole"), global_batch=40)
    (batch,) = feed.training(0)
    found, _ = evaluated(feed)
    for source, images, order in (
        ("train", batch.images, block_order(40, 3, 0)),
        ("val", found, range(17)),
    ):
        with Pack.open(data_folder / source) as pack:
            for image, record in zip(images, order, strict=True):
                slot = np.zeros((32, 32, 3), np.uint8)
                resize_antialiased(decode(pack.record(record))[0], slot)
                assert np.array_equal(slot, image)


def test_the_least_area_is_that_of_crops(data_folder):
    whole, half = (spec(data_folder, min_area=share) for share in (1.0, 0.5))
    assert feed_of(half)._train.transform.area == (0.5, 1.0)
    assert not same(together(whole, 1), together(half, 1))


def test_limit_takes_the_first_records_and_each_once(data_folder):
    feed = feed_of(spec(data_folder, limit=11), global_batch=4)
    with Pack.open(data_folder / "train") as pack:
        first = sorted(pack.labels[:11].tolist())
    found = [label for batch in feed.training(0) for label in batch.labels.tolist()]
    assert sorted(found) == first
    assert (feed.facts.samples, feed.steps, feed.facts.test_samples) == (11, 3, 17)


def test_ranks_with_files_of_their_own_share_the_limit_and_evaluate_all(folder, make_pack, data_folder):
    shutil.rmtree(data_folder / "train")
    make_pack(folder, to="data/train", kind="raw", shard_bytes=1 << 20)
    feeds = [feed_of(spec(data_folder, by_files=True, limit=20), rank=rank, ranks=2, global_batch=6) for rank in (0, 1)]
    assert {feed.facts.samples for feed in feeds} == {20}
    assert feeds[0].facts == feeds[1].facts
    shares = [copied(feed.training(0)) for feed in feeds]
    assert [len(one) for one in shares] == [feeds[0].steps] * 2
    assert sum(len(labels) for share in shares for _, labels, _ in share) == 20
    labels = [evaluated(feed, rank, 2)[1] for rank, feed in enumerate(feeds)]
    assert sum(map(len, labels)) == 17
    assert len(evaluated(feeds[0])[1]) == 17  # alone, as with train.evaluation = serial
    with pytest.raises(BadInput, match="1 samples leave some of 2 ranks"):
        feed_of(spec(data_folder, by_files=True, limit=1), ranks=2)


def test_cached_is_the_first_batch_again(data_folder):
    feed = feed_of(spec(data_folder, cached=True), global_batch=7)
    first, *rest = feed.training(1)
    assert len(rest) == feed.steps - 1
    assert all(batch is first for batch in rest)
    assert same([(first.images, first.labels)], together(spec(data_folder), 1)[:1])
    assert len(evaluated(feed)[1]) == 17


def test_blocks_of_neighbours_come_together(data_folder):
    feed = feed_of(spec(data_folder, block=5, mixed=2), global_batch=40)
    (batch,) = feed.training(2)
    with Pack.open(data_folder / "train") as pack:
        assert np.array_equal(batch.labels, pack.labels[block_order(40, 3, 2, block=5, mixed=2)])


def test_statistics_are_those_of_the_pictures_on_every_rank(data_folder):
    feeds = [feed_of(spec(data_folder, threads=1 + rank), rank=rank, ranks=3, seed=rank) for rank in range(3)]
    assert len({(feed.facts.mean, feed.facts.std) for feed in feeds}) == 1
    with Pack.open(data_folder / "train") as pack:
        pictures = [decode(pack.record(record))[0].astype(np.float64) for record in range(len(pack))]
    mean = np.mean([picture.mean((0, 1)) for picture in pictures], axis=0)
    square = np.mean([(picture**2).mean((0, 1)) for picture in pictures], axis=0)
    assert feeds[0].facts.mean == pytest.approx(mean)
    assert feeds[0].facts.std == pytest.approx(np.sqrt(square - mean**2))


def test_a_pack_of_before_that_says_no_statistics_is_read_and_has_the_same(data_folder):
    new = feed_of(spec(data_folder)).facts
    header, rows, bits = read_index(data_folder / "train")
    assert (header.mean, header.std) == (new.mean, new.std)
    (data_folder / "train" / INDEX).write_bytes(index_bytes(replace(header, mean=(), std=()), rows, bits))
    old = feed_of(spec(data_folder, threads=2)).facts
    assert (old.mean, old.std) == (new.mean, new.std)


def test_mean_and_deviation_may_be_said_instead_one_a_channel(data_folder):
    said = feed_of(spec(data_folder, mean=(123.675, 116.28, 103.53))).facts
    assert said.mean == (123.675, 116.28, 103.53)
    assert said.std == feed_of(spec(data_folder)).facts.std
    with pytest.raises(BadInput, match=r"data.std has 2 numbers, and the images have 3 channels"):
        feed_of(spec(data_folder, std=(1.0, 2.0)))


@pytest.mark.parametrize("by_files", [False, True])
def test_a_rank_opens_an_index_once_and_with_files_of_its_own_no_others(
    folder, make_pack, data_folder, monkeypatch, by_files
):
    shutil.rmtree(data_folder / "train")
    shards = len(make_pack(folder, to="data/train", kind="raw", shard_bytes=1 << 20).header.shards)
    assert shards > 4
    opened = []
    monkeypatch.setattr(read, "open_regular", lambda path: opened.append(path) or open_regular(path))
    feed = feed_of(spec(data_folder, by_files=by_files), rank=1, ranks=2, global_batch=6)
    list(feed.training(0))
    found = Counter(str(path.relative_to(data_folder)) for path in opened)
    assert set(found.values()) == {1}
    own = feed._train.pack.split(1, 2).shards if by_files else range(shards)
    assert 0 < len(own) < shards or not by_files
    train = {f"train/{shard_name(number)}" for number in own}
    assert set(found) == train | {"train/index.bin", "val/index.bin", "val/shard-00000.pack"}


@pytest.mark.parametrize(("side", "count"), [(100, MOST), (1024, 128), (8000, FEWEST)])
def test_of_large_pictures_fewer_are_looked_at(side, count):
    rows = np.zeros(1000, RECORD)
    rows["height"] = rows["width"] = side
    chosen = sample(rows)
    assert len(set(chosen)) == count
    assert chosen == sorted(chosen) == sample(rows)
    assert sample(rows[:3]) == [0, 1, 2]


@pytest.mark.parametrize(("dtype", "high"), [("<u2", 10_000), ("<f4", 3)])
def test_twelve_bands_with_several_labels(tmp_path, make_pack, dtype, high):
    chance = np.random.default_rng(1)
    stored = {}
    for part, count in (("train", 9), ("val", 4)):
        images = (chance.random((count, 20, 20, 12)) * high).astype(dtype)
        images[..., 5] = 2  # a band without content
        labels = chance.integers(0, 2, (count, 19), np.uint8)
        stored[part] = images, labels
        (tmp_path / f"{part} arrays").mkdir()
        np.save(tmp_path / f"{part} arrays" / "images.npy", images)
        np.save(tmp_path / f"{part} arrays" / "labels.npy", labels)
        make_pack(tmp_path / f"{part} arrays", to=f"data/{part}", seed=None, dtype=dtype)
    feed = feed_of(spec(tmp_path / "data", size=0, crop="whole"), global_batch=9)
    (batch,) = feed.training(0)
    images, labels = stored["train"]
    order = block_order(9, 3, 0)
    assert np.array_equal(batch.images, images[order])
    assert np.array_equal(batch.labels, labels[order])
    assert np.array_equal(evaluated(feed)[0], stored["val"][0])
    assert np.array_equal(evaluated(feed)[1], stored["val"][1])
    facts = feed.facts
    assert (facts.multi_label, facts.classes, facts.channels, facts.pixels) == (True, 19, 12, (20, 20))
    values = images.astype(np.float64)
    assert facts.mean == pytest.approx(values.mean((0, 1, 2)))
    spread = values.std((0, 1, 2))
    assert facts.std == pytest.approx(np.where(spread > 0, spread, 1))


def damage(pack_folder, records):
    """Overwrite ``records`` of a pack with zeros."""
    with Pack.open(pack_folder) as pack:
        rows = pack.rows[records]
    for row in rows:
        with (pack_folder / f"shard-{row['shard']:05d}.pack").open("r+b") as file:
            file.seek(int(row["offset"]))
            file.write(bytes(int(row["length"])))


def test_odd_samples_are_left_out_and_counted(data_folder):
    damage(data_folder / "train", [0, 1, 2])
    damage(data_folder / "val", [4])
    feed = feed_of(spec(data_folder), global_batch=7)
    trained = copied(feed.training(0))
    assert sum(len(labels) for _, labels, _ in trained) == 37
    assert sum(total for _, _, total in trained) == 40
    tested = copied(feed.evaluation(5, rank=0, ranks=1))
    assert sum(len(labels) for _, labels, _ in tested) == 16
    assert sum(total for _, _, total in tested) == feed.facts.test_samples == 17
    train, test = (feed.bad_samples[part] for part in ("train", "test"))
    assert (train.totals(), test.totals()) == (Counts(loaded=40, left_out=3), Counts(loaded=17, left_out=1))
    assert sorted(remark.record for remark in train.new_entries()) == [0, 1, 2]
    assert train.new_entries() == []
    assert {done for _, done in train.counts | test.counts} == {LEFT_OUT}


def test_substitutes_are_for_training_alone(data_folder):
    damage(data_folder / "train", [0, 1, 2])
    damage(data_folder / "val", [4])
    data = spec(data_folder, on_odd="substitute")
    assert [len(labels) for _, labels in together(data, 2)] == [7, 7, 7, 7, 7, 5]
    feed = feed_of(data)
    list(feed.training(0))
    assert feed.bad_samples["train"].totals() == Counts(loaded=40, replaced=3)
    shown = {remark.record: remark.instead for remark in feed.bad_samples["train"].listed}
    assert set(shown) == {0, 1, 2}
    assert not {0, 1, 2, None} & set(shown.values())
    assert len(evaluated(feed)[1]) == 16
    assert feed.bad_samples["test"].totals() == Counts(loaded=17, left_out=1)


@pytest.mark.parametrize("on_odd", ["skip", "substitute"])
def test_an_epoch_ends_as_soon_as_a_rank_alone_has_lost_too_much(data_folder, on_odd):
    """Half of 40 records are lost, and 5 may be: the sixth is met before the end, whatever is done with them."""
    damage(data_folder / "train", list(range(20)))
    feed = feed_of(spec(data_folder, odd_limit=0.125, on_odd=on_odd), global_batch=4)
    with pytest.raises(BadInput, match=r"[6-9] or more of 40 training samples could not be decoded"):
        list(feed.training(0))
    assert feed.bad_samples["train"].totals().loaded < 40
    assert sum(len(labels) for _, labels in together(spec(data_folder, odd_limit=0.5), 1)) == 20


def test_memory_is_what_the_largest_pictures_need_and_stays_so(data_folder, monkeypatch):
    given = []
    plain = pack_batches.slots

    def counted(*arguments):
        found = plain(*arguments)
        given.append(sum(one.nbytes for one in found))
        return found

    monkeypatch.setattr(pack_batches, "slots", counted)
    feed = feed_of(spec(data_folder, first_size=8, test_size=48, ahead=3), global_batch=7)
    for epoch in range(4):
        list(feed.training(epoch))
        list(feed.evaluation(5, rank=0, ranks=1))
    slots = 3 + 2  # ahead and held
    assert sorted(given) == sorted([slots * 7 * 32 * 32 * 3, slots * 5 * 48 * 48 * 3])


def test_closing_ends_the_threads_of_an_epoch_that_was_left(data_folder):
    feed = feed_of(spec(data_folder, threads=2))
    running, testing = feed.training(0), feed.evaluation(4, rank=0, ranks=1)
    next(running), next(testing)
    feed.close()
    assert not [one for one in threading.enumerate() if one.name.startswith("allpull-load")]


def test_the_parts_of_a_data_set_are_found(data_folder, tmp_path):
    (data_folder / "val").rename(data_folder / "test")
    assert feed_of(spec(data_folder)).facts.test_samples == 17
    alone = spec(data_folder / "train", test_path=str(data_folder / "test"))
    assert feed_of(alone).facts.test_samples == 17
    (data_folder / "test").rename(tmp_path / "elsewhere")
    assert feed_of(spec(data_folder, test_path=str(tmp_path / "elsewhere"))).facts.test_samples == 17
    with pytest.raises(BadInput, match="but no val or test"):
        check(spec(data_folder))
    with pytest.raises(BadInput, match="no test pack is given"):
        check(spec(data_folder / "train"))
    with pytest.raises(BadInput, match="not a pack and holds no pack train"):
        check(spec(tmp_path))
    with pytest.raises(BadInput, match="no folder"):
        check(spec(tmp_path / "nowhere"))
    with pytest.raises(BadInput, match="is empty"):
        check(spec(""))
    with pytest.raises(BadInput, match="not a pack: it has no index"):
        check(spec(data_folder, test_path=str(tmp_path)))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"first_size": 40}, "more than the final 32 pixels"),
        ({"growth_epochs": 3}, "first_size is not"),
        ({"test_size": 40, "test_resize": 39}, "less than the crop of 40 pixels"),
        ({"shift_pixels": 1}, "shift_pixels"),
    ],
)
def test_options_that_contradict_each_other_are_refused(data_folder, options, message):
    for door in (check, feed_of):
        with pytest.raises(BadInput, match=message):
            door(spec(data_folder, **options))


def test_a_recipe_that_shifts_pictures_is_told_what_to_set(data_folder):
    with pytest.raises(BadInput) as refused:
        check(spec(data_folder, shift_pixels=1))
    assert "set it to 0" in refused.value.hint


def test_packs_that_do_not_belong_together_are_refused(folder, data_folder, make_pack, tmp_path):
    other = tmp_path / "other classes"
    shutil.copytree(folder / "class 1", other / "class 1")
    make_pack(other, to="other")
    with pytest.raises(BadInput, match=r"other classes than .*: 1 \(class 1\) and not 3 \(class 0, class 1, class 2\)"):
        check(spec(data_folder, test_path=str(tmp_path / "other")))
    np.savez(tmp_path / "a.npz", images=np.zeros((6, 4, 4, 3), np.uint8), labels=np.eye(6, dtype=np.uint8)[:, :3])
    make_pack(tmp_path / "a.npz", to="several")
    with pytest.raises(BadInput, match="several has several labels"):
        check(spec(data_folder, test_path=str(tmp_path / "several")))


def test_a_test_part_may_lack_the_last_classes_and_must_have_the_same_bands(tmp_path, make_pack):
    labels = np.arange(6) % 3
    np.savez(tmp_path / "a.npz", images=np.zeros((6, 4, 4, 2), np.uint8), labels=labels)
    np.savez(tmp_path / "b.npz", images=np.zeros((3, 4, 4, 2), np.uint8), labels=np.array([0, 1, 0]))
    np.savez(tmp_path / "c.npz", images=np.zeros((6, 4, 4, 3), np.uint8), labels=labels)
    for name in "abc":
        make_pack(tmp_path / f"{name}.npz", to=name)
    feed = feed_of(spec(tmp_path / "a", size=0, test_path=str(tmp_path / "b")))
    assert (feed.facts.classes, feed.facts.pixels) == (3, (4, 4))
    with pytest.raises(BadInput, match=r"2 channels of .*, .*c 3"):
        check(spec(tmp_path / "a", test_path=str(tmp_path / "c")))


def test_hyperspectral_pictures_are_trained_on_with_any_resizer(tmp_path, make_pack):
    cubes = np.random.default_rng(0).integers(0, 4000, (4, 20, 20, 224), np.uint16)
    np.savez(tmp_path / "a.npz", images=cubes, labels=np.arange(4) % 2)
    path = make_pack(tmp_path / "a.npz", to="a", dtype="<u2").directory
    for resizer in ("auto", "pillow"):
        feed = feed_of(spec(path, test_path=str(path), size=12, flip=True, resizer=resizer), global_batch=4)
        (batch,) = feed.training(0)
        assert (batch.samples, batch.images.shape) == (4, (4, 12, 12, 224))


def test_pixels_that_are_no_numbers_are_refused_before_training(tmp_path, make_pack):
    images = np.zeros((4, 4, 4, 1), np.float32)
    images[2, 1, 1] = np.nan
    np.savez(tmp_path / "a.npz", images=images, labels=np.arange(4) % 2)
    make_pack(tmp_path / "a.npz", to="a", dtype="<f4")
    with pytest.raises(BadInput, match="not finite"):
        feed_of(spec(tmp_path / "a", test_path=str(tmp_path / "a")))
