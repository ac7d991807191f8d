"""One run of one point, in a process of its own, to its end or to a deadline."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from allpull.errors import AllpullError, RunDirError
from allpull.jobs.start import JobRequest, StartedJob, start
from allpull.launch.job import POINT_VARIABLE
from allpull.rundir import layout, redact
from allpull.rundir.read.headers import rank_headers
from allpull.rundir.run_record import read_record, write_record
from allpull.rundir.write import private_folder, whole_file
from allpull.schema.run import Exit, RunRecord
from allpull.schema.studied import Attempt, PointState
from allpull.study.directory import CLUSTERS, RUNS, cluster_file
from allpull.study.plan import shown_command
from allpull.study.points import Point
from allpull.study.toml_text import toml_text

LOOK_EVERY_S = 0.5
TAIL_BYTES, MAX_LINE = 1 << 14, 300  # of the output of a job, and characters of its last line
END_S = 45.0  # three times the grace that ranks have by default, before the whole job is killed


@dataclass(frozen=True, slots=True, kw_only=True)
class Deadline:
    """The longest that a run may take, and what it counts as when it takes longer; "completed": it measured enough."""

    seconds: float
    state: PointState
    reason: str


Look = Callable[[Path], Deadline | None]
"""Called with the run directory again and again; a deadline that it returns ends the run at once."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StudyPlace:
    """The directory of a study, and the descriptor of its lock."""

    directory: Path
    lock: int


def run_point(
    point: Point, repeat: int, place: StudyPlace, *, deadline: Deadline | None = None, look: Look = lambda _: None
) -> Attempt:
    """Run ``point`` once; how that went. A job that cannot be started or fails is an attempt that says why.

    Raises:
        KeyboardInterrupt: after every process of the job has ended.
        OSError: the study's own files cannot be written.
    """
    began_s, log = time.monotonic(), place.directory / layout.JOBS_LOG
    begin = log.stat().st_size if log.exists() else 0
    try:
        job = start(_request(point, repeat, place))
    except AllpullError as error:
        return attempt_of(point, repeat, "failed", seconds=time.monotonic() - began_s, reason=error.message)
    try:
        ended = _follow(job, began_s, deadline, look)
    except BaseException:
        end(job)
        raise
    state, reason = _outcome(job.directory, ended, printed=_last_line(log, begin))
    seconds = time.monotonic() - began_s
    return attempt_of(point, repeat, state, seconds=seconds, run=job.directory.name, reason=reason)


def end(job: StartedJob) -> None:
    """End every process of ``job``: in order, or by force if that takes too long."""
    job.ask_to_end()
    if job.wait(END_S) is None:
        job.kill()


def _follow(job: StartedJob, began_s: float, deadline: Deadline | None, look: Look) -> Deadline | None:
    """Wait until ``job`` has ended; what ended it, or None where it ended by itself."""
    while job.wait(LOOK_EVERY_S) is None:
        passed = deadline if deadline is not None and time.monotonic() - began_s > deadline.seconds else None
        ended = passed or look(job.directory)
        if ended is not None:
            end(job)
            return ended
    return None


def _request(point: Point, repeat: int, place: StudyPlace) -> JobRequest:
    options = dict(point.job.options)
    if point.job.kind == "rehearse":
        file = cluster_file(place.directory, point)
        private_folder(str(place.directory / CLUSTERS))
        whole_file(str(file), toml_text(point.job.configuration["cluster"]))
        options["cluster"] = str(file)
    return JobRequest(
        kind=point.job.kind,
        options=options,
        out=place.directory / RUNS,
        origin=shown_command(point, place.directory),
        environment={**point.job.environment, POINT_VARIABLE: f"{point.id}/{repeat}"},
        tied=True,
        held=(place.lock,),
        log=place.directory / layout.JOBS_LOG,
    )


def _last_line(log: Path, begin: int) -> str:
    """The last line of ``log`` with text in it, behind the byte ``begin``, secrets masked; empty if there is none."""
    try:
        with log.open("rb") as file:
            file.seek(max(begin, log.stat().st_size - TAIL_BYTES))
            lines = file.read(TAIL_BYTES).decode("utf-8", "replace").splitlines()
    except OSError:
        return ""
    return redact.text(next((line.strip() for line in reversed(lines) if line.strip()), "")[:MAX_LINE])[0]


def _outcome(directory: Path, ended: Deadline | None, *, printed: str = "") -> tuple[PointState, str | None]:
    """How the run in ``directory`` counts, and why it did not complete; ``printed``: the last line of its output."""
    try:
        record = read_record(directory)
    except RunDirError as error:
        return "failed", error.message
    failure = None if record.exit is None else _why(record.exit, printed)
    if record.status == "completed":
        return "completed", None
    if ended is None:
        return ("failed", failure) if record.status == "failed" else ("missing", "interrupted")
    if ended.state != "completed":
        if record.exit is not None:
            write_record(
                directory, record.model_copy(update={"exit": record.exit.model_copy(update={"reason": ended.reason})})
            )
        return ended.state, ended.reason
    if record.status == "failed":  # before it was ended
        return "failed", failure
    write_record(directory, _completed(directory, record, ended.reason))
    return "completed", None


def _why(exit_: Exit, printed: str) -> str:
    """How a job ended; of a program that only exited, with what it printed at last."""
    is_known = exit_.exception or exit_.signal or exit_.reason
    return exit_.describe() if is_known or not printed else f"{exit_.describe()}; its last line: {printed}"


def _completed(directory: Path, record: RunRecord, reason: str) -> RunRecord:
    """``record`` of a run that was ended because it had measured enough: so it completed."""
    hosts = list(dict.fromkeys(header.host for header in rank_headers(directory.resolve())))
    ended = Exit(code=0, reason=reason, ended_by="study")
    return record.model_copy(update={"status": "completed", "exit": ended, "hosts": record.hosts or hosts})


def attempt_of(
    point: Point, repeat: int, state: PointState, *, seconds: float, run: str | None = None, reason: str | None = None
) -> Attempt:
    """The record of one repeat of ``point`` that took ``seconds``."""
    return Attempt(
        point=point.id,
        repeat=repeat,
        run=run,
        state=state,
        seconds=seconds,
        rank_s=seconds * point.job.ranks,
        reason=reason,
    )
