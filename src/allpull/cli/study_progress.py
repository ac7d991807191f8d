"""How a study goes, on stderr: a line per run, and on a terminal a line that follows the current one."""

from __future__ import annotations

import sys

from allpull.analyse.job_health import assess
from allpull.cli.say import draw, is_behind, note
from allpull.errors import RunDirError
from allpull.report.printable import printable
from allpull.report.wording import spread
from allpull.rundir.live.snapshot import job_snapshot
from allpull.schema.results import Interval
from allpull.schema.studied import Attempt
from allpull.study.runner import LiveRun
from allpull.units import show_count, show_time

CLEAR = "\r\033[2K"  # to the begin of the line, and erase it
LOOK_EVERY = 4  # calls: reading the records of many ranks takes longer than half a second


class StudyProgress:
    """The ``Viewer`` of the command line."""

    def __init__(self) -> None:
        self._is_terminal = sys.stderr.isatty()
        self._looks = 0

    def begun(self, title: str) -> None:
        """A run begins."""
        if not self._is_terminal:
            note(f"{title}: running")

    def look(self, run: LiveRun) -> None:
        """Follow the current run."""
        self._looks += 1
        if not self._is_terminal or self._looks % LOOK_EVERY != 1 or is_behind():
            return
        parts = [f"{run.title}: {show_time(run.seconds)}"]
        try:
            state = assess(job_snapshot(run.directory))
        except RunDirError:
            state = None  # it has not written its first records
        if state is not None and state.steps_done:
            parts.append(f"step {state.steps_done:,}" + (f" of {state.steps_total:,}" if state.steps_total else ""))
        if state is not None and state.samples_per_s is not None:
            parts.append(f"{show_count(state.samples_per_s)} samples/s")
        if run.left_s is not None:
            parts.append(f"about {show_time(run.left_s)} left")
        draw(f"{CLEAR}{printable(' · '.join(parts))}")

    def ended(self, title: str, attempt: Attempt, rate: Interval | None, left_s: float | None) -> None:
        """A run has ended."""
        if self._is_terminal:
            draw(CLEAR)
        parts = [f"{title}: {attempt.state} in {show_time(attempt.seconds)}"]
        parts += [f"{spread(rate)} samples/s"] if rate is not None else []
        parts += [attempt.reason] if attempt.reason else []
        parts += [f"about {show_time(left_s)} left"] if left_s else []
        note(" · ".join(parts))
