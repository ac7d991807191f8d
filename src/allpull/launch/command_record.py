"""Record an observed user command: what its job file and its run record contain."""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from allpull.launch.carried_code import working_folder
from allpull.rundir import redact
from allpull.rundir.job_file import JobFile, WatchOptions
from allpull.rundir.read.headers import USER_STARTED
from allpull.rundir.user_command import of_words
from allpull.schema.run import RunRecord
from allpull.schema.spec import RunSpec
from allpull.version import __version__

TRAINERS = ("data", "model", "train")  # parts of a specification that describe only our own trainer
LAUNCHERS = ("launch", "ssh", "slurm", "container")  # parts that describe only ranks started by allpull
MAX_SCRIPT_BYTES = 16 << 20


def with_command(file: JobFile, spec: RunSpec, program: Sequence[str]) -> JobFile:
    """``file`` with the user's command ``program``, and the settings for recording it."""
    watch = spec.watch
    some_steps = watch.first_step > 0 or watch.last_step > 0
    return replace(
        file,
        command=() if spec.launch.launcher in USER_STARTED else tuple(program),
        cwd=os.fspath(Path.cwd()),
        carried=working_folder(spec.ssh.carry)[1] if spec.ssh.carry else None,
        watch=WatchOptions(
            trace_every=watch.trace_every,
            trace_steps=watch.trace_steps,
            trace_first=watch.trace_first,
            check_replicas=watch.check_replicas,
            steps=(watch.first_step, watch.last_step or None) if some_steps else None,
        ),
    )


def of_program(record: RunRecord, program: Sequence[str], environ: Mapping[str, str]) -> RunRecord:
    """``record`` for the user's command ``program``, to which the options of our trainer do not apply.

    If allpull does not start the ranks, launch options do not apply, the environment is ``environ`` unchanged (it may
    tell their threads), and the versions of Python and torch are unknown until the ranks run.
    """
    absent: tuple[str, ...] = TRAINERS
    changes: dict[str, Any] = {"seed": None, "global_batch": None, "script_sha256": digest_of(program)}
    if record.launcher in USER_STARTED:
        absent += LAUNCHERS
        inherited = {name: environ[name] for name in record.environment if name in environ}
        changes["environment"], _ = redact.mapping(inherited)
        changes |= {
            "threads_per_rank": _count(environ.get("OMP_NUM_THREADS", "")),
            "versions": {"allpull": __version__},
        }
    changes["spec"] = {name: value for name, value in record.spec.items() if name not in absent}
    return record.model_copy(update=changes)


def _count(text: str) -> int | None:
    """``text`` as a number of threads, or None: of nested levels (``4,2``) the first."""
    first = text.partition(",")[0].strip()
    return int(first) if re.fullmatch("[1-9][0-9]{0,5}", first) else None


def digest_of(program: Sequence[str]) -> str | None:
    """The SHA-256 of the script of a command; None if it is no readable file of a size that scripts have."""
    script = of_words(program).path
    if script is None or not Path(script).is_file():
        return None
    try:
        with Path(script).open("rb") as file:
            contents = file.read(MAX_SCRIPT_BYTES + 1)
    except OSError:
        return None
    return hashlib.sha256(contents).hexdigest() if len(contents) <= MAX_SCRIPT_BYTES else None
