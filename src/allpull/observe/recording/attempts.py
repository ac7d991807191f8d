"""Records of a restarted job: those of the earlier attempt are moved aside, so that repeated steps are known.

Ranks restart in place (torchrun's restarts, which allpull's agents count identically on all hosts) or with the whole
job (requeued, with the number of earlier attempts set by its script). Either way the records of attempt k are in
``attempts/k/`` of the run directory, and the next attempt records how far k had come. Standard library only.
"""

from __future__ import annotations

import json
import os
from typing import Dict, Optional

from ...rundir import layout
from ...rundir.write import private_folder

RESTARTS = "TORCHELASTIC_RESTART_COUNT"
RESUME = "ALLPULL_RESUME"
BEFORE = "ALLPULL_ATTEMPTS"  # set by batch scripts: attempts before this start of the job
TAIL_BYTES = 1 << 16


def begin(directory: str, rank: int) -> Optional[Dict[str, int]]:
    """Move the records of the last attempt aside; returns how far it had come, or None for the first attempt.

    The result has ``attempt`` (from 1) and ``steps_before``, the number of steps that were recorded.

    Raises:
        OSError: the files cannot be moved.
    """
    restarts = _number(RESTARTS)
    attempts = _number(BEFORE) + restarts
    if restarts > 0:
        os.environ[RESUME] = "1"
        _move_aside(directory, rank, attempts - 1)
    if not attempts:
        return None
    before = os.path.join(directory, layout.ATTEMPTS, str(attempts - 1), layout.steps_file(rank))
    return {"attempt": attempts, "steps_before": _steps_in(before)}


def _move_aside(directory: str, rank: int, attempt: int) -> None:
    for name in (layout.steps_file(rank), layout.events_file(rank)):
        source = os.path.join(directory, name)
        target = os.path.join(directory, layout.ATTEMPTS, str(attempt), name)
        if os.path.exists(source) and not os.path.exists(target):
            private_folder(os.path.dirname(target))
            os.replace(source, target)


def _number(variable: str) -> int:
    counted = os.environ.get(variable, "0")
    return int(counted) if counted.isdigit() else 0


def _steps_in(path: str) -> int:
    """The number after the last complete step record of ``path``; 0 if there is none."""
    try:
        with open(path, "rb") as file:
            file.seek(max(0, os.path.getsize(path) - TAIL_BYTES))
            lines = file.read().splitlines()
    except OSError:
        return 0
    for line in reversed(lines):
        try:
            return int(json.loads(line)["step"]) + 1
        except (ValueError, KeyError, TypeError):
            continue
    return 0
