"""A cache gives what the files give, and is used only while they are what it was made from, and nobody else's."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.rundir.read.conftest import step

from allpull.errors import RunDirError
from allpull.rundir import layout
from allpull.rundir.read import column_cache, counters, run, steps
from allpull.rundir.read.run import RunData, read_run

MakeRun = Callable[..., Path]
TABLES = ("steps", "collectives", "ready", "reductions", "named", "counters", "pings", "gpus", "nics", "links")


@pytest.fixture(autouse=True)
def caches_small_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(column_cache, "MIN_BYTES", 0)
    monkeypatch.setattr(column_cache, "SETTLED_NS", 0)


def equal(one: RunData, other: RunData) -> bool:
    same = all(getattr(one, name).equals(getattr(other, name)) for name in TABLES)
    return same and one.gaps == other.gaps and one.headers == other.headers and one.events == other.events


def cached(root: Path) -> Path:
    return root / layout.COLUMNS


def reads_only_the_cache(root: Path, monkeypatch: pytest.MonkeyPatch) -> RunData:
    with monkeypatch.context() as patch:
        for name in ("read_steps", "read_counters"):
            patch.setattr(run, name, None)
        return read_run(root)


def test_a_second_reading_opens_only_the_cache_and_is_equal(make_run: MakeRun, monkeypatch: pytest.MonkeyPatch) -> None:
    root = make_run(ranks=3)
    first = read_run(root)
    assert cached(root).stat().st_mode & 0o777 == 0o600
    assert cached(root).parent.stat().st_mode & 0o777 == 0o700
    assert [path.name for path in cached(root).parent.iterdir()] == ["columns"]
    assert equal(first, reads_only_the_cache(root, monkeypatch))
    cached(root).unlink()
    assert equal(first, read_run(root))


@pytest.mark.parametrize("relative", [layout.steps_file(1), layout.counters_file("here")])
def test_a_file_that_grew_or_was_changed_in_place_is_read_again(make_run: MakeRun, relative: str) -> None:
    root = make_run(ranks=3, steps=4)
    before = read_run(root)
    path = root / relative
    if relative.startswith(layout.STEPS):
        with path.open("a") as file:
            file.write(json.dumps(step(4)) + "\n")
        assert read_run(root).steps.height == before.steps.height + 1
    changed = path.read_bytes().replace(b"64", b"65").replace(b'"processes": 1', b'"processes": 2')
    times = path.stat()
    path.write_bytes(changed)
    os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))  # size and time of modification as before
    cached_run, whole = read_run(root), (cached(root).unlink(), read_run(root))[1]
    assert equal(cached_run, whole)
    assert not equal(cached_run, before)


def test_a_rank_or_host_more_or_less_is_read(make_run: MakeRun) -> None:
    root = make_run(ranks=3)
    read_run(root)
    (root / layout.steps_file(2)).unlink()
    assert read_run(root).steps["rank"].unique().sort().to_list() == [0, 1]
    (root / layout.counters_file("here")).unlink()
    assert read_run(root).counters.is_empty()


def damage_each_part(blob: bytes) -> list[bytes]:
    return [b"", blob[:10], blob[: len(blob) // 2], blob[:-1], *(_flipped(blob, at) for at in range(0, len(blob), 997))]


def _flipped(blob: bytes, at: int) -> bytes:
    return blob[:at] + bytes([blob[at] ^ 1]) + blob[at + 1 :]


def test_a_damaged_cache_is_ignored_and_written_again(make_run: MakeRun) -> None:
    root = make_run()
    whole = read_run(root)
    blob = cached(root).read_bytes()
    for damaged in damage_each_part(blob):
        cached(root).write_bytes(damaged)
        assert equal(read_run(root), whole)
        assert cached(root).read_bytes() == blob


@pytest.mark.parametrize("changed", [("column_cache", "_MADE_BY", [0]), ("column_cache", "__version__", "9")])
def test_a_cache_of_another_version_is_ignored(
    make_run: MakeRun, monkeypatch: pytest.MonkeyPatch, changed: tuple[str, str, Any]
) -> None:
    root = make_run()
    whole = read_run(root)
    before = cached(root).stat().st_ino
    monkeypatch.setattr(column_cache, "_MADE_BY", [0, *changed])
    assert equal(read_run(root), whole)
    assert cached(root).stat().st_ino != before


def test_a_table_with_other_columns_is_ignored(make_run: MakeRun, monkeypatch: pytest.MonkeyPatch) -> None:
    root = make_run()
    whole = read_run(root)
    data = column_cache.Columns(
        files=steps.read_steps(root, range(2), skip_damaged=False)[0],
        tables=steps.StepTables(
            steps=whole.steps.drop("samples"),
            calls=whole.collectives,
            ready=whole.ready,
            reduced=whole.reductions,
            named=whole.named,
        ),
        hosts=[],
        samples={name: getattr(whole, {"ranks": "counters"}.get(name, name)) for name in counters.SCHEMAS},
    )
    names = [layout.steps_file(0), layout.steps_file(1), layout.counters_file("here")]
    of = column_cache.sources(root, names, 2)
    assert of is not None
    column_cache.store(of, data)
    assert column_cache.load(of) is None
    assert equal(read_run(root), whole)


@pytest.mark.parametrize("mode", [0o777, 0o770])
@pytest.mark.parametrize("place", [".", layout.DERIVED, layout.COLUMNS])
def test_what_others_may_write_is_neither_read_nor_written(
    make_run: MakeRun, monkeypatch: pytest.MonkeyPatch, mode: int, place: str
) -> None:
    root = make_run()
    read_run(root)
    (root / place).chmod(mode)
    before = cached(root).read_bytes()
    opened: list[int] = []
    index = column_cache._index
    monkeypatch.setattr(column_cache, "_index", lambda file: opened.append(1) or index(file))
    read_run(root)
    assert not opened
    if place != layout.COLUMNS:  # a file is replaced by a private one
        cached(root).write_bytes(b"x")
        read_run(root)
        assert cached(root).read_bytes() == b"x"
    assert before


def test_links_and_pipes_are_not_followed(make_run: MakeRun, tmp_path: Path) -> None:
    root = make_run()
    whole = read_run(root)
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    cached(root).rename(elsewhere / "columns")
    cached(root).symlink_to(elsewhere / "columns")
    assert equal(read_run(root), whole)
    assert not cached(root).is_symlink()
    cached(root).unlink()
    os.mkfifo(cached(root))
    assert equal(read_run(root), whole)
    cached(root).unlink()
    (root / layout.DERIVED).rmdir()
    (root / layout.DERIVED).symlink_to(elsewhere)
    kept = (elsewhere / "columns").stat()
    assert equal(read_run(root), whole)
    assert (elsewhere / "columns").stat().st_mtime_ns == kept.st_mtime_ns
    assert [path.name for path in elsewhere.iterdir()] == ["columns"]


def test_damaged_unended_and_fresh_runs_are_not_cached(make_run: MakeRun, monkeypatch: pytest.MonkeyPatch) -> None:
    root = make_run(status="running")
    read_run(root)
    assert not cached(root).exists()
    record = json.loads((root / layout.RUN_JSON).read_text())
    (root / layout.RUN_JSON).write_text(json.dumps({**record, "status": "completed"}))
    monkeypatch.setattr(column_cache, "SETTLED_NS", 10**12)
    read_run(root)
    assert not cached(root).exists()
    monkeypatch.setattr(column_cache, "SETTLED_NS", 0)
    with (root / layout.steps_file(0)).open("a") as file:
        file.write("damaged\n")
    read_run(root, skip_damaged=True)
    assert not cached(root).exists()
    with pytest.raises(RunDirError):
        read_run(root)


def test_a_file_that_changes_while_it_is_read_is_not_cached(make_run: MakeRun, monkeypatch: pytest.MonkeyPatch) -> None:
    root = make_run()
    read = steps.read_steps

    def meanwhile(*arguments: Any, **options: Any) -> Any:
        found = read(*arguments, **options)
        time.sleep(0.01)  # longer than the tick of a file's times
        os.utime(root / layout.steps_file(0))
        return found

    monkeypatch.setattr(run, "read_steps", meanwhile)
    read_run(root)
    assert not cached(root).exists()
