"""What pod 0 of a training does beside its ranks: open the run directory on the volume, and close it at the end.

``python -m allpull.launch.kubernetes.training open FOLDER COMMAND…`` reads the specification from ALLPULL_TRAINING, and
prints the run directory; ``… close RUN CODE`` closes it. Its manifest (``manifest.training_script``) calls both.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from allpull.errors import AllpullError
from allpull.launch.host_endings import HostEnding, settled_endings
from allpull.launch.job import prepare
from allpull.launch.outcome import outcome, versions_of
from allpull.rundir.run_record import read_record, write_record
from allpull.rundir.tidy import close_directory
from allpull.schema.run import RunRecord
from allpull.schema.spec import RunSpec, from_plain, to_plain

LAUNCHER = "kubernetes"
TRAINER = "allpull.train"
VARIABLE = "ALLPULL_TRAINING"


def as_variable(spec: RunSpec) -> str:
    """The options of ``spec`` that differ from their defaults, as JSON."""
    return json.dumps(_changed(to_plain(spec), to_plain(RunSpec())), separators=(",", ":"))


def open_run(options: str, out: Path, command: Sequence[str]) -> Path:
    """Make the run directory of the training with ``options`` below ``out``; ``command`` is recorded as its origin.

    Raises:
        BadInput: it cannot be made.
    """
    spec = from_plain(RunSpec, json.loads(options))
    spec = replace(spec, launch=replace(spec.launch, launcher=LAUNCHER))
    job = prepare(spec, kind="train", module=TRAINER, command=command, out=out)
    write_record(job.directory, job.record.model_copy(update={"status": "running"}))
    return job.directory


def close_run(directory: Path, code: int) -> RunRecord:
    """Close the run in ``directory``, the agent of whose first pod ended with ``code``; returns its record.

    Raises:
        RunDirError: there is no run.
        OSError: its record cannot be written.
    """
    record = read_record(directory)
    hosts = from_plain(RunSpec, record.spec).launch.hosts
    endings = settled_endings(directory, hosts)
    if len(endings) < hosts:
        reason = f"{hosts - len(endings)} of {hosts} pods did not report how their ranks ended"
        endings.append(HostEnding(host="?", code=code or 1, reason=reason))
    status, exit_ = outcome(endings, directory, trains=True)
    changes = {"status": status, "exit": exit_, "hosts": [host.host for host in endings if host.host != "?"]}
    ended = f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%SZ}"
    closed = record.model_copy(update={**changes, "ended_utc": ended, "versions": versions_of(record, endings)})
    close_directory(directory, closed)
    return closed


def _changed(plain: dict[str, Any], defaults: dict[str, Any]) -> dict[str, Any]:
    parts = {name: _changed(value, defaults[name]) for name, value in plain.items() if isinstance(value, dict)}
    values = {name: value for name, value in plain.items() if name not in parts and value != defaults[name]}
    return {**values, **{name: part for name, part in parts.items() if part}}


def main(verb: str, place: str, *words: str) -> None:
    """Open a run below ``place`` for the command ``words``, or close the run ``place`` with the code in ``words``."""
    if verb == "open":
        print(open_run(os.environ[VARIABLE], Path(place), words))  # noqa: T201  the pod's script reads it
        return
    record = close_run(Path(place), int(words[0]))
    if record.exit is not None and record.exit.code:
        sys.stderr.write(f"allpull: {record.exit.describe()}\n")


if __name__ == "__main__":
    try:
        main(*sys.argv[1:])
    except AllpullError as error:
        sys.exit(f"allpull: {error.message}")
