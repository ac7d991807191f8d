"""Describe a run whose record was not closed: its job, and whether it has ended."""

from __future__ import annotations

import re
import time
from pathlib import Path

from allpull.rundir import layout, safe_open
from allpull.rundir.read.headers import rank_headers
from allpull.rundir.read.lenient import file_names
from allpull.rundir.read.processes import boot_id, is_alive, is_gone
from allpull.schema.run import RunRecord

QUEUED = "slurm"
"""The launcher whose jobs outlive the process that submitted them."""

UNTIED = "command"
"""The launcher whose job does not end when the process that started it is killed: the user's own command."""

MAX_NUMBER_BYTES = 400
SILENT_S = 30.0  # ranks write every second; a first step that compiles, or a hung rank, is told by its process

_NUMBER = re.compile(r"[0-9]+(_[0-9]+)?(;[A-Za-z0-9][A-Za-z0-9_.-]*)?")


def job_number(root: Path, record: RunRecord) -> str | None:
    """The number of the job in its queue, followed by ";cluster" on a federation; None: it has none, or never began.

    The record holds it; for a job that was submitted manually, a file that its script writes when it begins.
    """
    number = record.job
    if number is None and layout.QUEUE in {
        f"{layout.JOB}/{name}" for name in safe_open.file_names(root, layout.JOB, "")
    }:
        number = safe_open.read_whole(root, layout.QUEUE, MAX_NUMBER_BYTES).decode("utf-8", "replace").strip()
    return number if number and _NUMBER.fullmatch(number) else None


def _is_silent(root: Path) -> bool:
    """Whether every rank ran on this machine as it is now, has no process any more, and records nothing."""
    headers, boot = rank_headers(root), boot_id()
    if not headers or boot is None:
        return False
    for header in headers:
        if header.boot_id != boot or header.pid is None or is_alive(header.pid):
            return False
        if _silent_s(root, layout.steps_file(header.rank)) < SILENT_S:  # in a container it has another number
            return False
    return True


def _silent_s(root: Path, relative: str) -> float:
    """Time since a file was written, in s; 0 without it."""
    try:
        return time.time() - (root / relative).lstat().st_mtime
    except OSError:
        return 0.0


def is_over(root: Path, record: RunRecord) -> bool:
    """Whether the process that would close the unclosed run in ``root`` is gone, and its ranks with it.

    False also where that cannot be known, as of a job of another machine.
    """
    if record.launcher_process is None or not is_gone(record.launcher_process):
        return False
    if rank_headers(root):
        return _is_silent(root)
    if record.launcher != UNTIED:
        return True
    return not file_names(root, layout.HOSTS, ".json") and _silent_s(root, layout.RUN_JSON) > SILENT_S


def why(root: Path, record: RunRecord) -> str:
    """A sentence on the unclosed run in the resolved directory ``root``."""
    status = f"{layout.RUN_JSON} says '{record.status}'"
    number = job_number(root, record) if record.launcher == QUEUED else None
    job = f"Slurm job {number.partition(';')[0]}" if number else "the job"
    close = "; `allpull env --finish RUN` closes the run" if record.launcher == QUEUED else ""
    began, ended = (set(file_names(root, folder, ".json")) for folder in (layout.HOSTS, layout.ENDED))
    if ended and began <= ended:
        return f"{status}, but every host of {job} has ended: its launcher was gone{close}"
    if number is None and began and _is_silent(root):
        cause = "the job was killed with its launcher, or its disk took no more"
        return f"{status}, but no process of its ranks runs any more: {cause}{close}"
    if is_over(root, record):
        cause = "it was killed, or its disk took no more"
        return f"{status}, but the allpull that ran the job is gone ({cause}), and no rank recorded anything here"
    if record.status == "created" and not number and not began:
        return f"{status}: no job has begun, or its launcher was killed"
    return f"{status}: {job} has not ended, or its launcher was killed{close and close + ' then'}"
