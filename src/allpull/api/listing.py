"""List the runs of a folder, rename one, remove some."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Iterable
from datetime import datetime
from pathlib import Path

from allpull.analyse.programs import program
from allpull.api.places import Place, run_directories, run_directory
from allpull.api.runs import Run
from allpull.errors import AllpullError, BadInput
from allpull.output_folder import held_folder
from allpull.rundir import layout, redact, safe_open
from allpull.rundir.derived import cached_explanation
from allpull.rundir.read.places import LATEST
from allpull.rundir.read.run import read_run
from allpull.rundir.read.unfinished import is_over
from allpull.rundir.run_record import read_record, write_record
from allpull.schema.base import tag
from allpull.schema.results import ListedRun, ListResult
from allpull.schema.run import UNENDED, RunRecord

MAX_NAME = 200  # characters
NO_NAMES = {".", "..", LATEST}
MOST_SET_S, MOST_SLEWED = 1.0, 0.001  # what real time may move against monotonic time: NTP slews by half of that


def list_runs(places: Iterable[Place]) -> ListResult:
    """All runs at ``places``, the latest first; runs that cannot be read are named with the reason.

    Raises:
        RunDirError: there is no run at a place.
        BadInput: no place was given.
    """
    listed, damaged = [], []
    for directory in sorted(run_directories(places), key=lambda one: one.name, reverse=True):
        try:
            listed.append(_listed(Run(read_run(directory))))
        except AllpullError as error:
            damaged.append(error.message)
    return ListResult(schema=tag("runs"), runs=listed, damaged=damaged)


def rename(place: Place, name: str) -> Path:
    """Give the run at ``place`` the name ``name``; its directory and id stay. Returns the directory.

    Raises:
        RunDirError: there is no run, or several.
        BadInput: nothing could find a run by that name, or it is empty or too long, or the run has not ended.
    """
    directory = run_directory(place)
    clean, _ = redact.text(name)
    if not clean.strip() or len(clean) > MAX_NAME or "/" in clean or clean in NO_NAMES:
        hint = f"give 1 to {MAX_NAME} characters, no slash among them, and not {LATEST}"
        raise BadInput(f"a run cannot be called {name[:40]!r}", hint=hint)
    with held_folder(directory.resolve()) as held:  # the folder around it may belong to others, who exchange it
        record = _ended(held, hint="wait until the job has ended")
        write_record(held, record.model_copy(update={"name": clean}))
    return directory


def remove(directories: Iterable[Path], *, unended: bool = False) -> list[Path]:
    """Remove run directories with everything in them; links in them are removed, not followed.

    ``unended``: also those of jobs that may run, as that of a job that was killed on another machine.

    Raises:
        BadInput: a run has not ended, is none, or is a link to one; then none is removed.
    """
    chosen = list(directories)
    for directory in chosen:
        if directory.is_symlink():
            raise BadInput(
                f"{safe_open.shown_path(directory)} is a link", hint="name the run to which it leads, or unlink it"
            )
        _ended(directory, hint="end the job first; if it was killed: allpull rm --force", refused=not unended)
    for directory in chosen:
        shutil.rmtree(directory)
    return chosen


def _ended(directory: Path, *, hint: str, refused: bool = True) -> RunRecord:
    """The record of a run, which is ``refused`` with ``hint`` unless it has ended, also by a kill that left traces."""
    record = read_record(directory)
    if refused and record.status in UNENDED and not is_over(directory.resolve(), record):
        raise BadInput(f"{safe_open.shown_path(directory)} has not ended", hint=hint)
    return record


def _silent_s(directory: Path, now_s: float) -> float:
    """Time since anything was written to a run directory, in s."""
    folders = [directory, *(directory / name for name in (*layout.RECORDS, layout.JOB, layout.LOGS))]
    changed_s = [entry.stat(follow_symlinks=False).st_mtime for folder in folders for entry in _entries(folder)]
    return max(0.0, now_s - max(changed_s, default=now_s))


def _entries(folder: Path) -> list[os.DirEntry[str]]:
    try:
        with os.scandir(folder) as entries:
            return list(entries)
    except OSError:  # a folder that this run does not have
        return []


def _listed(run: Run) -> ListedRun:
    record, metrics = run.data.record, run.metrics()
    explained = cached_explanation(run.directory, record)
    return ListedRun(
        run=record.id,
        name=record.name,
        directory=metrics.directory,
        program=program(record).name,
        kind=record.kind,
        status=record.status,
        is_over=record.status in UNENDED and is_over(run.data.directory, record),
        ranks=record.ranks,
        created_utc=record.created_utc,
        seconds=_seconds(run),
        silent_s=_silent_s(run.directory, time.time()) if record.status in UNENDED else None,
        throughput=metrics.throughput,
        finding=explained.findings[0].title if explained is not None and explained.findings else None,
    )


def _seconds(run: Run) -> float | None:
    """From the creation of the run to its end, by real time; None also where that clock was set meanwhile."""
    record = run.data.record
    try:
        begin, end = (datetime.fromisoformat(text) for text in (record.created_utc, record.ended_utc or ""))
    except ValueError:
        return None
    took_s = (end - begin).total_seconds()
    set_s = max((_set_by_s(run, rank) for rank in run.data.headers), default=0.0)
    return None if took_s < 0 or set_s > MOST_SET_S + MOST_SLEWED * took_s else took_s


def _set_by_s(run: Run, rank: int) -> float:
    """By how much real time moved against monotonic time while ``rank`` ran."""
    log, first = run.data.events.get(rank), run.data.headers[rank].clock
    ahead_ns = [first.realtime_ns - first.monotonic_ns]
    ahead_ns += [pair.realtime_ns - pair.monotonic_ns for pair in (log.clocks if log is not None else ())]
    return (max(ahead_ns) - min(ahead_ns)) / 1e9
