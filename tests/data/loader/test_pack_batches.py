"""Batches of a pack: the same for any ranks and threads, resumed at once, with the pixels they should have."""

from __future__ import annotations

import threading

import numpy as np
import pytest
from PIL import Image
from tests.data.conftest import as_jpeg

from allpull.data.images import decode
from allpull.data.jpeg.crop import Box
from allpull.data.loader.bad_samples import LEFT_OUT
from allpull.data.loader.batches import Plan
from allpull.data.loader.crop import DRAWS, Transform, View, views
from allpull.data.loader.decode import Decoder, StoredRecord, jobs, read
from allpull.data.loader.order import uniforms
from allpull.data.loader.pack_batches import DAMAGED, PackBatches, Reading
from allpull.data.loader.resize import resize_antialiased, resizing
from allpull.data.loader.throughput import drain
from allpull.data.pack.read import Pack
from allpull.data.pack_format import shard_name
from allpull.errors import BadInput

LOOK = Transform(size=32, mirror=True, turn=True)


def source_of(path, *, rank=0, ranks=1, transform=LOOK, batch=7, **reading) -> PackBatches:
    reading = {"resizer": "pillow", **reading}
    plan = Plan(global_batch=batch, rank=rank, ranks=ranks, seed=5)
    return PackBatches(path, plan, transform, Reading(**reading))


def copied(batches) -> list[tuple[np.ndarray, np.ndarray, int, int]]:
    return [(one.images.copy(), one.labels, one.samples, one.global_samples) for one in batches]


def together(path, ranks, *, first_step=0, **options):
    """The global batches of epoch 3: images and labels of all ranks, one after the other."""
    shares = [
        copied(source_of(path, rank=rank, ranks=ranks, **options).training(3, first_step)) for rank in range(ranks)
    ]
    return [
        (
            np.concatenate([images[:samples] for images, _, samples, _ in step]),
            np.concatenate([labels[:samples] for _, labels, samples, _ in step]),
        )
        for step in zip(*shares, strict=True)
    ]


def same(left, right) -> bool:
    return len(left) == len(right) and all(
        np.array_equal(a, b) for one, other in zip(left, right, strict=True) for a, b in zip(one, other, strict=True)
    )


@pytest.mark.parametrize("shuffle", [{}, {"block": 5}, {"block": 4, "mixed": 3}])
def test_any_number_of_ranks_and_threads_gives_the_same_global_batches(folder, make_pack, shuffle):
    path = make_pack(folder, kind="jpeg-restart").directory
    one = together(path, 1, threads=1, **shuffle)
    assert sum(len(labels) for _, labels in one) == 40
    for ranks in (1, 2, 4):
        assert same(one, together(path, ranks, threads=4, **shuffle))
    assert not same(one, copied(source_of(path).training(4)))


def test_resume_is_the_rest_of_the_epoch_also_with_other_ranks(folder, make_pack):
    path = make_pack(folder).directory
    whole = together(path, 1)
    assert same(whole[3:], together(path, 1, first_step=3))
    assert same(whole[3:], together(path, 3, first_step=3, threads=3))


@pytest.mark.parametrize("kind", ["jpeg", "jpeg-restart", "raw"])
def test_pixels_are_those_of_decoding_all_then_cutting(folder, make_pack, kind):
    """To the bit: the reference decodes each picture whole by the pack's ladder, cuts, resizes, mirrors, turns."""
    path = make_pack(folder, kind=kind).directory
    source = source_of(path, batch=40, transform=Transform(size=24, area=(0.02, 0.6), mirror=True, turn=True))
    (batch,) = source.training(1)
    with Pack.open(path) as pack:
        order = source.shares.order(1)
        sizes = np.stack([pack.rows["height"], pack.rows["width"]], 1).astype(np.int64)[order]
        seen = views(source.transform, sizes, uniforms(5, 1, order, DRAWS))
        for record, view, image, label in zip(order, seen, batch.images, batch.labels, strict=True):
            whole = pack.pixels(record) if kind == "raw" else decode(pack.record(record))[0]
            box, slot = view.box, np.zeros((24, 24, 3), np.uint8)
            resize_antialiased(whole[box.top :, box.left :][: box.height, : box.width], slot)
            slot = np.rot90(slot[:, ::-1] if view.mirrored else slot, view.turns)
            assert np.array_equal(slot, image)
            assert label == pack.labels[record]
    assert not source.bad_samples.counts


def test_no_even_row_of_pixels_begins_where_libjpeg_turbo_stores_past_the_caches(photos):
    """Its aligned stores are at multiples of 16 and 32 bytes; a picture's rows are an even number of bytes apart."""
    decoder = Decoder(LOOK, resizing("pillow"))
    pixels = decoder._jpeg(as_jpeg(photos[0].resize((320, 40))), (40, 320))
    assert all(row.ctypes.data % 2 for row in pixels)
    assert np.array_equal(pixels, decode(as_jpeg(photos[0].resize((320, 40))))[0])


def test_twelve_bands_of_sixteen_bits_come_as_they_are_with_all_their_labels(tmp_path, make_pack):
    chance = np.random.default_rng(3)
    bands = chance.integers(0, 10_000, (9, 20, 20, 12), np.uint16)
    labels = chance.integers(0, 2, (9, 19), np.uint8)
    (tmp_path / "arrays").mkdir()
    np.save(tmp_path / "arrays" / "images.npy", bands)
    np.save(tmp_path / "arrays" / "labels.npy", labels)
    path = make_pack(tmp_path / "arrays", seed=None, dtype="<u2").directory
    source = source_of(path, batch=9, transform=Transform(size=20, crop="whole"))
    (batch,) = source.training(0)
    order = source.shares.order(0)
    assert np.array_equal(batch.images, bands[order])
    assert np.array_equal(batch.labels, labels[order])


def test_ranks_with_files_of_their_own_see_only_those_and_end_together(folder, make_pack):
    path = make_pack(folder, kind="raw", shard_bytes=1 << 20).directory
    sources = [source_of(path, rank=rank, ranks=3, by_files=True, transform=Transform(size=8)) for rank in range(3)]
    assert len({tuple(one.shares.own) for one in sources}) == 3
    shares = [list(one.shares.of(2)) for one in sources]
    assert len({len(one) for one in shares}) == 1
    for source, own in zip(sources, shares, strict=True):
        seen = np.concatenate([share.records[: share.counted] for share in own])
        assert sorted(seen.tolist()) == list(source.shares.own)
        list(source.training(2))  # none asks for a file of another rank: reading one is an error
    for step in zip(*shares, strict=True):
        assert {share.global_samples for share in step} == {sum(share.counted for share in step)}


def test_a_rank_without_samples_borrows_one_that_does_not_count(folder, make_pack):
    path = make_pack(folder, kind="raw").directory
    last = copied(source_of(path, rank=3, ranks=4, batch=39, transform=Transform(size=8)).training(0))[-1]
    assert (len(last[0]), last[2], last[3]) == (1, 0, 1)


def test_evaluation_gives_each_record_once_without_chance(folder, make_pack):
    path = make_pack(folder).directory
    transform = Transform(size=32, crop="centre", short_side=40)
    seen = {}
    for rank in range(3):
        source = source_of(path, rank=rank, ranks=3, transform=transform, threads=3)
        seen[rank] = np.concatenate([batch.images.copy() for batch in source.evaluation(4)])
    alone = np.concatenate([batch.images.copy() for batch in source_of(path, transform=transform).evaluation(16)])
    assert np.array_equal(np.concatenate([seen[rank] for rank in range(3)]), alone)
    with pytest.raises(BadInput, match="evaluation by random crops"):
        source_of(path).evaluation(4)


@pytest.mark.parametrize("kind", ["jpeg", "jpeg-restart", "raw"])
@pytest.mark.parametrize("access", ["read", "map"])
def test_a_bit_that_flipped_after_the_pack_was_made_is_noticed_at_the_first_read(folder, make_pack, kind, access):
    """A flipped pixel decodes as well as any other; each epoch leaves the record out, whatever view it takes."""
    path = make_pack(folder, kind=kind, to=kind).directory
    with Pack.open(path) as pack:
        place = pack.rows[3]
    with (path / shard_name(int(place["shard"]))).open("r+b") as file:
        file.seek(int(place["offset"]) + int(place["length"]) // 2)
        byte = file.read(1)[0]
        file.seek(-1, 1)
        file.write(bytes([byte ^ 4]))
    source = source_of(path, access=access)
    for epoch in range(2):
        for batch in source.training(epoch):
            assert batch.samples <= len(batch.images)
    assert [(one.epoch, one.record, one.reason, one.done) for one in source.bad_samples.listed] == [
        (epoch, 3, DAMAGED, LEFT_OUT) for epoch in range(2)
    ]


def damaged(folder, make_pack, count=4):
    """A pack with ``count`` JPEGs that have been overwritten since."""
    written = make_pack(folder)
    with Pack.open(written.directory) as pack:
        rows = pack.rows[:count]
    for row in rows:
        with (written.directory / f"shard-{row['shard']:05d}.pack").open("r+b") as file:
            file.seek(int(row["offset"]))
            file.write(bytes(int(row["length"])))
    return written.directory


def test_what_cannot_be_decoded_is_left_out_counted_and_listed(folder, make_pack):
    path = damaged(folder, make_pack)
    source = source_of(path)
    batches = copied(source.training(3))
    assert sum(samples for _, _, samples, _ in batches) == 36
    assert sum(total for *_, total in batches) == 40
    assert {(one.record, one.done) for one in source.bad_samples.listed} == {
        (record, "left out") for record in range(4)
    }
    assert all(images[:samples].any(axis=(1, 2, 3)).all() for images, _, samples, _ in batches)


def test_substitutes_are_the_same_on_any_ranks_and_bring_their_labels(folder, make_pack):
    path = damaged(folder, make_pack)
    one = together(path, 1, on_odd="substitute")
    assert [len(labels) for _, labels in one] == [7, 7, 7, 7, 7, 5]
    assert same(one, together(path, 4, threads=3, on_odd="substitute"))


def test_where_nothing_can_be_decoded_batches_still_come(folder, make_pack):
    path = damaged(folder, make_pack, count=40)
    for policy in ("skip", "substitute"):
        batches = copied(source_of(path, on_odd=policy).training(0))
        assert [samples for _, _, samples, _ in batches] == [0] * 6
        assert all(len(images) == len(labels) == 1 for images, labels, *_ in batches)


@pytest.mark.parametrize("kind", ["jpeg", "jpeg-restart"])
def test_odd_pictures_are_decoded_by_the_ladder(photos, tmp_path, make_pack, kind):
    picture = photos[0].resize((120, 80))
    root = tmp_path / "odd" / "class"
    root.mkdir(parents=True)
    for number, odd in enumerate([picture.convert("CMYK"), picture.convert("L"), picture.resize((1, 1))]):
        (root / f"{number}.jpg").write_bytes(as_jpeg(odd))
    (root / "wide.jpg").write_bytes(as_jpeg(picture.resize((20_000, 3))))
    picture.save(root / "called.jpg", "PNG")
    Image.fromarray(np.arange(0, 65536, 1024, dtype=np.uint16)[None].repeat(8, 0)).save(root / "sixteen.png")
    source = source_of(make_pack(root.parent, kind=kind).directory)
    assert sum(batch.samples for batch in source.training(0)) == 6
    assert {remark.done for remark in source.bad_samples.listed} == {"decoded by Pillow"}
    assert "PNG of mode RGB" in {remark.reason for remark in source.bad_samples.listed}


def test_a_pack_that_claims_a_picture_of_another_size_is_refused_before_memory_is(folder, make_pack):
    path = make_pack(folder).directory
    source = source_of(path, batch=40)
    rows = source.pack.rows.copy()
    rows["height"], rows["width"] = 60_000, 60_000
    source.pack.rows = rows
    (batch,) = source.training(0)
    assert batch.samples == 0
    assert set(source.bad_samples.counts) == {("more than 67,108,864 pixels", LEFT_OUT)}


def test_cached_batches_are_the_first_again_and_leave_no_thread(folder, make_pack):
    source = source_of(make_pack(folder).directory, cached=True)
    batches = source.training(0)
    first = next(batches)
    assert not [one for one in threading.enumerate() if one.name.startswith("allpull-load")]
    rest = list(batches)
    assert len(rest) == source.steps - 1
    assert all(batch is first for batch in rest)


def test_a_loop_that_is_left_leaves_no_thread(folder, make_pack):
    batches = source_of(make_pack(folder).directory, threads=4).training(0)
    next(batches)
    batches.close()
    assert not [one for one in threading.enumerate() if one.name.startswith("allpull-load")]


def test_the_loader_alone_is_timed_from_its_second_batch_on(folder, make_pack):
    source = source_of(make_pack(folder, kind="raw").directory)
    ticks = iter([10.0, 14.0])
    drained = drain(source.training(0), clock=lambda: next(ticks))
    assert (drained.batches, drained.samples, drained.wall_s, drained.samples_per_s) == (5, 33, 4.0, 33 / 4)


def test_nothing_below_a_crop_is_decoded_and_little_of_raw_pixels_is_read(folder, make_pack, monkeypatch):
    """The last third of each record is overwritten; views of the first third are what they were, and nothing is odd."""
    for kind in ("jpeg", "raw"):
        path = make_pack(folder, kind=kind, to=kind).directory
        source = source_of(path)
        view = View(box=Box(top=3, left=5, height=30, width=40))
        stored = [StoredRecord.of(source.pack, record) for record in range(40)]
        tall = [one for one in stored if one.row.height > 200]
        assert len(tall) > 10
        for one in tall:
            slots = np.zeros((2, 32, 32, 3), np.uint8)
            damaged = bytearray(one.whole)
            damaged[len(damaged) * 2 // 3 : -2] = bytes(len(damaged) - 2 - len(damaged) * 2 // 3)
            assert source.decoder.into(slots[0], one, view) == ""
            assert source.decoder.into(slots[1], StoredRecord(one.row, bytes(damaged), one.dtype), view) == ""
            assert np.array_equal(*slots)
    list(source.training(0))  # reads records whole, to compare their checksums
    asked = []
    read_range = source.pack.read_range
    monkeypatch.setattr(source.pack, "read_range", lambda *place: asked.append(place[2]) or read_range(*place))
    list(source.training(1))
    lengths = source.pack.rows["length"].astype(int)
    assert sum(asked) < 0.9 * lengths.sum()


def test_neighbours_are_read_at_once_into_the_memory_of_the_thread(folder, make_pack):
    path = make_pack(folder, kind="jpeg", shard_bytes=60_000).directory
    source = source_of(path)
    records = np.array([7, 3, 4, 5, 6, 20, 39, 0])
    seen = [View(box=Box(top=0, left=0, height=1, width=1))] * 8
    (job,) = jobs(source.pack, 0, records, seen)
    assert [one.record for one in job.samples] == sorted(records)
    assert [records[one.slot] for one in job.samples] == sorted(records)
    memory = np.zeros(1 << 20, np.uint8).data
    found = [bytes(one.whole) for one in read(source.pack, job.samples, memory)]
    assert found == [bytes(source.pack.whole(record)) for record in sorted(records)]
    small = [bytes(one.whole) for one in read(source.pack, job.samples, memory[:10])]
    assert small == found  # what has no room there gets its own
