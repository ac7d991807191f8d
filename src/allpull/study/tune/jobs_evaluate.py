"""Measure configurations by jobs: each a run of the study's recipe, command or cluster, ended early where hopeless."""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path

from allpull.analyse.aligned import AlignedRun
from allpull.analyse.run import metrics
from allpull.errors import AllpullError, RunDirError
from allpull.explain.explanation import explain
from allpull.rundir.live.snapshot import job_snapshot
from allpull.rundir.read.run import read_run
from allpull.rundir.run_record import read_record
from allpull.schema.run import RunRecord
from allpull.schema.studied import Attempt, Parameters
from allpull.schema.tuned import BottleneckKind, TrialState
from allpull.study.directory import RUNS, run_seconds
from allpull.study.file import Matrix, StudyFile
from allpull.study.length import Enough
from allpull.study.point_run import Deadline, StudyPlace, run_point
from allpull.study.points import Point, points_of
from allpull.study.tune.bottleneck import bottlenecks
from allpull.study.tune.budget import Spent
from allpull.study.tune.live_value import live_value
from allpull.study.tune.objective import Goal, Hopeless, Measured
from allpull.study.tune.run_value import Value, run_value
from allpull.units import show_time


class JobsEvaluate:
    """Runs configurations of ``study`` in ``place``; ``fixed`` are parameters that are not tuned."""

    def __init__(self, study: StudyFile, goal: Goal, place: StudyPlace, *, fixed: Parameters) -> None:
        self._study, self._goal, self._place, self._fixed = study, goal, place, fixed

    def run(self, parameters: Parameters, repeat: int, hopeless: Hopeless, within: Spent) -> Measured:
        """Run one configuration for no longer than ``within``, or find the run that a killed tuning has completed."""
        try:
            point = point_of(self._study, {**self._fixed, **parameters})
        except AllpullError as error:
            return Measured(state="failed", value=None, seconds=0.0, rank_s=0.0, run=None, reason=error.message)
        known = self._completed(point, repeat)
        if known is not None:
            path, record = known
            seconds = run_seconds(path, record)
            return self._measured(path.name, "completed", None, seconds=seconds, rank_s=seconds * point.job.ranks)
        watch = _Watch(self._study, self._goal, hopeless)
        attempt = run_point(
            point, repeat, self._place, deadline=self._deadline(within, point.job.ranks), look=watch.look
        )
        state, reason = watch.outcome(attempt)
        return self._measured(attempt.run, state, reason, seconds=attempt.seconds, rank_s=attempt.rank_s)

    def is_completed(self, parameters: Parameters, repeat: int) -> bool:
        """Whether this run of a configuration is there already."""
        return self._completed(point_of(self._study, {**self._fixed, **parameters}), repeat) is not None

    def unlisted(self, runs: Collection[str]) -> Spent:
        """What the runs took that are here and not among ``runs``: a tuning that was killed left them."""
        spent = Spent()
        for path, record in self._records():
            if f"{RUNS}/{path.name}" not in runs:
                seconds = run_seconds(path, record)
                spent += Spent(seconds=seconds, rank_s=seconds * record.ranks)
        return spent

    def bottlenecks(self, run: str) -> Sequence[BottleneckKind]:
        """The bottlenecks of a run by `explain`; empty where it cannot be read."""
        try:
            data = read_run(self._place.directory / run, skip_damaged=True)
        except RunDirError:
            return []
        return bottlenecks(explain(AlignedRun(data)).result)

    def _measured(
        self, name: str | None, state: TrialState, reason: str | None, *, seconds: float, rank_s: float
    ) -> Measured:
        """The objective of a run that has ended, or why it has none."""
        value = None
        if name is not None and state in ("completed", "stopped"):
            found = self._value(name)
            value = found.interval
            if value is None and state == "completed":
                state, reason = "failed", found.reason
        return Measured(
            state=state,
            value=value,
            seconds=seconds,
            rank_s=rank_s,
            run=None if name is None else f"{RUNS}/{name}",
            reason=reason,
        )

    def _value(self, name: str) -> Value:
        try:
            aligned = AlignedRun(read_run(self._place.directory / RUNS / name, skip_damaged=True))
        except RunDirError as error:
            return Value(interval=None, reason=error.message)
        whole_epochs = not self._study.settings.steps
        return run_value(self._goal, metrics(aligned), aligned.data.events, whole_epochs=whole_epochs)

    def _deadline(self, within: Spent, ranks: int) -> Deadline | None:
        """What ends a run that takes too long: the limit of each run, or the budget."""
        timeout_s, left_s = self._study.settings.timeout_s, min(within.seconds, within.rank_s / ranks)
        deadlines = []
        if timeout_s is not None:
            late = f"it took longer than study.timeout = {show_time(timeout_s)}"
            deadlines.append(Deadline(seconds=timeout_s, state="timeout", reason=late))
        if left_s < math.inf:
            late = f"it took longer than the {show_time(left_s)} that the budget had left for it"
            deadlines.append(Deadline(seconds=left_s, state="timeout", reason=late))
        return min(deadlines, key=lambda one: one.seconds, default=None)

    def _completed(self, point: Point, repeat: int) -> tuple[Path, RunRecord] | None:
        """This repeat of ``point`` if it completed, and its record."""
        return next(
            (
                (path, record)
                for path, record in self._records()
                if record.point == f"{point.id}/{repeat}" and record.status == "completed"
            ),
            None,
        )

    def _records(self) -> Iterator[tuple[Path, RunRecord]]:
        """Every run of the tuning, and its record."""
        folder = self._place.directory / RUNS
        for path in sorted(folder.iterdir()) if folder.is_dir() else ():
            try:
                record = read_record(path)
            except RunDirError:
                continue  # killed before it wrote its record: there is nothing in it
            yield path, record


class _Watch:
    """Looks at a run while it goes on, and says when to end it."""

    def __init__(self, study: StudyFile, goal: Goal, hopeless: Hopeless) -> None:
        self._study, self._goal, self._hopeless = study, goal, hopeless
        self._enough = Enough(study)
        self._begin_s = time.monotonic()
        self._state: TrialState | None = None

    def look(self, directory: Path) -> Deadline | None:
        """Why to end the run in ``directory`` now: it has measured enough, or is hopeless."""
        enough = self._enough.look(directory)
        if enough is not None:
            return enough
        try:
            now = job_snapshot(directory)
        except RunDirError:
            return None
        seconds = time.monotonic() - self._begin_s
        live = live_value(self._goal, now, warmup_steps=self._study.settings.warmup_steps, seconds=seconds)
        reason = None if live is None else self._hopeless(live)
        if reason is None:
            return None
        self._state = "stopped"
        return Deadline(seconds=0.0, state="skipped", reason=reason)

    def outcome(self, attempt: Attempt) -> tuple[TrialState, str | None]:
        """How the run counts: it may have completed before it was ended."""
        if attempt.state == "completed":
            return "completed", None
        if self._state is not None:
            return self._state, attempt.reason
        return ("timeout" if attempt.state == "timeout" else "failed"), attempt.reason


def point_of(study: StudyFile, parameters: Parameters) -> Point:
    """The point of ``study`` with ``parameters`` alone.

    Raises:
        ConfigError: it cannot be run.
    """
    axes: Mapping[str, Sequence[object]] = {name: [value] for name, value in parameters.items()}
    only = dataclasses.replace(study, matrix=Matrix(axes=axes), includes=())
    return points_of(only)[0]
