"""The probe of storage: every byte counted, nothing left behind however it ends, no disk filled."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from allpull.analyse.probes.storage import stored
from allpull.errors import BadInput
from allpull.probe import disk
from allpull.probe.disk import PAGE_BYTES, Scratch, check_space, file_system, name_operations, names
from allpull.rundir.read.probes import read_probe
from allpull.schema.base import tag
from allpull.schema.probes import StorageAnswer

MIB = 1 << 20
SIZE = 4 * MIB

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="preadv and posix_fadvise of Linux")


@pytest.fixture
def scratch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Scratch]:
    """A function that makes a file, without O_DIRECT if so asked."""

    def make(*, direct: bool) -> Scratch:
        if not direct:
            monkeypatch.setattr(disk, "_open_direct", lambda _: (-1, "the file system does not allow O_DIRECT"))
        return Scratch(tmp_path, SIZE, "file")

    return make


def test_the_file_has_no_name_and_no_two_pages_alike(scratch, tmp_path):
    made = scratch(direct=False)
    assert list(tmp_path.iterdir()) == []
    whole = os.pread(made._file, SIZE + 1, 0)
    assert len(whole) == SIZE
    pages = [whole[start : start + PAGE_BYTES] for start in range(0, SIZE, PAGE_BYTES)]
    assert [int.from_bytes(page[:8], "little") for page in pages] == list(range(0, SIZE, PAGE_BYTES))
    assert len(set(pages)) == SIZE // PAGE_BYTES
    made.close()


@pytest.mark.parametrize(
    ("size", "random", "threads"),
    [(MIB, False, 1), (MIB, False, 3), (4096, True, 1), (131072, True, 4), (MIB, True, 9)],
)
def test_without_direct_reads_all_is_read_exactly_once(scratch, size, random, threads):
    made = scratch(direct=False)
    if made.way == "cached":
        pytest.skip("this file system is memory itself")
    done = made.read(size=size, random=random, threads=threads, seconds=60.0)
    assert done.ops == SIZE // size
    assert done.seconds > 0
    assert made._drop()  # and nothing of it is left for the next
    made.close()


def test_reads_go_to_every_place_once_whatever_their_order(scratch, monkeypatch):
    made, places, read = scratch(direct=False), [], os.preadv
    monkeypatch.setattr(os, "preadv", lambda file, into, place: places.append(place) or read(file, into, place))
    made.read(size=131072, random=True, threads=1, seconds=60.0, seed=1)
    if made.way == "dropped":
        assert sorted(places) == list(range(0, SIZE, 131072))
    assert places != sorted(places)
    made.close()


def test_direct_reads_that_are_refused_are_not_tried_again(scratch, monkeypatch):
    def refuse(_: Path) -> tuple[int, str]:
        return os.open("/", os.O_RDONLY), ""  # opens, and cannot be read

    monkeypatch.setattr(disk, "_open_direct", refuse)
    made = scratch(direct=True)
    assert made.way != "direct"
    assert "does not read by it" in made.why
    made.close()


def test_direct_reads_go_on_until_the_time_is_over(scratch):
    made = scratch(direct=True)
    if made.way != "direct":
        pytest.skip(made.why)
    done = made.read(size=MIB, random=False, threads=2, seconds=0.3)
    assert done.ops >= 1
    assert done.seconds >= 0.3
    made.close()


def test_pages_that_stay_in_memory_are_said_to(scratch, monkeypatch):
    monkeypatch.setattr(disk.pagecache, "drop_pages", lambda _: False)
    made = scratch(direct=False)
    assert (made.way, "out of memory" in made.why) == ("cached", True)
    assert made.read(size=MIB, random=True, threads=1, seconds=0.05).ops > 0
    made.close()


def test_memory_is_not_taken_for_a_disk_because_it_allows_direct_reads():
    if file_system(Path("/dev/shm")) != "tmpfs" or not os.access("/dev/shm", os.W_OK):
        pytest.skip("no tmpfs in /dev/shm")
    made = Scratch(Path("/dev/shm"), SIZE, f"allpull-test-{os.getpid()}")
    assert made.way == "cached"
    made.close()


def test_what_is_written_reaches_the_disk_before_it_is_overwritten(scratch, monkeypatch):
    made, unflushed = scratch(direct=False), [0]
    real_pwrite, real_fsync = os.pwrite, os.fsync

    def pwrite(descriptor: int, data: bytes, place: int) -> int:
        unflushed[-1] += len(data)
        return real_pwrite(descriptor, data, place)

    def fsync(descriptor: int) -> None:
        real_fsync(descriptor)
        unflushed.append(0)

    monkeypatch.setattr(os, "pwrite", pwrite)
    monkeypatch.setattr(os, "fsync", fsync)
    done = made.write(seconds=0.1)
    assert max(unflushed) <= SIZE
    assert sum(unflushed) == done.ops * MIB
    assert unflushed[-1] == 0


def test_writes_keep_the_size_of_the_file(scratch):
    made = scratch(direct=False)
    assert made.write(seconds=0.0).ops == 1
    assert made.write(seconds=0.1).ops >= 1
    assert os.fstat(made._file).st_size == SIZE
    made.close()


def test_names_are_made_and_removed_by_the_same_number(tmp_path):
    with names(tmp_path / "place"):
        done = name_operations(tmp_path / "place", seconds=0.02)
        assert list((tmp_path / "place").iterdir()) == []
    assert [*done] == ["create", "stat", "open", "unlink"]
    assert len({one.ops for one in done.values()}) == 1
    assert all(one.ops % disk.NAMES_AT_ONCE == 0 and one.seconds > 0 for one in done.values())
    assert not (tmp_path / "place").exists()


def test_a_folder_that_is_there_already_is_left_alone(tmp_path):
    (tmp_path / "place").mkdir()
    with pytest.raises(BadInput, match="File exists"), names(tmp_path / "place"):
        pass
    assert (tmp_path / "place").exists()


def test_names_are_gone_after_whatever_went_wrong(tmp_path):
    with pytest.raises(FileExistsError), names(tmp_path / "place"):
        (tmp_path / "place").mkdir()
    assert not (tmp_path / "place").exists()


def test_no_disk_is_filled(tmp_path):
    free = shutil.disk_usage(tmp_path).free
    check_space(tmp_path, free // 4)
    with pytest.raises(BadInput, match="more than half"):
        check_space(tmp_path, free)


@pytest.mark.parametrize(("place", "fault"), [("absent", "no such folder"), ("file", "no such folder")])
def test_what_is_no_folder_is_named(tmp_path, place, fault):
    (tmp_path / "file").touch()
    with pytest.raises(BadInput, match=fault):
        check_space(tmp_path / place, 1)


def test_a_folder_that_may_not_be_written_is_named(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "access", lambda *_: False)
    with pytest.raises(BadInput, match="may not write"):
        check_space(tmp_path, 1)


def test_a_disk_that_refuses_leaves_nothing(tmp_path, monkeypatch):
    def full(*_: object) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "pwrite", full)
    with pytest.raises(BadInput, match="No space left"):
        Scratch(tmp_path, SIZE, "file")
    assert list(tmp_path.iterdir()) == []


def test_rates_of_hosts_are_added_and_compared_with_one_alone():
    def parts(*ops: int) -> list[list[dict[str, float]]]:
        return [[{"ops": one, "seconds": 2.0} for one in ops]]

    found = StorageAnswer.model_validate({
        "schema": tag("storage"), "path": "/p", "file_system": None, "file_bytes": SIZE, "way": "direct", "why": "",
        "ceiling_ops_per_s": 1.0, "ranks": 4, "ranks_per_host": 2,
        "points": [
            {"ranks": 1, "threads": 1, "op": "read", "size_bytes": MIB, "parts": parts(90)},
            {"ranks": 2, "threads": 1, "op": "read", "size_bytes": MIB, "parts": parts(60, 40)},
            {"ranks": 4, "threads": 1, "op": "read", "size_bytes": MIB, "parts": parts(30, 30, 30, 30)},
            {"ranks": 4, "threads": 1, "op": "stat", "size_bytes": 0, "parts": parts(1, 1, 1, 1)},
        ],
    })  # fmt: skip
    one, two, four, stat = stored(found, "r").points
    assert (one.hosts, two.hosts, four.hosts) == (1, 1, 2)
    assert (one.ops_per_s.median, two.ops_per_s.median, four.ops_per_s.median) == (45.0, 50.0, 60.0)
    assert four.bytes_per_s.median == 60.0 * MIB
    assert (four.ops, four.per_host_ops_per_s, four.of_alone) == (120, 30.0, 0.6)
    assert (one.of_alone, two.of_alone, stat.of_alone, stat.bytes_per_s) == (None, None, None, None)


@pytest.mark.slow
@pytest.mark.ranks
def test_two_ranks_read_at_once_and_leave_nothing(probed, tmp_path):
    place = tmp_path / "place"
    place.mkdir()
    result, record = probed(
        "storage", str(place), "-n", "2", "--sizes", "4KiB,1MiB", "--threads", "1,2", "--file-size", "4MiB",
        "--for", "0.1s",
    )  # fmt: skip
    assert list(place.iterdir()) == []
    found = StorageAnswer.model_validate(record)
    assert read_probe(tmp_path / "runs" / result["run"], "storage", StorageAnswer) == found
    kinds = [(one["ranks"], one["op"], one["size_bytes"], one["threads"]) for one in result["points"]]
    data = [("write", MIB, 1), ("read", MIB, 1), ("read", MIB, 2)]
    data += [("random read", size, threads) for size in (4096, MIB) for threads in (1, 2)]
    wanted = [*data, *((op, 0, 1) for op in ("create", "stat", "open", "unlink"))]
    assert kinds == [(ranks, *one) for ranks in (1, 2) for one in wanted]
    for one, raw in zip(result["points"], found.points, strict=True):
        assert one["ops"] == sum(part.ops for parts in raw.parts for part in parts) > 0
        assert [len(parts) for parts in raw.parts] == [raw.ranks] * 3
    assert found.way in {"direct", "dropped", "cached"}


@pytest.mark.slow
@pytest.mark.ranks
@pytest.mark.root
@pytest.mark.skipif(os.geteuid() != 0 or shutil.which("tc") is None, reason="needs root and iproute2")
def test_several_hosts_at_once_are_compared_with_one_alone(probed, tmp_path):
    place = tmp_path / "place"
    place.mkdir()
    (tmp_path / "c.toml").write_text('[cluster]\nhosts = 2\nranks_per_host = 1\nlink = "1 Gbit/s"\n')
    result, _ = probed(
        "storage", str(place), "--launcher", "rehearse:c.toml", "--sizes", "4KiB", "--threads", "1",
        "--file-size", "4MiB", "--for", "0.1s",
    )  # fmt: skip
    assert list(place.iterdir()) == []
    assert result["hosts"] == 2
    alone, both = (
        next(one for one in result["points"] if (one["hosts"], one["op"]) == (hosts, "read")) for hosts in (1, 2)
    )
    assert alone["of_alone"] is None
    assert both["per_host_ops_per_s"] == pytest.approx(both["ops_per_s"]["median"] / 2)
    assert both["of_alone"] == pytest.approx(both["per_host_ops_per_s"] / alone["ops_per_s"]["median"])


@pytest.mark.slow
@pytest.mark.ranks
def test_one_that_is_stopped_leaves_nothing(tmp_path):
    place = tmp_path / "place"
    place.mkdir()
    command = [
        sys.executable,
        "-m",
        "allpull",
        "probe",
        "storage",
        str(place),
        "--file-size",
        "4MiB",
        "--sizes",
        "4KiB",
    ]
    command += ["--threads", "1", "--for", "30s", "--out", str(tmp_path / "runs")]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, cwd=tmp_path)
    deadline = time.monotonic() + 120
    while not open_below(place) and time.monotonic() < deadline and process.poll() is None:
        time.sleep(0.05)
    assert process.poll() is None
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=60)
    assert process.returncode == 128 + signal.SIGINT, said
    assert list(place.iterdir()) == []
    assert not open_below(place)


def open_below(place: Path) -> bool:
    """Whether some process holds a file of ``place`` open, with or without a name."""
    for link in Path("/proc").glob("[0-9]*/fd/*"):
        try:
            if os.readlink(link).startswith(f"{place}/"):
                return True
        except OSError:
            continue
    return False


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (("absent",), "no such folder"),
        ((".", "--file-size", "1MiB"), "not between 4 MiB and 1 TiB"),
        ((".", "--file-size", "900GiB"), "more than half"),
        ((".", "--sizes", "5000"), "no multiple of 4 KiB"),
        ((".", "--for", "0s"), "not between 0 and an hour"),
        ((".", "--threads", "many"), "'many' is not a number"),
    ],
)
def test_what_makes_no_sense_is_one_clear_error(refused, arguments, expected):
    assert expected in refused("storage", *arguments)
