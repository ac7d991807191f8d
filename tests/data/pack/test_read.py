"""A pack is read by one open for the index and one a shard; what is damaged is refused, and verify names it."""

from __future__ import annotations

import json
import os
import pickle
import shutil
import subprocess
import sys
import zlib
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from PIL import Image

from allpull.data.pack.encode import Recipe
from allpull.data.pack.plan import Layout, plan
from allpull.data.pack.read import Pack, read_index
from allpull.data.pack.verify import verify
from allpull.data.pack.write import write_pack
from allpull.data.pack_format import (
    HEAD_BYTES,
    INDEX,
    LISTS,
    NAMES,
    RECORD,
    SKIPPED,
    Header,
    PackError,
    Shard,
    index_bytes,
    parse_header,
    shard_head,
    shard_name,
)
from allpull.data.sources import SOURCES, guess


@pytest.fixture(scope="module")
def written(folder, tmp_path_factory) -> Path:
    listing = SOURCES.load(guess(folder))(folder, None)
    recipe = Recipe(kind="jpeg-restart", dtype=listing.source.dtype)
    layout = Layout(seed=0, shard_bytes=60_000)
    return write_pack(plan(listing, recipe, layout), tmp_path_factory.mktemp("written") / "pack", workers=1).directory


@pytest.fixture
def pack(written, tmp_path) -> Path:
    return Path(shutil.copytree(written, tmp_path / "pack"))


EPOCHS = """
import sys
from allpull.data.pack.read import Pack
pack = Pack.open(sys.argv[1], access=sys.argv[2])
print("opened", flush=True)
for epoch in range(3):
    for index in range(len(pack)):
        pack.whole(index)
"""


@pytest.mark.skipif(not shutil.which("strace"), reason="strace is not here")
@pytest.mark.parametrize("access", ["read", "map"])
def test_epochs_need_no_file_system_operation_but_reading(folder, make_pack, tmp_path, access):
    """One shard: two opens for three epochs of 40 samples; an ImageFolder needs 120 opens and as many look-ups."""
    directory = make_pack(folder, kind="jpeg", shard_bytes=1 << 30).directory
    log = tmp_path / "calls"
    command = [
        "strace",
        "-f",
        "-y",
        "-e",
        "trace=file,desc",
        "-o",
        log,
        sys.executable,
        "-c",
        EPOCHS,
        directory,
        access,
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    if "ptrace" in done.stderr:
        pytest.skip("tracing is not allowed here")
    assert done.returncode == 0, done.stderr
    calls = [line for line in log.read_text().splitlines() if str(directory) in line]
    opens = [line for line in calls if " openat(" in line and " = -1" not in line]
    assert len(opens) == 2
    begun = next(number for number, line in enumerate(log.read_text().splitlines()) if '"opened' in line)
    later = [line for line in log.read_text().splitlines()[begun:] if f"{directory}/shard" in line]
    reads = [line for line in later if " pread64(" in line]
    assert len(reads) == (120 if access == "read" else 0)
    assert all(" close(" in line for line in later if line not in reads)


def test_neighbours_come_by_one_read_a_shard(pack, monkeypatch):
    with Pack.open(pack) as opened:
        apart = [bytes(opened.whole(index)) for index in range(len(opened))]
        count = [0]
        real = os.pread

        def counted(*arguments):
            count[0] += 1
            return real(*arguments)

        monkeypatch.setattr(os, "pread", counted)
        assert [bytes(one) for one in opened.wholes(range(3, 33))] == apart[3:33]
        assert count[0] == len(np.unique(opened.rows["shard"][3:33]))
        assert opened.wholes(range(5, 5)) == []


def test_threads_and_copies_in_other_processes_read_the_same(pack):
    with Pack.open(pack) as opened, pickle.loads(pickle.dumps(opened)) as copy, ThreadPoolExecutor(8) as pool:
        everything = list(range(len(opened))) * 5
        alone = [bytes(opened.whole(index)) for index in everything]
        assert list(pool.map(lambda index: bytes(copy.whole(index)), everything)) == alone


@pytest.mark.parametrize("ranks", [1, 2, 3, 5])
def test_ranks_may_read_their_own_shards_alone(pack, ranks):
    with Pack.open(pack) as whole:
        splits = [whole.split(rank, ranks) for rank in range(ranks)]
        assert [index for split in splits for index in split.records] == list(range(len(whole)))
        assert [number for split in splits for number in split.shards] == list(range(len(whole.header.shards)))
        largest = max(shard.records for shard in whole.header.shards)
        assert max(len(split.records) for split in splits) <= len(whole) / ranks + largest
        for split in splits:
            with Pack.open(pack, shards=split.shards) as own:
                assert bytes(own.whole(split.records[0])) == bytes(whole.whole(split.records[0]))
                if ranks > 1:
                    with pytest.raises(PackError, match="is not open here"):
                        own.whole((split.records.stop) % len(whole))


def test_more_ranks_than_shards_is_an_error_that_says_so(pack):
    with Pack.open(pack) as opened, pytest.raises(PackError, match="cannot be split over 99 ranks"):
        opened.split(0, 99)


def damaged(pack: Path, name: str, at: int) -> None:
    with (pack / name).open("r+b") as file:
        file.seek(at)
        old = file.read(1)
        file.seek(at)
        file.write(bytes([old[0] ^ 4]))


@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(place=st.floats(0, 1, exclude_max=True), shard=st.integers(0, 3))
def test_verify_finds_any_flipped_bit_and_names_its_record(pack, place, shard):
    name = shard_name(shard)
    at = int(place * (pack / name).stat().st_size)
    damaged(pack, name, at)
    found = verify(pack, threads=2)
    assert found.faults == 1
    assert name in found.listed[0]
    damaged(pack, name, at)
    assert verify(pack).faults == 0


def test_verify_finds_cut_shards_strangers_and_lost_names(pack):
    whole = (pack / shard_name(1)).read_bytes()
    (pack / shard_name(1)).write_bytes(whole[:-10])
    (pack / shard_name(77)).write_bytes(b"")
    (pack / "names.txt").write_text("one\n")
    listed = "\n".join(verify(pack).listed)
    assert "shard-00077.pack: not in the index" in listed
    assert f"the index says {len(whole)}" in listed
    assert "truncated" in listed
    assert "names.txt: 1 names for 40 records" in listed
    with pytest.raises(PackError, match="the index says"):
        Pack.open(pack)


def test_an_index_of_another_pack_is_refused(pack, folder, make_pack):
    other = make_pack(folder, kind="jpeg-restart", shard_bytes=60_000, seed=1, to="other").directory
    shutil.copy(other / shard_name(0), pack / shard_name(0))
    with pytest.raises(PackError):
        Pack.open(pack)
    assert any("shard of another pack" in line for line in verify(pack).listed)


@pytest.mark.parametrize("name", ["extra", ".hidden", "folder", "link", "pipe", "names.txt.0123456789abcdef.tmp"])
def test_verify_names_what_does_not_belong_to_the_pack(pack: Path, name: str) -> None:
    place = pack / name
    make = {"folder": place.mkdir, "link": lambda: place.symlink_to("/"), "pipe": lambda: os.mkfifo(place)}
    make.get(name, place.touch)()
    assert verify(pack).listed == (f"{name}: not in the index",)


def test_links_and_pipes_are_not_followed(pack, tmp_path):
    moved = tmp_path / "elsewhere"
    (pack / shard_name(0)).rename(moved)
    (pack / shard_name(0)).symlink_to(moved)
    with pytest.raises(PackError, match="shard-00000"):
        Pack.open(pack)
    (pack / INDEX).unlink()
    os.mkfifo(pack / INDEX)
    with pytest.raises(PackError, match="not a regular file"):
        read_index(pack)


HEADER = {
    "pack": "0" * 32,
    "kind": "raw",
    "classes": ("a", "b"),
    "multi_label": False,
    "dtype": "|u1",
    "skipped": 0,
    "remarks": {},
    "origin": {},
}


def small(tmp_path: Path, **changes: int) -> Path:
    """A sound pack of one 2×2 picture, its row changed; checksums are right, as a forger's would be."""
    rows = np.zeros(1, RECORD)
    row = {"offset": 64, "length": 12, "height": 2, "width": 2, "channels": 3, "codec": 3, "label": 1, **changes}
    for name, value in row.items():
        rows[name] = value
    directory = tmp_path / "small"
    directory.mkdir(exist_ok=True)
    shards = (Shard(bytes=76, records=1),)
    (directory / shard_name(0)).write_bytes(shard_head("0" * 32, 0) + bytes(range(12)))
    header = Header(records=1, shards=shards, **HEADER)
    (directory / INDEX).write_bytes(index_bytes(header, rows, np.zeros((1, 0), np.uint8)))
    return directory


def test_the_small_pack_is_sound(tmp_path):
    assert Pack.open(small(tmp_path)).pixels(0).tolist()[1][1] == [9, 10, 11]


@pytest.mark.parametrize(
    "changes",
    [
        {"offset": 2**64 - 8},
        {"offset": 0},
        {"offset": 72},
        {"length": 2**32 - 1},
        {"length": 13},
        {"shard": 1},
        {"shard": 2**32 - 1},
        {"height": 2**32 - 1},
        {"height": 0},
        {"width": 2**31, "height": 2**31},
        {"channels": 0},
        {"channels": 65535},
        {"label": 2},
        {"label": -2},
        {"codec": 9},
        {"tail": 13},
    ],
    ids=str,
)
def test_rows_that_lie_are_refused_before_anything_is_read(tmp_path, changes):
    with pytest.raises(PackError):
        Pack.open(small(tmp_path, **changes))


@pytest.mark.parametrize("count", [0, 2, 2**26, 2**62, -1])
def test_counts_that_lie_are_refused_before_anything_is_allocated(tmp_path, count):
    directory = small(tmp_path)
    blob = bytearray((directory / INDEX).read_bytes())
    for text in (b'"records":1', b'"records":1'):
        blob = blob.replace(text, b'"records":%d' % count)
    blob = bytes(blob)
    rest = blob[HEAD_BYTES:]
    padded = rest + b" " * (-len(rest) % 8)
    (directory / INDEX).write_bytes(blob[:12] + zlib.crc32(padded).to_bytes(4, "little") + padded)
    with pytest.raises(PackError):
        Pack.open(directory)


@settings(max_examples=200, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_any_damage_of_the_index_is_an_error_with_a_name(tmp_path, data):
    directory = small(tmp_path)
    blob = bytearray((directory / INDEX).read_bytes())
    before = bytes(blob)
    for _ in range(data.draw(st.integers(1, 6))):
        blob[data.draw(st.integers(0, len(blob) - 1))] = data.draw(st.integers(0, 255))
    cut = data.draw(st.integers(0, len(blob)))
    (directory / INDEX).write_bytes(blob[:cut])
    if bytes(blob[:cut]) != before:
        with pytest.raises(PackError):
            Pack.open(directory)


@pytest.mark.slow
@settings(max_examples=200)
@given(
    value=st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(max_size=5),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from([*HEADER, "shards"]), inner),
    )
)
def test_headers_of_any_json_are_refused_by_name(value):
    with pytest.raises(PackError):
        parse_header(json.dumps(value).encode(), "here")


@pytest.mark.parametrize("name", LISTS)
def test_every_flip_in_a_list_is_found(pack: Path, name: str) -> None:
    """27 of 33 were not: names were only counted, and the other lists not looked at."""
    whole = (pack / name).read_bytes()
    for at in range(0, len(whole), max(1, len(whole) // 20)):
        (pack / name).write_bytes(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
        assert [fault.split(":")[0] for fault in verify(pack).listed] == [name]
    (pack / name).unlink()
    assert [fault.split(":")[0] for fault in verify(pack).listed] == [name]


@pytest.mark.parametrize("name", ["names.txt", "odd.txt", "skipped.txt"])
def test_a_list_of_any_size_is_read_no_further_than_it_can_be_right(pack: Path, name: str) -> None:
    with (pack / name).open("ab") as file:
        file.truncate(1 << 42)  # sparse: to read all of it takes half an hour
    assert any(name in fault for fault in verify(pack).listed)


def test_a_pack_of_before_lists_had_checksums_is_read_and_verified_as_before(pack: Path) -> None:
    header, rows, bits = read_index(pack)
    (pack / INDEX).write_bytes(index_bytes(replace(header, lists={}), rows, bits))
    (pack / SKIPPED).unlink()
    assert verify(pack).faults == 0
    with (pack / NAMES).open("a") as file:
        file.write("one more\n")
    assert "names for" in verify(pack).listed[0]


def test_the_name_of_a_class_cannot_act_on_a_terminal_from_json(tmp_path, run_here):
    r"""DEL is the one control character that JSON leaves as it is; verify's faults name the folder's files."""
    name = "a\x7f\u202e\x9bb"
    (tmp_path / "src" / name).mkdir(parents=True)
    Image.new("L", (8, 8)).save(tmp_path / "src" / name / "0.png")
    assert run_here("pack", str(tmp_path / "src"), str(tmp_path / "pack"), "--workers", "1").returncode == 0
    (tmp_path / "pack" / "shard-\x7f\u202e.pack").write_bytes(b"")
    for verb in ("info", "verify"):
        shown = run_here("pack", verb, str(tmp_path / "pack"), "--json")
        assert shown.stdout.replace("\n", "").isprintable(), verb
        assert shown.stdout.isascii()
    assert json.loads(run_here("pack", "info", str(tmp_path / "pack"), "--json").stdout)["classes"] == [name]
