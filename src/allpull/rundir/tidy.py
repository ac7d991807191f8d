"""Close a run directory: its final record, and no files that only a running job needs. Files are scarce on clusters."""

from __future__ import annotations

import shutil
from contextlib import suppress
from pathlib import Path

from allpull.output_folder import held_folder
from allpull.rundir import layout, safe_open
from allpull.rundir.read.headers import process_records, rank_files, rank_headers
from allpull.rundir.read.lenient import file_names
from allpull.rundir.read.processes import boot_id, is_alive
from allpull.rundir.run_record import close_record
from allpull.schema.run import RunRecord


def close_directory(directory: Path, record: RunRecord) -> None:
    """Write the final ``record`` of a run, then ``tidy`` its directory, whatever takes its place meanwhile.

    Raises:
        RunDirError, OSError: as ``close_record``.
    """
    with held_folder(safe_open.checked_directory(directory)) as held:
        close_record(held, record)
        tidy(held, record)


def tidy(directory: Path, record: RunRecord) -> None:
    """Remove the start-up hook (80 files), and of a job that completed what its ranks did last and are, and empty logs.

    Everything stays while a rank still runs here, and may import from the hook.
    """
    root, here = safe_open.checked_directory(directory), boot_id()
    if any(rank.pid and rank.boot_id == here and is_alive(rank.pid) for rank in rank_headers(root)):
        return
    shutil.rmtree(root / layout.HOOK, ignore_errors=True)
    if record.status != "completed":
        return
    shutil.rmtree(root / layout.LIVE, ignore_errors=True)
    for name in file_names(root, layout.LOGS, layout.LOG_ENDING):
        if (root / layout.LOGS / name).lstat().st_size == 0:
            safe_open.remove_files(root, layout.LOGS, name)
    _remove_entries(root)


def _remove_entries(root: Path) -> None:
    """Remove the entries of processes, whose ranks say the same in their records, unless a process was left out."""
    if not rank_files(root) or any(process.refused_rank is not None for process in process_records(root)):
        return
    safe_open.remove_files(root, layout.PROCESSES, ".json")
    with suppress(OSError):  # a link
        (root / layout.PROCESSES).rmdir()
