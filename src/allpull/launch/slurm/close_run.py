"""Close the run of a Slurm job whose launcher cannot: it was killed, or the job was submitted manually.

A batch script ends with ``python -m allpull.launch.slurm.close_run RUN CODE``. For a script that was killed earlier,
``allpull env --finish RUN`` asks Slurm how the job ended. A run that is closed already stays unchanged.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

from allpull.errors import AllpullError, BadInput
from allpull.launch.host_endings import HostEnding, read_host_endings, settled_endings
from allpull.launch.outcome import outcome, versions_of
from allpull.launch.slurm.commands import SlurmHandle
from allpull.launch.slurm.outcome import JobFacts, decide_endings, describe_state
from allpull.rundir import layout, safe_open
from allpull.rundir.read.lenient import file_names, log_tail
from allpull.rundir.read.unfinished import QUEUED, job_number
from allpull.rundir.run_record import read_record
from allpull.rundir.tidy import close_directory
from allpull.schema.run import Exit, RunRecord

MAX_REASON_BYTES = 1000


def of_slurm(directory: Path) -> bool:
    """Whether the run in ``directory`` is a Slurm job, which ``close`` can close.

    Raises:
        RunDirError: there is no run.
    """
    return read_record(directory).launcher == QUEUED


def close(directory: Path, code: int | None = None) -> RunRecord:
    """Close the run in ``directory``, whose batch script ends with ``code``; None: ask Slurm. Returns its record.

    Raises:
        RunDirError: there is no run.
        BadInput: it is not a Slurm job, the job is not over, its end is unknown, or the record cannot be written.
    """
    root, record = safe_open.checked_directory(directory), read_record(directory)
    where = f"{safe_open.shown_path(root)}/{layout.RUN_JSON}"
    if record.exit is not None:
        return record
    if record.launcher != QUEUED:
        raise BadInput(f"{where}: no run of Slurm's, but of launcher {record.launcher[:80]}", hint="it closes itself")
    hosts, number = _hosts(record), job_number(root, record)
    endings = settled_endings(root, hosts) if code is not None else read_host_endings(root)
    facts = _facts_of_job(number, endings, hosts) if code is None else _facts_of_code(code)
    decided = decide_endings(facts, endings, hosts=hosts, log_tail=log_tail(root, layout.SLURM_LOG))
    status, exit_ = outcome(decided, root, trains=record.kind != "run")
    enough = _enough(root)
    if enough and exit_.code and not any(host.failures for host in decided):
        status, exit_ = "completed", Exit(code=0, reason=enough, ended_by="study")
    changes = {"status": status, "exit": exit_, "ended_utc": _end_utc(root), "hosts": [host.host for host in decided]}
    closed = record.model_copy(update={**changes, "job": number, "versions": versions_of(record, decided)})
    try:
        close_directory(root, closed)
    except OSError as error:
        raise BadInput(f"{where}: {error.strerror or error}", hint="is there room on the disk?") from error
    return closed


def _enough(root: Path) -> str:
    """Why the job was ended that had measured enough; empty where it was not."""
    names = {f"{layout.JOB}/{name}" for name in safe_open.file_names(root, layout.JOB, "")}
    if layout.ENOUGH not in names:
        return ""
    return safe_open.read_whole(root, layout.ENOUGH, MAX_REASON_BYTES).decode("utf-8", "replace").strip()


def _hosts(record: RunRecord) -> int:
    launch = record.spec.get("launch")
    hosts = launch.get("hosts") if isinstance(launch, dict) else None
    return hosts if type(hosts) is int and hosts > 0 else 1


def _facts_of_code(code: int) -> JobFacts:
    return JobFacts(state="FAILED" if code else "COMPLETED", exit_code=code)


def _facts_of_job(number: str | None, endings: Sequence[HostEnding], hosts: int) -> JobFacts:
    """What Slurm says about a job that is over; without an answer, what its hosts wrote, if all did.

    Raises:
        BadInput: the job is not over, or its end is unknown.
    """
    facts = SlurmHandle(number).facts() if number else None
    if facts is not None and not facts.is_over:
        state = describe_state((number or "").partition(";")[0], facts)
        raise BadInput(f"{state}: it is not over", hint="wait for it, or end it with scancel")
    if facts is None and len(endings) < hosts:
        unknown = f"Slurm says nothing of job {number}" if number else "it has no job number: was it ever submitted?"
        written = f"{len(endings)} of {hosts} host{'s' * (hosts != 1)} wrote how they ended"
        raise BadInput(f"{unknown}; {written}", hint="ask where Slurm answers: squeue")
    return facts or _facts_of_code(next((host.code for host in endings if host.code), 0))


def _end_utc(root: Path) -> str:
    """When the last host wrote how it ended; now if none did."""
    times_s = [(root / layout.ENDED / name).stat().st_mtime for name in file_names(root, layout.ENDED, ".json")]
    return f"{datetime.fromtimestamp(max(times_s, default=time.time()), UTC):%Y-%m-%dT%H:%M:%SZ}"


if __name__ == "__main__":
    try:
        close(Path(sys.argv[1]), int(sys.argv[2]))
    except AllpullError as error:
        sys.exit(f"allpull: {error.message}")
