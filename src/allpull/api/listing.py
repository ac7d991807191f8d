"""List the runs of a folder, rename one, remove some."""

from __future__ import annotations

import shutil
from collections.abc import Iterable
from datetime import datetime
from pathlib import Path

from allpull.analyse.programs import program
from allpull.api.runs import Place, Run, run_directories, run_directory
from allpull.errors import AllpullError, BadInput
from allpull.rundir import redact, safe_open
from allpull.rundir.derived import cached_explanation
from allpull.rundir.read.run import read_run
from allpull.rundir.run_record import read_record, write_record
from allpull.schema.base import tag
from allpull.schema.results import ListedRun, ListResult
from allpull.schema.run import UNENDED, RunRecord

MAX_NAME = 200  # characters


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
        BadInput: the name is empty or too long, or the run has not ended.
    """
    directory = run_directory(place)
    clean, _ = redact.text(name)
    if not clean.strip() or len(clean) > MAX_NAME:
        raise BadInput(f"a run cannot be called {name[:40]!r}", hint=f"give 1 to {MAX_NAME} characters")
    record = _ended(directory)
    write_record(directory, record.model_copy(update={"name": clean}))
    return directory


def remove(directories: Iterable[Path]) -> list[Path]:
    """Remove run directories with everything in them; links in them are removed, not followed.

    Raises:
        BadInput: a run has not ended; then none is removed.
    """
    chosen = list(directories)
    for directory in chosen:
        _ended(directory)
    for directory in chosen:
        shutil.rmtree(directory)
    return chosen


def _ended(directory: Path) -> RunRecord:
    record = read_record(directory)
    if record.status in UNENDED:
        raise BadInput(
            f"{safe_open.shown_path(directory)} has not ended",
            hint="end the job first; of a job that was killed, change its files by hand",
        )
    return record


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
        ranks=record.ranks,
        created_utc=record.created_utc,
        seconds=_seconds(record),
        throughput=metrics.throughput,
        finding=explained.findings[0].title if explained is not None and explained.findings else None,
    )


def _seconds(record: RunRecord) -> float | None:
    try:
        begin, end = (datetime.fromisoformat(text) for text in (record.created_utc, record.ended_utc or ""))
    except ValueError:
        return None
    return (end - begin).total_seconds()
