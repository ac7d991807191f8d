"""End a submitted job that has measured enough, which nothing else watches.

The script of such a job starts ``python -m allpull.study.submitted RUN`` beside the ranks, on the first host; it closes
the run as completed (``launch.slurm.close_run``).
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from pathlib import Path

from allpull.errors import AllpullError
from allpull.launch.slurm.commands import SlurmHandle
from allpull.rundir import layout
from allpull.rundir.read.unfinished import job_number
from allpull.rundir.run_record import read_record
from allpull.rundir.write import whole_file
from allpull.study.directory import STUDY_TOML
from allpull.study.file import StudyFile, load_study
from allpull.study.length import Enough, ends_runs
from allpull.study.point_run import LOOK_EVERY_S


def companion(study: StudyFile) -> tuple[str, ...]:
    """The command that the script of a job of ``study`` starts beside its ranks; none where runs end by themselves."""
    return (sys.executable, "-m", "allpull.study.submitted") if ends_runs(study) else ()


def end_when_enough(run: Path, enough: Enough, end: Callable[[], object], every_s: float = LOOK_EVERY_S) -> None:
    """Wait until the run directory ``run`` has measured enough, say so in it, and ``end`` the job."""
    while (ended := enough.look(run)) is None:
        time.sleep(every_s)
    whole_file(str(run / layout.ENOUGH), ended.reason)
    end()


def main(run: Path) -> None:
    """Follow the job of the run directory ``run`` of a study.

    Raises:
        AllpullError: the study or the run cannot be read.
    """
    study = load_study(str(run.parent.parent / STUDY_TOML))
    number = job_number(run, read_record(run))
    end_when_enough(run, Enough(study), lambda: SlurmHandle(number or "").signal("TERM"))


if __name__ == "__main__":
    try:
        main(Path(sys.argv[1]).resolve())
    except AllpullError as error:
        sys.exit(f"allpull: the run goes on to the end of its program: {error.message}")
