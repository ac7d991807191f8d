"""Find runs at a place: a run directory, a folder of them, or what a user calls one of them."""

from __future__ import annotations

import re
from contextlib import suppress
from pathlib import Path

from allpull.errors import RunDirError
from allpull.rundir import layout, safe_open
from allpull.rundir.run_record import read_record

LATEST = "latest"
"""The name of the newest run of a folder."""

MOST_NAMED = 5  # runs in an error
MOST_TRIED = 200  # folders that are searched for runs to name in an error

_ID = re.compile(r"\d{8}T\d{6}Z_")  # the beginning of a run id: when the run was created


def find_runs(path: Path) -> list[Path]:
    """``path`` itself if it is a run directory, else those directly in it, by name. Links in it are not followed.

    Where none is in it, those of its folder ``runs``: ``path`` is a study, or where the runs were started.

    A path that does not exist may name one run of its folder (of ``runs``, for a single word): ``latest``, the
    beginning of a run id or of its last part, or a name that one run has.

    Raises:
        RunDirError: ``path`` is neither, or cannot be looked at; the name fits no run or several.
    """
    if _is_absent(path):
        return [_named(path)]
    root = safe_open.checked_directory(path)
    if layout.RUN_JSON in safe_open.file_names(root, ".", layout.RUN_JSON):
        return [path]
    inside = _held_by(path)
    if not inside:
        raise RunDirError(
            f"{safe_open.shown_path(path)}: no {layout.RUN_JSON} here or in a folder of it", hint=_where_runs_are(root)
        )
    return inside


def is_folder_of_runs(path: Path, run: Path) -> bool:
    """Whether ``run`` is one of the runs of the folder ``path``, rather than ``path`` itself or named by it."""
    return path.is_dir() and path.resolve() in run.resolve().parents


def newest(runs: list[Path]) -> Path:
    """The run that was created last, which ids begin with; of a directory with another name, its record says when."""
    return max(runs, key=lambda run: (_created(run), run.name))


def step_bytes(run: Path) -> int:
    """The size of the step records of ``run``.

    Raises:
        RunDirError: they cannot be looked at.
    """
    root = safe_open.checked_directory(run)
    files = [root / layout.STEPS / name for name in safe_open.file_names(root, layout.STEPS, "")]
    return sum(file.lstat().st_size for file in files)


def _is_absent(path: Path) -> bool:
    """Whether nothing is there; False where it cannot be looked at."""
    try:
        path.lstat()
    except FileNotFoundError:
        return True
    except (OSError, ValueError):
        return False
    return False


def _named(path: Path) -> Path:
    """The one run that the last part of ``path`` names.

    Raises:
        RunDirError: it names none, or several.
    """
    folder = path.parent if path.parent != Path() else Path(layout.RUNS)
    name = path.name
    runs = _held_by(folder) if folder.is_dir() else []
    if name == LATEST and runs:
        return newest(runs)
    fitting = [run for run in runs if name in {run.name[: len(name)], run.name.rpartition("_")[2][: len(name)]}]
    fitting = fitting or [run for run in runs if _is_called(run, name)]
    if len(fitting) == 1:
        return fitting[0]
    where = safe_open.shown_path(path)
    if not fitting:
        raise RunDirError(
            f"{where}: no such file or directory, and no run in {safe_open.shown_path(folder)} is called so",
            hint=f"allpull ls {safe_open.shown_path(folder)} lists the runs" if runs else "give a run directory",
        )
    more = f" and {len(fitting) - MOST_NAMED} more" if len(fitting) > MOST_NAMED else ""
    raise RunDirError(
        f"{where}: {len(fitting)} runs are called so: {', '.join(run.name for run in fitting[:MOST_NAMED])}{more}",
        hint=f"give more of the id, or {LATEST}",
    )


def _is_called(run: Path, name: str) -> bool:
    try:
        return read_record(run).name == name
    except RunDirError:
        return False


def _created(run: Path) -> str:
    """When ``run`` was created, as at the beginning of an id; empty where neither name nor record says it."""
    if _ID.match(run.name):
        return run.name.partition("_")[0]
    try:
        return re.sub(r"[-:]", "", read_record(run).created_utc)
    except RunDirError:
        return ""


def _where_runs_are(root: Path) -> str:
    """What to do where ``root`` holds no run."""
    for name in safe_open.file_names(root, ".", "")[:MOST_TRIED]:
        with suppress(RunDirError, OSError):
            if not (root / name).is_symlink() and (root / name).is_dir() and _held_by(root / name):
                return f"its folder {safe_open.shown_path(Path(name))} holds runs"
    return "give a run directory, or the folder that holds them (allpull prints it when a run ends)"


def _held_by(folder: Path) -> list[Path]:
    """The runs directly in ``folder``, else those in its folder ``runs``."""
    below = folder / layout.RUNS
    return _runs_in(folder) or (_runs_in(below) if below.is_dir() and not below.is_symlink() else [])


def _runs_in(folder: Path) -> list[Path]:
    root = safe_open.checked_directory(folder)
    return [folder / name for name in safe_open.file_names(root, ".", "") if _is_run(root / name)]


def _is_run(path: Path) -> bool:
    try:
        return path.is_dir() and not path.is_symlink() and (path / layout.RUN_JSON).is_file()
    except OSError:
        return False
