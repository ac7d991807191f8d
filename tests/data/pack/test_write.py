"""The same source gives the same bytes, whatever the workers and however often the writer was killed."""

from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from allpull.data.images import decode, resized
from allpull.data.jpeg.crop import Box
from allpull.data.pack.encode import Recipe
from allpull.data.pack.encode_workers import CHUNK, outcomes
from allpull.data.pack.info import describe, lines
from allpull.data.pack.journal import Journal
from allpull.data.pack.plan import Layout, check_space, forecast, plan
from allpull.data.pack.read import Pack
from allpull.data.pack.verify import verify
from allpull.data.pack.write import write_pack
from allpull.data.pack_format import INDEX, JOURNAL, NAMES
from allpull.data.sources.imagefolder import listing
from allpull.errors import AllpullError, BadInput


def contents(directory: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(directory.iterdir())}


@pytest.mark.parametrize("kind", ["jpeg", "jpeg-restart", "jpeg-side", "raw"])
def test_records_are_the_source(folder, make_pack, kind):
    side = 96 if kind in ("jpeg-side", "raw") else None
    done = make_pack(folder, kind=kind, side=side)
    assert verify(done.directory).faults == 0
    with Pack.open(done.directory) as pack, Pack.open(done.directory, access="map") as mapped:
        names = pack.names()
        assert sorted(names) == sorted(str(path.relative_to(folder)) for path in folder.rglob("*.jpg"))
        assert names != sorted(names)  # shuffled, so that neighbours are of different classes
        for number, name in enumerate(names):
            original = (folder / name).read_bytes()
            whole, _ = decode(original)
            assert pack.header.classes[pack.labels[number]] == name.partition("/")[0]
            assert bytes(pack.whole(number)) == bytes(mapped.whole(number))
            if kind == "jpeg":
                assert pack.record(number) == original
            elif kind == "jpeg-restart":
                assert np.array_equal(decode(pack.record(number))[0], whole)
                part = pack.crop(number, Box(top=5, left=30, height=40, width=50))
                found = decode(part.jpeg)[0][part.box.top :, part.box.left :][:40, :50]
                assert np.array_equal(found, whole[5:45, 30:80])
            elif kind == "raw":
                assert np.array_equal(pack.pixels(number), resized(whole, 96))
                assert min(pack.pixels(number).shape[:2]) == 96
            else:
                small = decode(pack.record(number))[0].astype(int)
                assert min(small.shape[:2]) == 96
                assert np.abs(small - resized(whole, 96)).mean() < 6  # JPEG's loss at quality 90, and no other
                part = pack.crop(number, Box(top=5, left=30, height=40, width=50))
                found = decode(part.jpeg)[0][part.box.top :, part.box.left :][:40, :50]
                assert np.array_equal(found, small[5:45, 30:80])
            row = pack.rows[number]
            if kind != "raw":
                assert decode(pack.record(number))[0].shape[:2] == (row["height"], row["width"])


@pytest.mark.slow
def test_workers_change_nothing(folder, make_pack):
    one = make_pack(folder, kind="jpeg-restart", shard_bytes=60_000, to="one")
    two = make_pack(folder, kind="jpeg-restart", shard_bytes=60_000, to="two", workers=2)
    assert contents(one.directory) == contents(two.directory)
    assert len(one.header.shards) > 5
    assert max(shard.bytes for shard in one.header.shards) <= 60_000


def test_order_is_the_seed_s_or_the_source_s(folder, make_pack):
    orders = {}
    for to, seed in (("a", 0), ("b", 1), ("c", None)):
        with Pack.open(make_pack(folder, seed=seed, to=to).directory) as pack:
            orders[seed] = pack.names()
    assert orders[0] != orders[1]
    assert orders[None] == sorted(orders[0])


KILLED = """
import sys, time
from pathlib import Path
from allpull.data.pack.encode import Recipe
from allpull.data.pack.plan import Layout, plan
from allpull.data.sources.imagefolder import listing
from allpull.data.pack.write import write_pack
if __name__ == "__main__":
    made = plan(listing(Path(sys.argv[1])), Recipe(kind="jpeg-restart"), Layout(shard_bytes=60_000))
    def tell(done, of, size):
        print(done, flush=True)
        time.sleep(0.2)
    write_pack(made, Path(sys.argv[2]), workers=int(sys.argv[3]), progress=tell)
"""


@pytest.mark.slow
@pytest.mark.parametrize("workers", [1, 2])
def test_a_killed_writer_goes_on_to_the_same_bytes(folder, make_pack, tmp_path, workers):
    whole = make_pack(folder, kind="jpeg-restart", shard_bytes=60_000, to="whole").directory
    script = tmp_path / "pack_it.py"
    script.write_text(KILLED)
    killed = tmp_path / "killed"
    with subprocess.Popen(
        [sys.executable, script, folder, killed, str(workers)], stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        first = int(process.stdout.readline())
        children = child_processes(process.pid)
        process.send_signal(signal.SIGKILL)
        process.wait()
    assert 0 < first < 40
    assert not (killed / INDEX).exists()
    with pytest.raises(BadInput, match="an unfinished pack"):
        Pack.open(killed)
    deadline = time.monotonic() + 20
    while any(Path(f"/proc/{child}").exists() for child in children):
        assert time.monotonic() < deadline, "workers outlive the writer"
        time.sleep(0.1)
    shard = max(killed.glob("shard-*.pack"))
    with shard.open("ab") as file:
        file.write(b"half a record")  # what a kill between two writes leaves
    with (killed / JOURNAL).open("ab") as file:
        file.write(b"[64, 12")
    done = make_pack(folder, kind="jpeg-restart", shard_bytes=60_000, to="killed")
    assert done.resumed_from >= first
    assert contents(killed) == contents(whole)


@pytest.mark.slow
def test_a_process_killed_while_it_sends_is_no_hang(folder):
    entries = listing(folder).entries
    assert len(entries) > 2 * CHUNK
    made = outcomes(listing(folder).source, Recipe(kind="raw", side=96), entries, 2)
    next(made)
    ours = [child for child in multiprocessing.active_children() if child.name.startswith("SpawnProcess")]
    assert len(ours) == 2
    time.sleep(1)  # raw pixels of a chunk are more than a pipe holds: it waits amid sending
    os.kill(ours[1].pid, signal.SIGKILL)
    with pytest.raises(AllpullError, match="a process died near"):
        list(made)
    assert not any(child.is_alive() for child in ours)


def child_processes(parent: int) -> list[int]:
    return [int(word) for word in Path(f"/proc/{parent}/task/{parent}/children").read_text().split()]


def test_what_a_power_failure_lost_is_written_again(folder, make_pack, tmp_path):
    whole = make_pack(folder, kind="jpeg", shard_bytes=60_000, to="whole").directory
    made = plan(listing(folder), Recipe(kind="jpeg"), Layout(shard_bytes=60_000))
    torn = tmp_path / "torn"
    torn.mkdir()
    journal = Journal(torn, made.pack, 40)
    for outcome in list(outcomes(made.listing.source, made.recipe, made.entries[:20], 1)):
        journal.append(outcome.data, (0, outcome.height, outcome.width, 3, outcome.codec), "", 60_000)
    last = journal.ledger.rows[19]
    journal.close()
    with (torn / f"shard-{last['shard']:05d}.pack").open("r+b") as file:
        file.seek(int(last["offset"]))
        file.write(bytes(int(last["length"])))  # a block that never reached the disk
    done = write_pack(made, torn)
    assert done.resumed_from == 19
    assert contents(torn) == contents(whole)


def test_one_writer_at_a_time_and_one_plan_a_folder(folder, make_pack, tmp_path):
    made = plan(listing(folder), Recipe(kind="jpeg"), Layout())
    (tmp_path / "busy").mkdir()
    journal = Journal(tmp_path / "busy", made.pack, 40)
    with pytest.raises(BadInput, match="another allpull pack is writing there"):
        write_pack(made, tmp_path / "busy")
    journal.close()
    other = plan(listing(folder), Recipe(kind="raw"), Layout())
    with pytest.raises(BadInput, match="unfinished pack of another plan"):
        write_pack(other, tmp_path / "busy")
    assert write_pack(made, tmp_path / "busy").header.records == 40
    assert write_pack(made, tmp_path / "busy").whole
    with pytest.raises(BadInput, match="holds another pack"):
        write_pack(other, tmp_path / "busy")
    with pytest.raises(BadInput, match="not empty"):
        write_pack(made, folder)


def test_forecast_is_near_and_what_does_not_fit_is_not_begun(folder, make_pack, tmp_path, monkeypatch):
    made = plan(listing(folder), Recipe(kind="jpeg"), Layout())
    expected = forecast(made)
    real = sum(path.stat().st_size for path in folder.rglob("*.jpg"))
    assert abs(expected.bytes - real) < 4 * expected.error_bytes
    monkeypatch.setattr("shutil.disk_usage", lambda _: os.terminal_size((0, 0)) and type("Usage", (), {"free": 1000}))
    with pytest.raises(BadInput, match="free"):
        check_space(expected, tmp_path)


def test_a_pack_says_what_it_is(folder, make_pack):
    found = describe(make_pack(folder, kind="jpeg-restart").directory)
    assert found["codecs"] == {"jpeg with restart segments": 40}
    assert found["origin"]["layout"]["seed"] == 0
    assert any(line.startswith("3 classes: class 0, class 1") for line in lines(found))


@pytest.mark.parametrize(
    ("recipe", "match"),
    [
        (Recipe(kind="jpeg-side"), "shorter side"),
        (Recipe(kind="jpeg", side=256), "does not resize images"),
    ],
)
def test_options_that_contradict_each_other_are_refused(folder, recipe, match):
    with pytest.raises(BadInput, match=match):
        plan(listing(folder), recipe, Layout())


def test_names_stand_in_one_line_each(tmp_path, make_pack, photos):
    source = tmp_path / "odd names"
    (source / "cl\nass").mkdir(parents=True)
    for name in (b"new\nline.jpg", b"not-utf8-\xff.jpg", "tür.jpg".encode()):
        photos[0].resize((40, 30)).save(os.path.join(os.fsencode(source), b"cl\nass", name), "JPEG")
    done = make_pack(source)
    assert len((done.directory / NAMES).read_bytes().splitlines()) == 3
    assert done.header.classes == ("cl\\nass",)
