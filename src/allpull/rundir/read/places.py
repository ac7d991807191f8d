"""Find runs at a place: a run directory, a folder of them, or what a user calls one of them."""

from __future__ import annotations

from pathlib import Path

from allpull.errors import RunDirError
from allpull.rundir import layout, safe_open
from allpull.rundir.run_record import read_record

LATEST = "latest"
"""The name of the newest run of a folder."""

MOST_NAMED = 5  # runs in an error


def find_runs(path: Path) -> list[Path]:
    """``path`` itself if it is a run directory, else those directly in it, by name. Links in it are not followed.

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
    inside = _runs_in(path)
    if not inside:
        raise RunDirError(
            f"{safe_open.shown_path(path)}: no {layout.RUN_JSON} here or in a folder of it",
            hint="give a run directory, or the folder that holds them (allpull prints it when a run ends)",
        )
    return inside


def newest(runs: list[Path]) -> Path:
    """The run that began last: ids begin with that moment."""
    return max(runs, key=lambda run: run.name)


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
    runs = _runs_in(folder) if folder.is_dir() else []
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


def _runs_in(folder: Path) -> list[Path]:
    root = safe_open.checked_directory(folder)
    return [folder / name for name in safe_open.file_names(root, ".", "") if _is_run(root / name)]


def _is_run(path: Path) -> bool:
    try:
        return path.is_dir() and not path.is_symlink() and (path / layout.RUN_JSON).is_file()
    except OSError:
        return False
