"""A training tells how many of its samples were not as the others, lists them, and stops where they are too many."""

from __future__ import annotations

import json
import stat

import numpy as np
import pytest

pytest.importorskip("torch")
pytest.importorskip("PIL")

from tests.data.conftest import make_pack  # noqa: F401  fixture

from allpull.data.pack.read import Pack

TRAIN, TEST = 64, 16
LOST = [3, 4, 40]


@pytest.fixture
def packs(tmp_path, make_pack):  # noqa: F811
    """A folder of packs of grey JPEGs, of which three in ``train`` and one in ``val`` are overwritten with zeros."""
    from PIL import Image  # noqa: PLC0415

    chance = np.random.default_rng(0)
    for part, count in (("train", TRAIN), ("val", TEST)):
        for number in range(count):
            folder = tmp_path / f"{part} files" / f"class {number % 2}"
            folder.mkdir(parents=True, exist_ok=True)
            pixels = chance.integers(0, 256, (9, 9), np.uint8)
            Image.fromarray(pixels).save(folder / f"{number:02d}.jpg", quality=90)
        made = make_pack(tmp_path / f"{part} files", to=f"packs/{part}")
        with Pack.open(made.directory) as pack:
            rows = pack.rows[LOST if part == "train" else [7]]
        with (made.directory / "shard-00000.pack").open("r+b") as file:
            for row in rows:
                file.seek(int(row["offset"]))
                file.write(bytes(int(row["length"])))
    return tmp_path / "packs"


def options(packs, *more):
    data = ("data.name=pack", f"data.path={packs}", "data.shift_pixels=0", "data.size=8", "data.on_odd=substitute")
    return (*data, "train.epochs=2", "train.batch=8", "model.width=4", "observe.counters=false", *more)


def words(text):
    return " ".join(text.split())


@pytest.mark.slow
@pytest.mark.ranks
def test_odd_samples_of_all_ranks_are_said_once_counted_each_epoch_and_listed(train_digits, packs):
    done = train_digits(2, *options(packs, "data.odd_limit=0.0625"))
    assert done.code == 0, done.err
    said = "of 64 training samples, 3 replaced by others; of 16 test samples, 1 left out"
    assert words(done.err).count(said) == 1, done.err
    assert done.metric("samples_replaced") == [3, 3]
    assert done.metric("samples_left_out") == [0, 0]
    assert done.metric("test_samples_left_out") == [1, 1]
    files = sorted((done.directory / "job/logs").glob("odd-*.jsonl"))
    assert all(stat.S_IMODE(file.stat().st_mode) == 0o600 for file in files)
    listed = [json.loads(line) for file in files for line in file.read_text().splitlines()]
    for epoch in (0, 1):
        train = [one for one in listed if (one["part"], one["epoch"]) == ("train", epoch)]
        assert sorted(one["record"] for one in train) == LOST
        assert not {one["instead"] for one in train} & set(LOST)
    assert [one["record"] for one in listed if one["part"] == "test"] == [7, 7]
    assert {one["reason"] for one in listed} == {"its checksum is wrong"}


@pytest.mark.slow
@pytest.mark.ranks
def test_more_than_the_share_that_is_allowed_stops_the_training_and_says_why(train_digits, packs):
    """Of 64 samples 1 % is none; of 16 to test on 1 is 6 %, of 64 to train on 3 are 5 %."""
    for limit, what in (("0.01", "of 64 training samples"), ("0.05", "1 of 16 test samples")):
        done = train_digits(1, *options(packs, f"data.odd_limit={limit}"))
        assert done.code == 2, done.err
        assert f"{what} could not be decoded, more than data.odd_limit = {limit}" in words(done.err)
        assert "increase data.odd_limit" in words(done.err)
        assert "Traceback" not in done.err
        assert (done.directory / "job/logs/odd-00000.jsonl").exists()


@pytest.mark.slow
@pytest.mark.ranks
def test_who_stops_within_an_epoch_is_not_judged_by_a_few_steps_and_goes_on(train_digits, packs):
    """Of the first 8 samples one that is lost would be 12 %; of the epoch it is 3 of 64."""
    limit = "data.odd_limit=0.0625"
    for after in (1, 3):
        done = train_digits(1, *options(packs, limit, f"train.stop_after={after}"))
        assert done.code == 0, done.err
    again = train_digits(1, *options(packs, limit), resume=done.directory)
    assert again.code == 0, again.err


@pytest.mark.slow
@pytest.mark.ranks
def test_an_image_folder_is_trained_on_by_worker_processes_whose_reading_counts(train_digits, packs):
    """The damaged file is named as one of a pack is, and ranks have read all files, though their workers did it."""
    files = packs.parent / "files"
    files.mkdir()
    for part in ("train", "val"):
        (packs.parent / f"{part} files").rename(files / part)
    (files / "train" / "class 1" / "03.jpg").write_bytes(b"no image")
    size = sum(path.stat().st_size for path in (files / "train").rglob("*.jpg"))
    options = ("data.name=imagefolder", f"data.path={files}", "data.workers=1", "data.shift_pixels=0", "data.size=8")
    done = train_digits(2, *options, "data.odd_limit=0.1", "train.epochs=2", "train.batch=8", "model.width=4")
    assert done.code == 0, done.err
    assert words(done.err).count("of 64 training samples, 1 left out") == 1, done.err
    assert done.metric("data_workers") == [1]
    assert done.metric("samples_left_out") == [1, 1]
    (counters,) = (done.directory / "counters").iterdir()
    last = json.loads(counters.read_text().splitlines()[-1])
    assert sum(one["read_bytes"] for one in last["ranks"].values()) > 2 * size
