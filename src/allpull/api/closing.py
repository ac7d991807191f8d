"""What to say of a run that has just ended: its numbers in a few lines, and the next command."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from pathlib import Path

from allpull.api.runs import open_run
from allpull.errors import AllpullError
from allpull.rundir.read.places import step_bytes
from allpull.rundir.safe_open import shown_path
from allpull.units import counted

MAX_BYTES = 64 << 20  # of step records: reading more takes longer than somebody waits at the end of a command


def summary(directory: Path) -> Iterator[str]:
    """The numbers of the run in ``directory``, and what explains them; nothing of a run without a step, or a huge one.

    A run that cannot be read says nothing here: the verbs that read it say why.
    """
    try:
        if step_bytes(directory) > MAX_BYTES:
            return
        metrics = open_run(directory).metrics()
    except (OSError, AllpullError):
        return
    if metrics.step_s is None:
        return
    lines = repr(metrics).splitlines()
    if metrics.gaps:
        lines[-1] = f"{counted(len(metrics.gaps), 'gap')} in the records: allpull show names them"
    yield from lines
    yield f"where the time went and what to change: allpull explain {shlex.quote(shown_path(_short(directory)))}"


def _short(directory: Path) -> Path:
    """``directory`` as it is written from here."""
    return directory.relative_to(Path.cwd()) if directory.is_relative_to(Path.cwd()) else directory
