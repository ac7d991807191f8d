"""The trials of a search on disk, a line each as soon as one has ended: a search that was killed goes on from them."""

from __future__ import annotations

import os
from pathlib import Path

from pydantic import ValidationError

from allpull.errors import RunDirError
from allpull.rundir import safe_open
from allpull.rundir.safe_open import shown_path
from allpull.rundir.write import no_follow
from allpull.schema.tuned import Trial

FILE = "trials.jsonl"
MAX_BYTES = 64 << 20


def read_trials(directory: Path) -> list[Trial]:
    """The trials in ``directory``, in the order in which they were run; a last line cut by a kill is left out.

    Raises:
        RunDirError: a line before the last cannot be read, or the file is none of the directory.
    """
    path = directory / FILE
    if not os.path.lexists(path):
        return []
    log = safe_open.read_whole(safe_open.checked_directory(directory), FILE, MAX_BYTES)
    lines = log.decode("utf-8", "replace").split("\n")
    trials = []
    for number, line in enumerate(lines[:-1], start=1):  # the last ends in no line break: empty, or cut
        try:
            trials.append(Trial.model_validate_json(line))
        except ValidationError:
            raise RunDirError(
                f"{shown_path(path)}: line {number} is no trial", hint="delete that line, or tune under another name"
            ) from None
    return trials


def append_trial(directory: Path, trial: Trial) -> None:
    """Add ``trial``; a line that an earlier kill cut is removed first."""
    with open(directory / FILE, "a+b", opener=no_follow) as file:
        file.seek(0)
        file.truncate(file.read().rfind(b"\n") + 1)
        file.write(trial.model_dump_json(exclude_none=True).encode() + b"\n")
