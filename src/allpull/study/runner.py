"""Run what is missing of a study, one run after another, within its limits; it may be interrupted at any moment."""

from __future__ import annotations

import math
import shutil
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from allpull.errors import AllpullError, RunDirError
from allpull.schema.results import Interval
from allpull.schema.studied import Attempt
from allpull.study.costs import Costs
from allpull.study.directory import (
    add_attempt,
    locked,
    open_directory,
    read_attempts,
    runs_by_point,
    unlogged_attempts,
)
from allpull.study.file import StudyFile
from allpull.study.length import Enough
from allpull.study.plan import run_order
from allpull.study.point_run import Deadline, StudyPlace, attempt_of, run_point
from allpull.study.points import Point, show_parameters
from allpull.study.results import half_width, over_repeats
from allpull.study.run_metrics import StudyMetrics
from allpull.study.startable import check_commands
from allpull.units import counted, show_bytes, show_time

MIN_FREE_BYTES = 64 << 20  # a run of a few hundred steps on a few ranks takes some of it, its last records the rest


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveRun:
    """The run that is under way: number ``number`` of at most ``total``, in ``directory``."""

    number: int
    total: int
    point: Point
    repeat: int
    directory: Path
    seconds: float
    left_s: float | None

    @property
    def title(self) -> str:
        """Which run it is, on one line."""
        return f"[{self.number}/{self.total}] {show_parameters(self.point.parameters)}, repeat {self.repeat + 1}"


class Viewer(Protocol):
    """Shows how a study goes."""

    def begun(self, title: str) -> None:
        """A run begins."""

    def look(self, run: LiveRun) -> None:
        """Called about twice a second while it runs."""

    def ended(self, title: str, attempt: Attempt, rate: Interval | None, left_s: float | None) -> None:
        """It has ended, with its throughput in samples/s; runs left take about ``left_s``."""


@dataclass(slots=True, kw_only=True)
class StudyEnd:
    """How a call of ``run_study`` ended: attempts by state, and which limit stopped it."""

    attempts: list[Attempt] = field(default_factory=list)
    stopped: str | None = None

    def count(self, state: str) -> int:
        """Attempts that ended in ``state``."""
        return sum(attempt.state == state for attempt in self.attempts)


def run_study(
    study: StudyFile, points: Sequence[Point], directory: Path, viewer: Viewer, *, anew: bool = False
) -> StudyEnd:
    """Run every repeat of every point that has not completed in ``directory``; how that went.

    A run that fails is recorded with its reason, and the others follow; more repeats of its point are left to the next
    call. ``anew``: the study in ``directory`` may be an older version of this one.

    Raises:
        BadInput: ``directory`` holds another study, or is in use, or a command cannot be started.
        AllpullError: the disk is full; all that was measured is kept.
        KeyboardInterrupt: after every process of the current run has ended.
    """
    check_commands(study.settings.name, points)
    open_directory(study, list(points), directory, anew=anew)
    with locked(directory) as lock:
        try:
            return _Runner(study, points, StudyPlace(directory=directory, lock=lock), viewer).run()
        except OSError as error:
            raise AllpullError(
                f"cannot write to {directory}: {error.strerror or error}",
                hint="make room there and run the study again: it goes on where it stopped",
            ) from error


class _Runner:
    def __init__(self, study: StudyFile, points: Sequence[Point], place: StudyPlace, viewer: Viewer) -> None:
        self._study, self._settings = study, study.settings
        self._points = {point.id: point for point in points}
        self._place = place
        self._viewer = viewer
        for attempt in unlogged_attempts(place.directory, {point.id: point.job.ranks for point in points}):
            add_attempt(place.directory, attempt)
        self._costs = Costs(points, read_attempts(place.directory))
        self._completed: dict[str, dict[int, str]] = {}
        for (id_, repeat), runs in runs_by_point(place.directory).items():
            for name, record in runs:
                if record.status == "completed":
                    self._completed.setdefault(id_, {})[repeat] = name
        self._metrics = StudyMetrics(place.directory)

    def run(self) -> StudyEnd:
        """Run what is missing."""
        order = run_order(list(self._points.values()), self._settings.repeats, self._settings.seed)
        end, failed = StudyEnd(), dict[str, int]()
        for place, (id_, repeat) in enumerate(order):
            point = self._points[id_]
            if repeat in self._completed.get(id_, {}) or self._is_known_well(id_):
                continue
            if id_ in failed:
                reason = f"repeat {failed[id_] + 1} did not complete"
                end.attempts.append(self._add(attempt_of(point, repeat, "skipped", seconds=0.0, reason=reason)))
                continue
            end.stopped = self._limit_reached(point)
            if end.stopped is not None:
                break
            attempt = self._run_one(point, repeat, order, place)
            end.attempts.append(attempt)
            if attempt.state == "completed":
                self._completed.setdefault(id_, {})[repeat] = attempt.run or ""
            else:
                failed[id_] = repeat
            if attempt.state == "skipped":  # a limit of the study ended it
                end.stopped = attempt.reason
                break
        return end

    def _run_one(self, point: Point, repeat: int, order: Sequence[tuple[str, int]], place: int) -> Attempt:
        self._check_disk()
        missing = [id_ for id_, one in order[place:] if one not in self._completed.get(id_, {})]
        left_s = self._costs.left_s(missing)
        began_s = time.monotonic()

        def live(directory: Path) -> LiveRun:
            seconds = time.monotonic() - began_s
            return LiveRun(
                number=place + 1,
                total=len(order),
                point=point,
                repeat=repeat,
                directory=directory,
                seconds=seconds,
                left_s=None if left_s is None else max(0.0, left_s - seconds),
            )

        enough = Enough(self._study)

        def look(directory: Path) -> Deadline | None:
            self._viewer.look(live(directory))
            return enough.look(directory)

        title = live(self._place.directory).title
        self._viewer.begun(title)
        try:
            attempt = run_point(
                point,
                repeat,
                self._place,
                deadline=self._deadline(point),
                look=look,
            )
        except KeyboardInterrupt:
            seconds = time.monotonic() - began_s
            self._add(attempt_of(point, repeat, "missing", seconds=seconds, reason="interrupted"))
            raise
        self._add(attempt)
        rate = self._rate(attempt.run) if attempt.state == "completed" and attempt.run else None
        self._viewer.ended(title, attempt, rate, self._costs.left_s(missing[1:]))
        if attempt.state in ("failed", "timeout"):
            self._check_disk()  # a program that fails for that, or whose steps are no longer recorded, rarely says so
        return attempt

    def _is_known_well(self, id_: str) -> bool:
        """Whether the throughput of a point is known as well as the study wants."""
        runs = self._completed.get(id_, {})
        if not self._settings.half_width or len(runs) < 2:
            return False
        rates = [rate for run in runs.values() if (rate := self._rate(run)) is not None]
        width = half_width(over_repeats(rates)) if len(rates) > 1 else None
        return width is not None and width <= self._settings.half_width

    def _rate(self, run: str) -> Interval | None:
        """The throughput of a run; None where it has none, or cannot be read."""
        try:
            return self._metrics.of(run).throughput
        except RunDirError:
            return None

    def _limit_reached(self, point: Point) -> str | None:
        """Which limit of the study one run of ``point`` would exceed; None: no limit."""
        cost = self._costs.of(point.id)
        expected_s = cost.seconds if cost else 0.0
        limit_s, limit_h = self._settings.limit_s, self._settings.limit_rank_hours
        used_s, used_h = self._costs.used_s, self._costs.used_rank_s / 3600
        takes = (
            f"; the next run takes about {show_time(expected_s)} on {counted(point.job.ranks, 'rank')}" if cost else ""
        )
        if limit_s is not None and (used_s >= limit_s or used_s + expected_s > limit_s):
            return f"study.limit = {show_time(limit_s)}: {show_time(used_s)} are used{takes}"
        if limit_h and (used_h >= limit_h or used_h + expected_s * point.job.ranks / 3600 > limit_h):
            return f"study.limit_rank_hours = {limit_h:g}: {used_h:.3g} rank-hours are used{takes}"
        return None

    def _deadline(self, point: Point) -> Deadline | None:
        """What ends a run of ``point`` that takes too long: its own limit, or what is left of those of the study."""
        settings, deadlines = self._settings, []
        if settings.timeout_s is not None:
            reason = f"stopped after study.timeout = {show_time(settings.timeout_s)}"
            deadlines.append(Deadline(seconds=settings.timeout_s, state="timeout", reason=reason))
        left_s = math.inf if settings.limit_s is None else settings.limit_s - self._costs.used_s
        if settings.limit_rank_hours:
            left_s = min(left_s, (settings.limit_rank_hours * 3600 - self._costs.used_rank_s) / point.job.ranks)
        if left_s < math.inf:
            reason = f"stopped after {show_time(left_s)}, when a limit of the whole study was reached"
            deadlines.append(Deadline(seconds=left_s, state="skipped", reason=reason))
        return min(deadlines, key=lambda one: one.seconds, default=None)

    def _check_disk(self) -> None:
        free = shutil.disk_usage(self._place.directory).free
        if free < MIN_FREE_BYTES:
            raise AllpullError(
                f"{self._place.directory} has {show_bytes(free)} free, less than {show_bytes(MIN_FREE_BYTES)}",
                hint="make room there and run the study again: it goes on where it stopped",
            )

    def _add(self, attempt: Attempt) -> Attempt:
        add_attempt(self._place.directory, attempt)
        self._costs.add(attempt)
        return attempt
