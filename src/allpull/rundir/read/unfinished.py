"""Say of a run whose record was not closed what is known all the same: whose job it is, and whether it has ended."""

from __future__ import annotations

import re
from pathlib import Path

from allpull.errors import RunDirError
from allpull.rundir import layout, safe_open
from allpull.schema.run import RunRecord

QUEUED = "slurm"
"""The launcher whose jobs live on when whoever submitted them is gone."""

MAX_NUMBER_BYTES = 400

_NUMBER = re.compile(r"[0-9]+(_[0-9]+)?(;[A-Za-z0-9][A-Za-z0-9_.-]*)?")


def job_number(root: Path, record: RunRecord) -> str | None:
    """The number of the job in its queue, with ";cluster" behind it on a federation; None: it has none, or never began.

    It stands in the record, or where the job was submitted by hand in a file that its script wrote when it began.
    """
    said = record.job
    if said is None and layout.QUEUE in {f"{layout.JOB}/{name}" for name in safe_open.file_names(root, layout.JOB, "")}:
        said = safe_open.read_whole(root, layout.QUEUE, MAX_NUMBER_BYTES).decode("utf-8", "replace").strip()
    return said if said and _NUMBER.fullmatch(said) else None


def why(root: Path, record: RunRecord) -> str:
    """A sentence on the unclosed run in the resolved directory ``root``."""
    says = f"{layout.RUN_JSON} says '{record.status}'"
    number = job_number(root, record) if record.launcher == QUEUED else None
    job = f"Slurm job {number.partition(';')[0]}" if number else "the job"
    close = "; `allpull env --finish RUN` closes the run" if record.launcher == QUEUED else ""
    began, ended = _hosts(root, layout.HOSTS), _hosts(root, layout.ENDED)
    if ended and began <= ended:
        return f"{says}, but every host of {job} has ended: its launcher was gone{close}"
    if record.status == "created" and not number and not began:
        return f"{says}: no job has begun, or its launcher was killed"
    return f"{says}: {job} has not ended, or its launcher was killed{close and close + ' then'}"


def _hosts(root: Path, folder: str) -> set[str]:
    """Hosts that have a file in ``folder``; the reader complains where it cannot be read."""
    try:
        return set(safe_open.file_names(root, folder, ".json"))
    except RunDirError:
        return set()
