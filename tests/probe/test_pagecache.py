"""Files go out of the page cache and into it, and what is said of that is true."""

from __future__ import annotations

import mmap
import os
import sys
from pathlib import Path

import pytest

from allpull.probe import pagecache

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="mincore and posix_fadvise of Linux")


@pytest.fixture
def files(tmp_path: Path) -> list[Path]:
    """Three files, one of them empty and none of whole pages."""
    paths = [tmp_path / name for name in "abc"]
    for path, size in zip(paths, (mmap.PAGESIZE * 100 + 1, 0, 17), strict=True):
        path.write_bytes(os.urandom(size))
    return paths


def test_what_was_written_is_there_and_what_was_dropped_is_not(files):
    assert pagecache.resident_share(files) == 1.0
    trouble = pagecache.drop(files)
    if trouble:  # a file system that is memory itself
        assert trouble == "100% of the files stayed in the page cache"
        return
    assert pagecache.resident_share(files) == 0.0
    assert pagecache.fill(files) == ""
    assert pagecache.resident_share(files) == 1.0


def test_a_file_that_another_has_mapped_is_not_said_to_be_dropped(files):
    with files[0].open("rb") as file, mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) as mapped:
        assert sum(mapped[:: mmap.PAGESIZE]) >= 0  # its pages are in use now
        assert "stayed in the page cache" in pagecache.drop(files[:1])


def test_memory_itself_cannot_be_dropped(tmp_path):
    path = Path("/dev/shm") / f"{tmp_path.name}-{os.getpid()}"
    try:
        path.write_bytes(bytes(1 << 16))
    except OSError:
        pytest.skip("no /dev/shm here")
    try:
        assert pagecache.drop([path]) == "100% of the files stayed in the page cache"
    finally:
        path.unlink()


def test_nothing_has_no_share():
    assert pagecache.resident_share([]) is None


def test_of_files_of_others_the_system_does_not_tell(files, monkeypatch):
    monkeypatch.setattr(os, "geteuid", lambda: 12345)
    monkeypatch.setattr(os, "getegid", lambda: 12345)
    monkeypatch.setattr(os, "getgroups", list)
    assert pagecache.resident_share(files) is None
    assert "reports its page cache only" in pagecache.drop(files)


def test_files_larger_than_the_free_memory_are_not_read_into_it(files, monkeypatch):
    pagecache.drop(files)
    if pagecache.resident_share(files) == 1.0:
        pytest.skip("this file system is memory itself")
    monkeypatch.setattr(pagecache, "MOST_OF_MEMORY", 1e-9)
    assert "more than half of the memory" in pagecache.fill(files)
    assert pagecache.resident_share(files) == 0.0
