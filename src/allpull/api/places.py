"""The run directories at the places that a user names."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TypeAlias

from allpull.errors import BadInput
from allpull.rundir.read.places import find_runs
from allpull.rundir.safe_open import shown_path
from allpull.units import counted

Place: TypeAlias = str | Path
"""A run directory, or a folder of them."""


def run_directory(place: Place) -> Path:
    """The one run directory at ``place``, as `open_run` finds it.

    Raises:
        RunDirError: there is no run.
        BadInput: there are several runs.
    """
    directories = run_directories([place])
    if len(directories) != 1:
        raise BadInput(
            f"{shown_path(Path(place))} holds {counted(len(directories), 'run')}, and one is needed here",
            hint=f"name one of them, such as {directories[-1].name}",
        )
    return directories[0]


def run_directories(places: Iterable[Place]) -> list[Path]:
    """The run directories at ``places``, each once: a place is one itself, a folder of them, or the name of a run.

    Raises:
        RunDirError: a place is none of these.
        BadInput: no place was given.
    """
    directories = {path.resolve(): path for place in places for path in find_runs(Path(place))}
    if not directories:
        raise BadInput("no run was given", hint="give a run directory, or a folder of them")
    return list(directories.values())
