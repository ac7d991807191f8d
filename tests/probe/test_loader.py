"""The probe of the loader: every sample counted once, the state of the files said as it is, the shuffle as it is."""

from __future__ import annotations

from itertools import count

import numpy as np
import pytest

pytest.importorskip("torch", reason="torch is not installed")

import json
from dataclasses import asdict

import torch

from allpull.analyse.probes.loader import knees, loaded
from allpull.data.loader.batches import Batch
from allpull.data.loader.order import block_order, quality
from allpull.data.pack.read import Pack
from allpull.errors import BadInput
from allpull.probe import loader
from allpull.probe.loader_data import describe_input, epochs, label_distance, shuffle
from allpull.rundir.read.probes import read_probe
from allpull.schema.base import tag
from allpull.schema.probed import LoaderPoint, LoaderResult, Spread
from allpull.schema.probes import LoaderAnswer
from allpull.schema.trainspec import DataSpec

pytestmark = pytest.mark.torch


def options(**changed: object) -> dict[str, object]:
    return {**asdict(DataSpec()), "size": 32, **changed}


class Counted:
    """Batches of 1, 2, 3 … samples, on a clock that goes on by a second with each."""

    def __init__(self, batches: int) -> None:
        self.batches, self.now, self.given = batches, 0.0, 0

    def training(self, epoch: int):
        for number in range(1, self.batches + 1):
            self.now += 1.0
            self.given += number
            yield Batch(images=np.zeros((1, 1)), labels=np.zeros(1), samples=number, global_samples=number)

    def clock(self) -> float:
        return self.now


@pytest.fixture
def timed(monkeypatch):
    """A function that loads from ``Counted`` on its clock."""

    def run(source: Counted, seconds: float, *, once: bool) -> loader.LoaderTimings:
        monkeypatch.setattr(loader.time, "perf_counter", source.clock)
        monkeypatch.setattr(loader, "drain", lambda batches: real(batches, source.clock))
        return loader.load(source, seconds, once=once)

    real = loader.drain
    return run


def test_every_batch_but_the_first_is_in_exactly_one_window(timed):
    told = timed(source := Counted(10), 1000.0, once=True)
    assert told.samples == source.given == 55
    assert sum(samples for samples, _ in told.windows) == 55 - 1
    assert sum(wall_s for _, wall_s in told.windows) == 9.0  # a second each, and none of them lost between windows


def test_windows_follow_each_other_without_a_gap_and_end_in_time(timed):
    told = timed(source := Counted(1000), 50.0, once=False)
    assert len(told.windows) == loader.WINDOWS
    assert [wall_s for _, wall_s in told.windows] == [9.0, 10.0, 10.0, 10.0, 10.0]  # the first batch took a second
    assert told.samples == source.given == sum(range(1, 51))
    assert sum(samples for samples, _ in told.windows) == told.samples - 1


def test_slow_batches_make_longer_windows_and_no_empty_ones(timed):
    told = timed(Counted(1000), 0.01, once=False)
    assert [wall_s for _, wall_s in told.windows] == [1.0] * loader.WINDOWS


def test_an_epoch_of_one_batch_has_no_rate(timed):
    assert timed(Counted(1), 5.0, once=True).windows == []


@pytest.fixture
def image_folder(tmp_path):
    """Two classes of ten images each in the part ``train``."""
    image = pytest.importorskip("PIL.Image", reason="Pillow is not installed")
    for label, name in enumerate(("cat", "dog")):
        folder = tmp_path / "train" / name
        folder.mkdir(parents=True)
        for number in range(10):
            image.fromarray(np.full((40, 50, 3), 100 * label + number, np.uint8)).save(folder / f"{number}.png")
    return tmp_path


def test_image_files_are_read_one_by_one_by_worker_processes(image_folder):
    subject = describe_input(str(image_folder), options(), batch=4, ranks=1)
    assert (subject.kind, subject.records, len(subject.shards)) == ("files", 20, 20)
    assert subject.bytes_per_sample == pytest.approx(np.mean([path.stat().st_size for path in subject.shards]))
    assert shuffle(subject, 1) is None
    timings = loader.load(subject.open(rank=0, ranks=1, threads=2), 60.0, once=True)
    assert timings.samples == 20
    assert sum(samples for samples, _ in timings.windows) == 20 - 4
    assert timings.bad_samples == frozenset()
    fewer = describe_input(str(image_folder), options(limit=6), batch=4, ranks=1)
    assert (fewer.records, sorted(set(fewer.images.labels))) == (6, [0, 1])


def test_a_folder_without_class_folders_is_no_input(tmp_path):
    with pytest.raises(BadInput, match="0 class folders"):
        describe_input(str(tmp_path), options(), batch=4, ranks=1)


def test_epochs_go_on_without_end_but_not_where_there_is_nothing():
    endless = epochs(Counted(3), once=False)
    assert [next(endless).samples for _ in range(7)] == [1, 2, 3, 1, 2, 3, 1]
    assert list(epochs(Counted(0), once=False)) == []


def test_what_ranks_tell_each_other_arrives_as_it_was():
    told = loader.LoaderTimings([(3, 0.5), (0, 0.25)], 4, 1.5)
    again = loader.unflat(loader.flat(told).tolist())
    assert again == told


def point(threads: int, rate: float, state: str = "cached") -> LoaderPoint:
    spread = Spread(median=rate, low=rate, high=rate, count=5)
    return LoaderPoint(
        ranks=1, hosts=1, threads=threads, state=state, resident=None, samples=1, samples_per_s=spread,
        samples_per_cpu_s=None, read_bytes_per_s=0.0,
    )  # fmt: skip


def test_the_knee_is_the_fewest_threads_with_nearly_the_highest_rate():
    (knee,) = knees([point(1, 100), point(2, 195), point(4, 300), point(8, 310)])
    assert (knee.threads, knee.samples_per_s) == (4, 310)
    (still_rising,) = knees([point(1, 100), point(2, 200)])
    assert still_rising.threads is None
    assert knees([point(2, 100)]) == []
    assert len(knees([point(1, 1), point(2, 1), point(1, 1, "cold"), point(2, 1, "cold")])) == 2


def test_a_rate_is_the_sum_of_the_rates_of_all_ranks_in_a_window():
    draws = [
        {"windows": [{"samples": 10, "seconds": 1.0}, {"samples": 30, "seconds": 1.0}], "samples": 44, "cpu_s": 2.0},
        {"windows": [{"samples": 5, "seconds": 0.5}, {"samples": 10, "seconds": 1.0}], "samples": 16, "cpu_s": 1.0},
    ]
    found = LoaderAnswer.model_validate({
        "schema": tag("loader"), "data": "d", "kind": "raw", "records": 9, "bytes_per_sample": 100.0, "size": 8,
        "batch": 5, "resizer": None, "ranks": 2, "ranks_per_host": 1, "cores": 1, "shuffle": None, "odd": 0,
        "points": [{"ranks": 2, "threads": 1, "state": "cold", "resident": 0.0, "draws": draws}], "left_out": [],
    })  # fmt: skip
    (one,) = loaded(found, "r").points
    assert (one.samples_per_s.median, one.samples_per_s.count) == (30.0, 2)  # (10 + 10, 30 + 10) a second
    assert (one.samples, one.samples_per_cpu_s, one.read_bytes_per_s) == (55, 20.0, 3000.0)
    assert (one.hosts, loaded(found, "r").hosts) == (2, 2)


def test_the_shuffle_of_blocks_is_that_of_their_order(make_pack, folder):
    made = make_pack(folder, kind="jpeg")
    subject = describe_input(str(made.directory), options(block=8), batch=4, ranks=2)
    found = shuffle(subject, 2)
    wanted = quality(block_order(40, 0, 0, block=8), 8)
    assert (found["quality"], found["records_per_read"]) == (wanted.shuffle, wanted.records_per_read)
    assert (found["seen_share"], found["label_distance"]) == (1.0, 0.0)


def test_files_of_their_own_show_ranks_a_part_of_the_labels(make_pack, folder):
    """In the order of the source the classes follow each other, so that the first half has other labels than all."""
    made = make_pack(folder, kind="jpeg", shard_bytes=1 << 16, seed=None)
    subject = describe_input(str(made.directory), options(by_files=True), batch=4, ranks=2)
    found = shuffle(subject, 2)
    assert 0.3 < found["seen_share"] <= 0.5
    assert found["label_distance"] > 0.25 > found["label_distance_by_chance"]
    shuffled = make_pack(folder, kind="jpeg", shard_bytes=1 << 16, to="shuffled")
    found = shuffle(describe_input(str(shuffled.directory), options(by_files=True), batch=4, ranks=2), 2)
    assert found["label_distance"] < 0.25
    assert found["quality"] > 0.8


def test_label_distance_of_disjoint_classes_is_what_the_others_have():
    labels = np.repeat(np.arange(4), 25)
    assert label_distance(labels, [range(25 * one, 25 * one + 25) for one in range(4)]) == 0.75
    assert label_distance(np.tile(np.arange(4), 25), [range(40), range(40, 100)]) == pytest.approx(0.0)


@pytest.mark.parametrize(
    ("changed", "fault"),
    [({"size": 30_000}, "more than half of the free memory"), ({"by_files": True}, "cannot be split")],
)
def test_what_cannot_be_loaded_is_said_beforehand(make_pack, folder, changed, fault):
    made = make_pack(folder, kind="jpeg")
    with pytest.raises(BadInput, match=fault):
        describe_input(str(made.directory), options(**changed), batch=60_000, ranks=3)


def test_what_is_no_pack_and_no_data_set_is_named():
    with pytest.raises(BadInput, match="neither a pack, nor a folder, nor the name of a data set"):
        describe_input("nosuch", options(), batch=1, ranks=1)


def test_a_pack_without_one_of_its_shards_is_named(make_pack, folder):
    made = make_pack(folder, kind="jpeg")
    (made.directory / "shard-00000.pack").unlink()
    with pytest.raises(BadInput, match="shard-00000"):
        describe_input(str(made.directory), options(), batch=1, ranks=1)


def test_a_picture_that_cannot_be_decoded_is_counted_once_however_often_it_is_seen(make_pack, folder):
    made = make_pack(folder, kind="jpeg")
    with Pack.open(made.directory) as pack:
        place, length = int(pack.rows["offset"][7]), int(pack.rows["length"][7])
    with (made.directory / "shard-00000.pack").open("r+b") as file:
        file.seek(place)
        file.write(bytes(length))
    subject = describe_input(str(made.directory), options(), batch=8, ranks=1)
    with pytest.warns(UserWarning, match="bad samples"):
        told = loader.load(subject.open(rank=0, ranks=1, threads=1), 0.5, once=False)
    assert told.bad_samples == {7}


@pytest.mark.slow
@pytest.mark.ranks
def test_two_ranks_read_a_pack_cold_warm_and_cached(probed, make_pack, folder, tmp_path):
    made = make_pack(folder, kind="jpeg", shard_bytes=1 << 17)
    result, record = probed(
        "loader", str(made.directory), "-n", "2", "--threads", "1", "--batch", "4", "--size", "32", "--for", "0.2s",
        "--by-files", "--set", "data.flip=true",
    )  # fmt: skip
    assert LoaderResult.model_validate(result).ranks == 2
    states = {one["state"] for one in result["points"]}
    assert {"warm", "cached"} <= states <= {"cold", "warm", "cached"}
    assert ("cold" in states) != any("cold" in reason for reason in result["left_out"])
    found = LoaderAnswer.model_validate(record)
    assert read_probe(tmp_path / "runs" / result["run"], "loader", LoaderAnswer) == found
    for one in found.points:
        assert len(one.draws) == one.ranks
        if one.state == "cold":  # one epoch, of which at most all was seen
            assert one.resident == pytest.approx(0, abs=0.02)
            assert sum(draw.samples for draw in one.draws) <= 40
        for draw, number in zip(one.draws, count()):
            assert sum(window.samples for window in draw.windows) < draw.samples, number
    assert found.shuffle is not None
    assert found.shuffle.seen_share == pytest.approx(0.5, abs=0.1)


def test_a_data_set_in_memory_needs_no_files(tmp_path):
    asked = {"data": "digits", "states": ["cold"], "threads": [4], "batch": 64, "seconds": 0.1}
    spec = {"launch": {"threads": torch.get_num_threads()}, "data": options()}
    (tmp_path / "job.json").write_text(json.dumps({"directory": str(tmp_path), "options": asked, "spec": spec}))
    loader.main(str(tmp_path / "job.json"))
    found = LoaderAnswer.model_validate_json((tmp_path / "probes" / "loader.json").read_text())
    assert [(one.state, one.threads) for one in found.points] == [("memory", 1)]
    assert (found.records, found.bytes_per_sample, found.shuffle) == (1437, 64.0, None)


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (("loader", "nosuch"), "neither a pack, nor a folder, nor the name of a data set"),
        (("loader", "digits", "--for", "0s"), "not between 0 and an hour"),
        (("loader", "digits", "--threads", "0"), "'0' is not a number between 1"),
        (("loader", "digits", "--states", "frozen"), "no state of the page cache 'frozen'"),
        (("loader", "digits", "--set", "data.block=4"), "data.block: this probe does not use it"),
        (("loader", "digits", "--set", "train.lr=1"), "train.lr: this probe does not use it"),
    ],
)
def test_what_makes_no_sense_is_one_clear_error(refused, arguments, expected):
    assert expected in refused(*arguments)
