"""Read and write ``run.json``, the record of a run."""

from __future__ import annotations

from pathlib import Path

from allpull.errors import RunDirError
from allpull.rundir import layout, safe_open
from allpull.rundir.write import whole_json
from allpull.schema.run import RunRecord

MAX_BYTES = 16 << 20


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
