"""Records come home from hosts as they are, whole or not at all, and what does not come is said."""

from __future__ import annotations

import io
import os
import stat
import subprocess
import tarfile
import threading
import tracemalloc
from pathlib import Path
from typing import IO, cast

import pytest

from allpull.launch.ssh import collect
from allpull.launch.ssh.collect import Copies, extract_records
from allpull.launch.ssh.connection import Remote

FAKE_SSH = '#!/bin/sh\nfor last; do :; done\nexec sh -c "$last"\n'


def archive(**members: bytes) -> io.BytesIO:
    """A tar of files; in their names "__" stands for "/"."""
    blob = io.BytesIO()
    with tarfile.open(fileobj=blob, mode="w") as tar:
        for name, content in members.items():
            member = tarfile.TarInfo(name.replace("__", "/"))
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))
    blob.seek(0)
    return blob


def files(folder: Path) -> dict[str, bytes]:
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_records_come_as_they_are_and_belong_to_their_owner_alone(tmp_path: Path) -> None:
    sent = {"steps/rank-00000.jsonl": b"a\n", "checkpoints/step-1.pt": bytes(3 << 20), "traces/w.json.gz": b"\x1f"}
    extract_records(archive(**{name.replace("/", "__"): content for name, content in sent.items()}), tmp_path)
    assert files(tmp_path) == sent
    assert all(stat.S_IMODE((tmp_path / name).stat().st_mode) == 0o600 for name in sent)


def test_what_is_no_record_is_passed_over(tmp_path: Path) -> None:
    blob = io.BytesIO()
    into = tmp_path / "run"
    (into / "steps").mkdir(parents=True)
    (into / "steps/ours").write_bytes(b"ours")
    with tarfile.open(fileobj=blob, mode="w") as tar:
        for name in ("../out", "/tmp/out", "run.json", "steps/../../out", "job/spec.json", "steps/ours", "steps/new"):
            member = tarfile.TarInfo(name)
            member.size = 6
            tar.addfile(member, io.BytesIO(b"theirs"))
        for kind in (tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.FIFOTYPE, tarfile.CHRTYPE):
            member = tarfile.TarInfo(f"steps/odd-{kind.decode()}")
            member.type, member.linkname = kind, "/etc/passwd"
            tar.addfile(member)
    blob.seek(0)
    extract_records(blob, into)
    assert files(tmp_path) == {"run/steps/ours": b"ours", "run/steps/new": b"theirs"}


@pytest.mark.parametrize("cut", [100, 700, 1536 + 4000])
def test_a_file_that_is_cut_off_is_not_there_and_those_before_it_are(tmp_path: Path, cut: int) -> None:
    whole = archive(steps__first=bytes(10), steps__second=bytes(5000)).getvalue()
    with pytest.raises((tarfile.TarError, OSError)):
        extract_records(io.BytesIO(whole[:cut]), tmp_path)
    assert set(files(tmp_path)) <= {"steps/first"}


def test_more_than_the_bound_is_an_error_and_not_left_out_in_silence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(collect, "MAX_COLLECTED_BYTES", 1000)
    with pytest.raises(tarfile.TarError, match="of records"):
        extract_records(archive(steps__a=bytes(600), steps__b=bytes(600)), tmp_path)


def test_nothing_that_is_large_stands_in_memory(tmp_path: Path) -> None:
    size = 96 << 20
    header = tarfile.TarInfo("checkpoints/large.pt")
    header.size = size
    reader, writer = os.pipe()

    def send() -> None:
        with os.fdopen(writer, "wb") as sink:
            sink.write(header.tobuf())
            for _ in range(size >> 20):
                sink.write(bytes(1 << 20))
            sink.write(bytes(1024))

    threading.Thread(target=send).start()
    tracemalloc.start()
    with os.fdopen(reader, "rb") as source:
        extract_records(source, tmp_path)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert (tmp_path / header.name).stat().st_size == size
    assert peak < 16 << 20


@pytest.fixture
def there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of a host whose ssh is a stand-in that runs commands here."""
    folder = tmp_path / "there 'x'"
    (folder / "steps").mkdir(parents=True)
    (folder / "steps/rank-00000.jsonl").write_bytes(b"a\n")
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin/ssh").write_text(FAKE_SSH)
    (tmp_path / "bin/ssh").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}/bin:{os.environ['PATH']}")
    return folder


def test_a_copy_that_works_has_no_trouble(there: Path, tmp_path: Path) -> None:
    assert Copies(tmp_path / "run").collect(Remote(name="n1", python="python3"), str(there)) is None
    assert files(tmp_path / "run") == {"steps/rank-00000.jsonl": b"a\n"}


def test_a_folder_that_is_gone_is_said_in_the_hosts_own_words(there: Path, tmp_path: Path) -> None:
    trouble = Copies(tmp_path / "run").collect(Remote(name="n1", python="python3"), f"{there}/gone")
    assert trouble is not None
    assert "gone" in trouble


def test_a_disk_that_is_full_here_is_said(there: Path, tmp_path: Path) -> None:
    (tmp_path / "run").write_text("a file where a folder should be")
    trouble = Copies(tmp_path / "run").collect(Remote(name="n1", python="python3"), str(there))
    assert trouble == "Not a directory"


def test_an_archive_that_ends_between_two_files_is_told_by_the_exit_code(there: Path, tmp_path: Path) -> None:
    (there / "sent").write_bytes(archive(steps__first=bytes(10), steps__second=bytes(10)).getvalue()[:1100])
    (tmp_path / "bin/tar").write_text("#!/bin/sh\ncat sent\necho 'tar: it broke' >&2\nexit 2\n")
    (tmp_path / "bin/tar").chmod(0o755)
    assert Copies(tmp_path / "run").collect(Remote(name="n1", python="python3"), str(there)) == "tar: it broke"
    assert files(tmp_path / "run") == {"steps/first": bytes(10)}


def test_copies_that_are_broken_off_end(there: Path, tmp_path: Path) -> None:
    """A host that sends nothing, as one whose disk hangs: else a second Ctrl-C would wait for it."""
    (tmp_path / "bin/tar").write_text("#!/bin/sh\ntouch began\nexec sleep 600\n")
    (tmp_path / "bin/tar").chmod(0o755)
    copies = Copies(tmp_path / "run")

    def stop() -> None:
        while not (there / "began").exists():
            pass
        copies.break_off()

    threading.Thread(target=stop).start()
    trouble = copies.collect(Remote(name="n1", python="python3"), str(there))
    assert trouble == "stopped before all were collected"
    assert copies.collect(Remote(name="n2", python="python3"), str(there)) == trouble


def test_an_archive_that_is_none_is_an_error(tmp_path: Path) -> None:
    said = ["echo", "hello, this is no tar"]
    with subprocess.Popen(said, stdout=subprocess.PIPE) as process, pytest.raises(tarfile.TarError):
        extract_records(cast("IO[bytes]", process.stdout), tmp_path)
