"""Another user exchanges the folder into which an export is written: nothing is written or removed elsewhere."""

from __future__ import annotations

from pathlib import Path

import pytest

from allpull.errors import BadInput
from allpull.export.target import new_folder
from allpull.output_folder import held_folder


def test_an_exchanged_folder_leads_an_export_nowhere(tmp_path: Path) -> None:
    """The attack: while the tables are written, ``out`` becomes a link to another folder of the user's."""
    out, mine = tmp_path / "out", tmp_path / "mine"
    (mine / "run").mkdir(parents=True)
    (mine / "run/table.csv").write_text("precious")
    with new_folder(out / "run", replace=False) as folder:
        out.rename(tmp_path / "moved")
        out.symlink_to(mine)
        (folder / "table.csv").write_text("exported")
        out.unlink()
        out.mkdir()
    assert (mine / "run/table.csv").read_text() == "precious"
    assert (tmp_path / "moved/run/table.csv").read_text() == "exported"


def test_an_exchanged_new_folder_leads_an_export_nowhere(tmp_path: Path) -> None:
    """The attack: the unfinished folder itself becomes a link."""
    out, mine = tmp_path / "out", tmp_path / "mine"
    mine.mkdir()
    (mine / "table.csv").write_text("precious")
    with new_folder(out / "run", replace=False) as folder:
        (scratch,) = out.iterdir()
        scratch.rename(tmp_path / "taken")
        scratch.symlink_to(mine)
        (folder / "table.csv").write_text("exported")
    assert (mine / "table.csv").read_text() == "precious"
    assert (tmp_path / "taken/table.csv").read_text() == "exported"


def test_what_is_removed_after_an_error_is_ours(tmp_path: Path) -> None:
    out, mine = tmp_path / "out", tmp_path / "mine"
    mine.mkdir()
    (mine / "precious").write_text("")
    with pytest.raises(KeyboardInterrupt), new_folder(out / "run", replace=False) as folder:  # noqa: PT012  the attack
        (scratch,) = out.iterdir()
        (folder / "half").write_text("")
        out.rename(tmp_path / "moved")
        (mine / scratch.name).mkdir()
        (mine / scratch.name / "precious").write_text("")
        out.symlink_to(mine)
        raise KeyboardInterrupt
    assert (mine / scratch.name / "precious").exists()
    assert not any((tmp_path / "moved").iterdir())


def test_an_error_names_the_place_that_the_user_gave(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="full") as error, held_folder(tmp_path) as folder:
        raise BlockingIOError(11, "full", str(folder / "table.csv"))
    assert error.value.filename == str(tmp_path / "table.csv")


def test_an_error_that_is_a_text_alone_keeps_it(tmp_path: Path) -> None:
    """So polars says that a disk is full while it writes CSV."""
    with pytest.raises(BadInput, match="No space left on device"), new_folder(tmp_path / "run", replace=False):
        raise OSError("No space left on device (os error 28)")
