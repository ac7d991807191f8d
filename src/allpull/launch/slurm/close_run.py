"""Close the run of a Slurm job where whoever submitted it cannot: it was killed, or the job was submitted by hand.

``python -m allpull.launch.slurm.close_run RUN CODE`` is how a batch script ends. A script that was killed never gets
there: ``allpull env --finish RUN`` asks Slurm how its job ended. A run that is closed already stays as it is.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

from allpull.errors import AllpullError, BadInput
from allpull.launch.host_endings import HostEnding, log_tail, read_host_endings
from allpull.launch.outcome import outcome, versions_of
from allpull.launch.slurm.batch_job import SETTLE_S
from allpull.launch.slurm.commands import SlurmHandle
from allpull.launch.slurm.outcome import JobFacts, decide_endings, describe_state
from allpull.rundir import layout, safe_open
from allpull.rundir.read.unfinished import QUEUED, job_number
from allpull.rundir.run_record import read_record, seal, write_record
from allpull.schema.run import RunRecord

LOOK_EVERY_S = 0.2


def of_slurm(directory: Path) -> bool:
    """Whether the run in ``directory`` is one of Slurm's, which ``close`` can close.

    Raises:
        RunDirError: there is no run.
    """
    return read_record(directory).launcher == QUEUED


def close(directory: Path, code: int | None = None) -> RunRecord:
    """Close the run in ``directory``, whose batch script ends with ``code``; None: ask Slurm. Its record then.

    Raises:
        RunDirError: there is no run.
        BadInput: it is no run of Slurm's, its job is not over or nobody knows, or the record cannot be written.
    """
    root, record = safe_open.checked_directory(directory), read_record(directory)
    where = f"{safe_open.shown_path(root)}/{layout.RUN_JSON}"
    if record.exit is not None:
        return record
    if record.launcher != QUEUED:
        raise BadInput(f"{where}: no run of Slurm's, but of launcher {record.launcher[:80]}", hint="it closes itself")
    hosts, number = _hosts(record), job_number(root, record)
    told = _settled(root, hosts) if code is not None else read_host_endings(root)
    facts = _facts(number, told, hosts) if code is None else _at_end(code)
    ended = decide_endings(facts, told, hosts=hosts, log_tail=log_tail(root / layout.SLURM_LOG))
    status, exit_ = outcome(ended, root, trains=record.kind != "run")
    changes = {"status": status, "exit": exit_, "ended_utc": _end_utc(root), "hosts": [host.host for host in ended]}
    closed = record.model_copy(update={**changes, "job": number, "versions": versions_of(record, ended)})
    try:
        seal(root, closed)
        write_record(root, closed)
    except OSError as error:
        raise BadInput(f"{where}: {error.strerror or error}", hint="is there room on the disk?") from error
    return closed


def _hosts(record: RunRecord) -> int:
    launch = record.spec.get("launch")
    hosts = launch.get("hosts") if isinstance(launch, dict) else None
    return hosts if type(hosts) is int and hosts > 0 else 1


def _settled(root: Path, hosts: int) -> list[HostEnding]:
    """What hosts wrote of their end, once all have, or there is nothing to wait for: file systems take seconds."""
    deadline = time.monotonic() + SETTLE_S
    while True:
        told = read_host_endings(root)
        if len(told) >= hosts or any(host.failures for host in told) or time.monotonic() > deadline:
            return told
        time.sleep(LOOK_EVERY_S)


def _at_end(code: int) -> JobFacts:
    return JobFacts(state="FAILED" if code else "COMPLETED", exit_code=code)


def _facts(number: str | None, told: Sequence[HostEnding], hosts: int) -> JobFacts:
    """What Slurm says of a job that is over; where it does not answer, what its hosts wrote, if all did.

    Raises:
        BadInput: it is not over, or nobody knows.
    """
    facts = SlurmHandle(number).facts() if number else None
    if facts is not None and not facts.is_over:
        words = describe_state((number or "").partition(";")[0], facts)
        raise BadInput(f"{words}: it is not over", hint="wait for it, or end it with scancel")
    if facts is None and len(told) < hosts:
        what = f"Slurm says nothing of job {number}" if number else "it has no job number: was it ever submitted?"
        said = f"{len(told)} of {hosts} host{'s' * (hosts != 1)} wrote how they ended"
        raise BadInput(f"{what}; {said}", hint="ask where Slurm answers: squeue")
    return facts or _at_end(next((host.code for host in told if host.code), 0))


def _end_utc(root: Path) -> str:
    """When the last host wrote how it ended; now where none did."""
    times_s = [path.stat().st_mtime for path in (root / layout.ENDED).glob("*.json")]
    return f"{datetime.fromtimestamp(max(times_s, default=time.time()), UTC):%Y-%m-%dT%H:%M:%SZ}"


if __name__ == "__main__":
    try:
        close(Path(sys.argv[1]), int(sys.argv[2]))
    except AllpullError as error:
        sys.exit(f"allpull: {error.message}")
