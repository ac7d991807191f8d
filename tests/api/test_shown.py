"""The kept result of `show` is that of reading the run, and holds only while nothing of the run has changed."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from allpull.api import runs
from allpull.api.shown import shown
from allpull.rundir import derived, layout
from allpull.schema.reported import ScalingReport

RUNS = Path(__file__).resolve().parents[1] / "runs"


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of a kept run, which is small and new: its results are kept all the same."""
    monkeypatch.setattr(derived, "MIN_BYTES", 0)
    monkeypatch.setattr(derived, "SETTLED_NS", -(10**9))  # file systems have clocks of their own
    return Path(shutil.copytree(RUNS / "v1.3", tmp_path / "run"))


def is_read(run: Path, monkeypatch: pytest.MonkeyPatch, accuracy: float | None = None) -> bool:
    """Whether `show` opens the records of ``run``."""
    opened = []
    with monkeypatch.context() as patch:
        read_run = runs.read_run
        patch.setattr(runs, "read_run", lambda path, **options: opened.append(path) or read_run(path, **options))
        shown([run], accuracy)
    return bool(opened)


def test_a_second_result_is_equal_and_opens_no_record(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = shown([run])
    kept = run / layout.SHOWN
    assert kept.stat().st_mode & 0o777 == 0o600
    assert not is_read(run, monkeypatch)
    assert shown([run]) == first
    kept.unlink()
    assert is_read(run, monkeypatch)
    assert shown([run]) == first


def grows(run: Path) -> None:
    path = run / layout.events_file(0)
    path.write_bytes(path.read_bytes() + path.read_bytes().splitlines(keepends=True)[-1])


def loses_a_rank(run: Path) -> None:
    (run / layout.steps_file(1)).unlink()


def gains_a_file(run: Path) -> None:
    (run / layout.COUNTERS / "other.jsonl").write_text("")


def gets_a_timeline(run: Path) -> None:
    (run / layout.TIMELINE).write_bytes(b"")


def is_damaged(run: Path) -> None:
    path = run / layout.SHOWN
    blob = bytearray(path.read_bytes())
    blob[-40] ^= 1
    path.write_bytes(blob)


def is_cut(run: Path) -> None:
    path = run / layout.SHOWN
    path.write_bytes(path.read_bytes()[:100])


def is_open_to_others(run: Path) -> None:
    (run / layout.SHOWN).chmod(0o666)


@pytest.mark.parametrize(
    "change", [grows, loses_a_rank, gains_a_file, gets_a_timeline, is_damaged, is_cut, is_open_to_others]
)
def test_after_any_change_the_run_is_read_again(
    run: Path, change: Callable[[Path], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    shown([run])
    change(run)
    assert is_read(run, monkeypatch)


def test_it_holds_for_the_same_options_and_place(run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shown([run])
    assert is_read(run, monkeypatch, 0.5)
    monkeypatch.chdir(tmp_path)
    assert shown([Path("run")]).show.runs[0].directory == "run"


@pytest.mark.parametrize("reason", ["a link", "small", "just written", "running"])
def test_nothing_is_kept_where_it_could_become_wrong(run: Path, reason: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if reason == "a link":
        (run / "elsewhere").symlink_to(run.parent)
    elif reason == "small":
        monkeypatch.undo()
    elif reason == "just written":
        monkeypatch.setattr(derived, "SETTLED_NS", 10**18)
    else:
        record = run / layout.RUN_JSON
        record.write_text(record.read_text().replace('"status": "completed"', '"status": "running"'))
    assert isinstance(shown([run]), ScalingReport)
    assert not (run / layout.SHOWN).exists()


def test_a_file_that_changed_while_it_was_read_is_not_kept(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    read_run = runs.read_run
    monkeypatch.setattr(runs, "read_run", lambda path, **options: (read_run(path, **options), grows(run))[0])
    shown([run])
    assert not (run / layout.SHOWN).exists()
