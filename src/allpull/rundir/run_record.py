"""Read and write ``run.json``, the record of a run, and remove secrets from what is kept with it."""

from __future__ import annotations

import os
from pathlib import Path

from allpull.errors import RunDirError
from allpull.rundir import layout, redact, safe_open
from allpull.rundir.job_file import JobFile
from allpull.rundir.write import SCRATCH, replaced_file, whole_file, whole_json
from allpull.schema.run import RunRecord

MAX_BYTES = 16 << 20
RESERVE_BYTES = 16 << 10  # the record, the job file and the script of a job take about ten thousand


def read_record(directory: Path) -> RunRecord:
    """The record of the run in ``directory``.

    Raises:
        RunDirError: this is no run directory, or its ``run.json`` cannot be read.
    """
    root = safe_open.checked_directory(directory)
    where = safe_open.shown_path(root)
    names = safe_open.file_names(root, ".", "")
    if layout.RUN_JSON not in names:
        what = f"it has no {layout.RUN_JSON}" if names else "it is empty"
        raise RunDirError(
            f"{where}: not a run directory: {what}",
            hint=f"a run that was copied only in part lacks {layout.RUN_JSON}; copy the whole directory",
        )
    blob = safe_open.read_whole(root, layout.RUN_JSON, MAX_BYTES)
    return safe_open.document(RunRecord, "run", blob, f"{where}/{layout.RUN_JSON}")


def write_record(directory: Path, record: RunRecord) -> None:
    """Write ``run.json`` all at once.

    Raises:
        OSError: the disk is full, say; an older record is then untouched.
    """
    whole_json(str(directory / layout.RUN_JSON), record.model_dump(mode="json", by_alias=True))


def write_script(directory: Path, script: str) -> None:
    """Write the script of a job without its secrets.

    Raises:
        OSError: as ``write_record``.
    """
    whole_file(str(directory / layout.SCRIPT), redact.text(script)[0])


def redacted(record: RunRecord) -> RunRecord:
    """``record`` with the secrets in its name, command, specification and environment masked and counted."""
    command, in_command = redact.arguments(record.command)
    variables, in_variables = redact.mapping(record.environment)
    spec, in_spec = redact.tree(record.spec)
    return record.model_copy(
        update={
            "name": redact.text(record.name)[0],  # not counted: specification or command have it too
            "command": command,
            "spec": spec,
            "environment": variables,
            "redacted": record.redacted + in_command + in_variables + in_spec,
        }
    )


def write_reserve(directory: Path) -> None:
    """Set ``RESERVE_BYTES`` of the disk aside, for the end of the job.

    Raises:
        OSError: as ``write_record``.
    """
    with replaced_file(str(directory / layout.RESERVE)) as file:
        file.write(os.urandom(RESERVE_BYTES))  # zeros would take no room where the file system compresses


def close_record(directory: Path, record: RunRecord) -> None:
    """Write the final ``record``, and remove what only the running job needed: secrets, unfinished checkpoints.

    Raises:
        RunDirError: the directory is no longer that of ``record``, and nothing is touched; or the job file cannot be
            read, and the record is written.
        OSError: as ``write_record``.
    """
    root = safe_open.checked_directory(directory)
    if read_record(root).id != record.id:  # whoever may write to the folder around it can exchange it
        raise RunDirError(
            f"{safe_open.shown_path(root)}: another directory has taken the place of run {record.id}",
            hint="choose a folder for runs (--out) to which nobody else may write",
        )
    for file in (layout.RESERVE, layout.SECRETS):
        safe_open.remove_files(root, *file.split("/"))
    safe_open.remove_files(root, layout.CHECKPOINTS, SCRATCH)  # of a rank that was killed as it wrote
    write_record(root, record)
    _seal(root, record)


def _seal(root: Path, record: RunRecord) -> None:
    blob = safe_open.read_whole(root, layout.SPEC, MAX_BYTES)
    try:
        job = JobFile.from_plain(safe_open.parsed(blob))
    except (TypeError, ValueError) as error:
        raise RunDirError(
            f"{safe_open.shown_path(root)}/{layout.SPEC}: {error}", hint="the job file was changed while the job ran"
        ) from error
    job.sealed(record.spec).write(str(root / layout.SPEC))
    if (root / layout.SCRIPT).exists():
        write_script(root, safe_open.read_whole(root, layout.SCRIPT, MAX_BYTES).decode("utf-8", "replace"))
