"""End a run that has measured enough: the steps of the study, or its throughput as well as the study wants it."""

from __future__ import annotations

import time
from pathlib import Path

from allpull.analyse.aligned import AlignedRun
from allpull.analyse.run import metrics
from allpull.errors import RunDirError
from allpull.rundir.live.snapshot import JobSnapshot, job_snapshot
from allpull.rundir.read.run import read_run
from allpull.study.file import StudyFile
from allpull.study.parameters import ignores_steps
from allpull.study.point_run import Deadline
from allpull.study.results import half_width
from allpull.units import counted

MIN_STEPS = 50  # after the warm-up: of fewer, an interval that looks narrow often is so by luck
GROWTH = 1.25  # of the steps between two judgements: every further look is one more chance to stop too early
READING_SHARE = 0.05  # of one core, which the ranks may need, goes into reading records at most


def ends_runs(study: StudyFile) -> bool:
    """Whether runs of ``study`` may be ended before their program ends by itself."""
    return ignores_steps(study) or bool(study.settings.run_half_width)


class Enough:
    """Looks at one run of ``study`` while it goes on, and says when it has measured enough."""

    def __init__(self, study: StudyFile) -> None:
        self._settings = study.settings
        self._counts_steps = ignores_steps(study)
        self._next_step = study.settings.warmup_steps + MIN_STEPS
        self._not_before_s = 0.0

    def look(self, directory: Path) -> Deadline | None:
        """Why the run in ``directory`` has measured enough; None: it goes on."""
        if not self._counts_steps and not self._settings.run_half_width:
            return None
        try:
            made = _steps_made(job_snapshot(directory))
            if self._counts_steps and made >= self._settings.steps:
                return _enough(f"after study.steps = {self._settings.steps}")
            return self._known_well(directory, made) if self._settings.run_half_width else None
        except RunDirError:
            return None

    def _known_well(self, directory: Path, made: int) -> Deadline | None:
        """Judge the interval that results will show, at steps that grow by ``GROWTH``."""
        began_s = time.monotonic()
        if made < self._next_step or began_s < self._not_before_s:
            return None
        width = half_width(metrics(AlignedRun(read_run(directory, skip_damaged=True))).throughput)
        now_s = time.monotonic()
        self._not_before_s = now_s + (now_s - began_s) / READING_SHARE
        self._next_step = int(made * GROWTH) + 1
        if width is None or width > self._settings.run_half_width:
            return None
        return _enough(f"when its throughput was known to ± {100 * width:.2g} %, after {counted(made, 'step')}")


def _enough(when: str) -> Deadline:
    return Deadline(seconds=0.0, state="completed", reason=f"ended by its study {when}")


def _steps_made(job: JobSnapshot) -> int:
    """Steps that every rank has recorded; 0 where a rank has none, or its records are not on this machine yet."""
    if len(job.ranks) < job.record.ranks:
        return 0
    return min((rank.steps[-1].step + 1 if rank.steps else 0 for rank in job.ranks), default=0)
