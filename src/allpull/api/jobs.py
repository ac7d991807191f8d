"""Start a job, follow it, and open its run when it has ended."""

from __future__ import annotations

import shlex
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from allpull.analyse.job_health import assess
from allpull.api.places import Place
from allpull.api.runs import Run, open_run
from allpull.errors import AllpullError, BadInput
from allpull.jobs.arguments import assignments
from allpull.jobs.start import JobRequest, StartedJob, start
from allpull.rundir.live.snapshot import job_snapshot
from allpull.rundir.safe_open import shown_path
from allpull.schema.results import WatchResult
from allpull.schema.run import RunRecord
from allpull.units import counted, show_count, show_time

MAX_SHOWN = 200  # characters of a command in a message


class JobFailed(AllpullError):
    """A job failed or was cancelled; ``directory`` is its run directory."""

    exit_code = 1

    def __init__(self, message: str, directory: Path, *, hint: str = "") -> None:
        super().__init__(message, hint=hint)
        self.directory = directory


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """How far a job is; ``str`` gives one line.

    ``steps`` counts the optimizer steps that all ranks have done, ``steps_total`` those of the whole training; None:
    the program does not say. ``seconds`` counts from the start of the job; ``watched`` is the answer of
    ``allpull watch --json``.
    """

    status: str
    seconds: float
    steps: int
    steps_total: int | None
    samples_per_s: float | None
    watched: WatchResult

    def __str__(self) -> str:
        parts = [self.status, f"step {self.steps:,}" + (f" of {self.steps_total:,}" if self.steps_total else "")]
        if self.samples_per_s is not None:
            parts.append(f"{show_count(self.samples_per_s)} samples/s")
        if self.watched.left_s is not None and self.status == "running":
            parts.append(f"{show_time(self.watched.left_s)} left")
        if self.watched.troubles:
            parts.append(counted(len(self.watched.troubles), "rank") + " in trouble")
        return " · ".join(parts)


class Job:
    """A job that runs in a process of its own, started by `train` or `run`; it continues if this Python ends."""

    def __init__(self, started: StartedJob) -> None:
        self._started = started
        self.directory = started.directory
        """The run directory, absolute; it grows while the job runs."""

    @property
    def done(self) -> bool:
        """Whether the job has ended."""
        return self._started.exit_code is not None

    @property
    def notes(self) -> list[str]:
        """The launcher's messages so far, such as the place of the job in a queue; a sentence each."""
        return self._started.notes

    def progress(self) -> Progress:
        """How far the job is now."""
        watched = assess(job_snapshot(self.directory))
        return Progress(
            status=watched.status,
            seconds=time.monotonic() - self._started.started_s,
            steps=watched.steps_done,
            steps_total=watched.steps_total,
            samples_per_s=watched.samples_per_s,
            watched=watched,
        )

    def wait(self, progress: Callable[[Progress], object] | None = None, *, every_s: float = 1.0) -> Run:
        """Wait until the job has ended, and open its run. Ctrl-C cancels the job.

        Args:
            progress: called every ``every_s`` seconds, such as ``print``.
            every_s: seconds between two calls.

        Raises:
            JobFailed: the job failed or was cancelled; ``allpull.open_run`` of its directory still works.
        """
        try:
            while not self.done:
                if progress is not None:
                    progress(self.progress())
                self._started.wait(every_s)
        except KeyboardInterrupt:
            self.cancel()
            raise
        if progress is not None:
            progress(self.progress())
        code, run = self._started.exit_code, open_run(self.directory)
        if code:
            where = shown_path(self.directory)
            raise JobFailed(_ending(run.data.record, code), self.directory, hint=f"its records and logs are in {where}")
        return run

    def cancel(self) -> None:
        """End every process of the job, and wait for that; its run is then ``cancelled``."""
        self._started.cancel()

    def __repr__(self) -> str:
        return f"Job {self.directory.name}: {self.progress()}"


def train(
    recipe: str | Path,
    ranks: int | None = None,
    *,
    launcher: str | None = None,
    out: Place = "runs",
    resume: Place | None = None,
    **overrides: object,
) -> Job:
    """Start a training of the reference trainer, as ``allpull train`` does; returns once it has a run directory.

    Args:
        recipe: name of a shipped recipe, or a TOML file.
        ranks: ranks, one process each; None: as the recipe says.
        launcher: where ranks run, such as ``local`` or ``slurm``; None: as found here.
        out: folder in which the run directory is made.
        resume: run directory whose last checkpoint to continue from.
        overrides: options of the recipe, with two underscores for the dot: ``train__epochs=3``.

    Raises:
        BadInput: the request is invalid; every fault is listed.
        AllpullError: the job cannot be started.
    """
    options: dict[str, Any] = {
        "recipe": str(recipe),
        "ranks": ranks,
        "launcher": launcher,
        "resume": None if resume is None else str(resume),
        "sets": assignments(overrides),
    }
    origin = ["allpull", "train", str(recipe), *_origin(options, {"--resume": options["resume"]})]
    return Job(start(JobRequest(kind="train", options=options, out=Path(out), origin=origin)))


def run(
    command: str | Sequence[str],
    ranks: int | None = None,
    *,
    launcher: str | None = None,
    out: Place = "runs",
    name: str | None = None,
    **overrides: object,
) -> Job:
    """Start any command, observed, as ``allpull run`` does; returns once it has a run directory.

    Args:
        command: a list of words, or one line that is split as a shell does. With ``ranks`` it is a script,
            ``python script`` or ``-m module``; without, it runs unchanged, such as ``torchrun …``.
        ranks: start the command as this many ranks; None: it starts its own.
        launcher: with ``ranks``, where they run; None: as found here.
        out: folder in which the run directory is made.
        name: name of the run; None: that of the script.
        overrides: options such as ``observe__counters=False``, with two underscores for the dot.

    Raises:
        BadInput: the request is invalid; every fault is listed.
        AllpullError: the job cannot be started.
    """
    arguments = _split(command) if isinstance(command, str) else [str(word) for word in command]
    options = {"command": arguments, "ranks": ranks, "launcher": launcher, "name": name, "sets": assignments(overrides)}
    origin = ["allpull", "run", *_origin(options, {"--name": name}), "--", *arguments]
    return Job(start(JobRequest(kind="run", options=options, out=Path(out), origin=origin)))


def _ending(record: RunRecord, code: int) -> str:
    """How a job ended that did not complete: as its record says, or else its process."""
    exit_ = record.exit
    if record.status == "cancelled":
        return "the job was cancelled" + (f": {exit_.reason}" if exit_ and exit_.reason else "")
    if exit_ and (exit_.rank is not None or exit_.reason):
        return f"the job failed: {exit_.describe()}"
    return "the job failed: " + (f"exit code {code}" if code > 0 else f"{signal.Signals(-code).name} ended its process")


def _split(line: str) -> list[str]:
    """The words of a command line, as a shell splits it.

    Raises:
        BadInput: a quotation is not closed.

    >>> _split("python train.py --name 'two words'")
    ['python', 'train.py', '--name', 'two words']
    """
    try:
        return shlex.split(line)
    except ValueError as error:
        raise BadInput(
            f"the command {line[:MAX_SHOWN]!r} cannot be split into words: {str(error).lower()}",
            hint="close the quotation, or give the command as a list of words",
        ) from None


def _origin(options: Mapping[str, Any], given: Mapping[str, str | None]) -> list[str]:
    """The options of the command line that would start the same job."""
    named = {"--ranks": options["ranks"], "--launcher": options["launcher"], **given}
    arguments = [word for name, value in named.items() if value is not None for word in (name, str(value))]
    return [*arguments, *(word for text in options["sets"] for word in ("--set", text))]
