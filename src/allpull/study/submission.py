"""Submit what is missing of a study as Slurm jobs, one per run, each after the one before it.

Nothing waits for them: each is an ordinary run directory of the study, which says at any time how far it is. The jobs
go in the order of the plan, in as many chains as may run at once; a job that fails does not hold up those behind it.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from allpull.errors import BadInput
from allpull.jobs import command, training
from allpull.launch.job import POINT_VARIABLE
from allpull.launch.slurm.launcher import submit_script
from allpull.schema.run import UNENDED
from allpull.schema.spec import RunSpec
from allpull.study.directory import RUNS, locked, open_directory, runs_by_point
from allpull.study.file import StudyFile
from allpull.study.plan import run_order, shown_command
from allpull.study.points import Point
from allpull.study.startable import check_commands
from allpull.study.submitted import companion
from allpull.units import counted

LAUNCHER = "slurm"


@dataclass(frozen=True, slots=True, kw_only=True)
class Submitted:
    """One job in Slurm's queue: its number, and the run directory that it will fill."""

    point: Point
    repeat: int
    number: str
    directory: Path


def submit_study(
    study: StudyFile, points: Sequence[Point], directory: Path, *, at_once: int, notify: Callable[[str], None]
) -> list[Submitted]:
    """Submit every repeat of every point that has neither completed nor is in the queue; at most ``at_once`` run.

    Raises:
        BadInput: the study has rehearsals, ``directory`` holds another study, or sbatch refuses a job; those submitted
            before it stay.
        MissingPart: there is no sbatch here.
    """
    if at_once < 1:
        raise BadInput(f"--at-once {at_once}: one job at least has to run", hint="such as --at-once 2")
    if any(point.job.kind == "rehearse" for point in points):
        raise BadInput("a rehearsal needs no cluster", hint="allpull study run")
    if study.settings.half_width:
        raise BadInput(
            "study.half_width decides after each run whether another is needed, and jobs are submitted beforehand",
            hint="--set study.half_width=0, or allpull study run inside an allocation",
        )
    check_commands(study.settings.name, points)
    open_directory(study, list(points), directory)
    by_id = {point.id: point for point in points}
    chains: list[str] = []
    submitted: list[Submitted] = []
    with locked(directory):
        taken = {key for key, runs in runs_by_point(directory).items() if any(_is_kept(one.status) for _, one in runs)}
        order = run_order(points, study.settings.repeats, study.settings.seed)
        missing = [one for one in order if one not in taken]
        _check_money(study, [by_id[id_] for id_, _ in missing])
        for place, (id_, repeat) in enumerate(missing):
            after = chains[place % at_once] if place >= at_once else None
            job = _submit(study, by_id[id_], repeat, directory, after=after, notify=notify)
            chains[place % at_once : place % at_once + 1] = [job.number]
            submitted.append(job)
    return submitted


def _check_money(study: StudyFile, runs: Sequence[Point]) -> None:
    """Check that ``runs`` stay within the rank-hours of the study even where each takes its whole time.

    Raises:
        BadInput: they may not.
    """
    settings = study.settings
    if not settings.limit_rank_hours:
        return
    if settings.timeout_s is None:
        raise BadInput("study.limit_rank_hours needs study.timeout: how long a job may take", hint="such as '2 h'")
    rank_hours = sum(point.job.ranks for point in runs) * settings.timeout_s / 3600
    if rank_hours > settings.limit_rank_hours:
        raise BadInput(
            f"{counted(len(runs), 'job')} may take {rank_hours:,.1f} rank-hours, and the study is limited to "
            f"{settings.limit_rank_hours:,.1f}",
            hint="a shorter study.timeout, fewer points, or a larger study.limit_rank_hours",
        )


def _is_kept(status: str) -> bool:
    return status == "completed" or status in UNENDED


def _submit(
    study: StudyFile,
    point: Point,
    repeat: int,
    directory: Path,
    *,
    after: str | None,
    notify: Callable[[str], None],
) -> Submitted:
    """Write the run directory and the script of one run, and submit it ``after`` another job."""
    options = {**point.job.options, "launcher": LAUNCHER}
    out, origin, beside = directory / RUNS, shown_command(point, directory), companion(study)
    with _as_point(f"{point.id}/{repeat}"):
        if point.job.kind == "train":
            spec = training.resolve(training.request_of(options), notify=notify)
            script = training.training_script(_queued(spec, study, point, after), out, origin, companion=beside)
        else:
            observed = command.resolve(command.request_of(options), notify=notify)
            observed = replace(observed, spec=_queued(observed.spec, study, point, after))
            script = command.command_script(observed, out, origin, companion=beside)
    number = submit_script(script.read_text("utf-8"), os.environ)
    return Submitted(point=point, repeat=repeat, number=number, directory=script.parent.parent)


def _queued(spec: RunSpec, study: StudyFile, point: Point, after: str | None) -> RunSpec:
    """``spec`` with the job that it waits for, the time limit of the study, and the variables of the point."""
    depends = () if after is None else (f"--dependency=afterany:{after.partition(';')[0]}",)
    exported = tuple(f"export {name}={shlex.quote(value)}" for name, value in point.job.environment.items())
    time = spec.slurm.time or _slurm_time(study.settings.timeout_s)
    slurm = replace(
        spec.slurm, lines=(*spec.slurm.lines, *depends), prologue=(*spec.slurm.prologue, *exported), time=time
    )
    return replace(spec, slurm=slurm)


def _slurm_time(seconds: float | None) -> str:
    """A time limit as Slurm writes it, in whole minutes; empty for none.

    >>> _slurm_time(90.0), _slurm_time(3 * 3600.0), _slurm_time(None)
    ('00:02:00', '03:00:00', '')
    """
    if seconds is None:
        return ""
    minutes = -int(-seconds // 60)
    return f"{minutes // 60:02}:{minutes % 60:02}:00"


@contextmanager
def _as_point(name: str) -> Iterator[None]:
    """Runs that are prepared meanwhile are those of the point ``name``."""
    os.environ[POINT_VARIABLE] = name
    try:
        yield
    finally:
        del os.environ[POINT_VARIABLE]
