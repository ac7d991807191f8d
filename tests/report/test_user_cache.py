"""The user's cache gives back what was kept, only to its owner, and its absence changes nothing."""

from __future__ import annotations

from pathlib import Path

import pytest

from allpull.report import user_cache

LIMIT = 1 << 20


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path / "allpull"


def test_what_was_kept_is_given_back_and_private(folder: Path) -> None:
    assert user_cache.load("a.js", LIMIT) is None
    user_cache.store("a.js", b"script")
    assert user_cache.load("a.js", LIMIT) == b"script"
    assert user_cache.load("b.js", LIMIT) is None
    assert folder.stat().st_mode & 0o777 == 0o700
    assert (folder / "a.js").stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("changed", [".", "a.js"])
def test_what_others_can_write_is_not_used(folder: Path, changed: str) -> None:
    user_cache.store("a.js", b"script")
    (folder / changed).chmod(0o777)
    assert user_cache.load("a.js", LIMIT) is None


def test_a_link_is_not_followed(folder: Path, tmp_path: Path) -> None:
    user_cache.store("a.js", b"script")
    (tmp_path / "other.js").write_bytes(b"planted")
    (folder / "a.js").unlink()
    (folder / "a.js").symlink_to(tmp_path / "other.js")
    assert user_cache.load("a.js", LIMIT) is None


def test_where_nothing_can_be_written_nothing_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    user_cache.store("a.js", b"script")
    assert user_cache.load("a.js", LIMIT) is None


def test_without_the_variable_it_is_below_the_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    assert user_cache.directory() == tmp_path / ".cache" / "allpull"
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")
    assert user_cache.directory() == tmp_path / ".cache" / "allpull"
