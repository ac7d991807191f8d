"""The trials of a search on disk, a line each as soon as one has ended: a search that was killed goes on from them."""

from __future__ import annotations

from pathlib import Path

from pydantic import ValidationError

from allpull.errors import RunDirError
from allpull.rundir.safe_open import shown_path
from allpull.schema.tuned import Trial

FILE = "trials.jsonl"


def read_trials(directory: Path) -> list[Trial]:
    """The trials in ``directory``, in the order in which they were run; a last line cut by a kill is left out.

    Raises:
        RunDirError: a line before the last cannot be read.
    """
    path = directory / FILE
    if not path.exists():
        return []
    lines = path.read_text(encoding="utf-8").split("\n")
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
    path = directory / FILE
    if path.exists():
        content = path.read_bytes()
        whole = content[: content.rfind(b"\n") + 1]
        if whole != content:
            path.write_bytes(whole)
    with path.open("a", encoding="utf-8") as file:
        file.write(trial.model_dump_json(exclude_none=True) + "\n")
