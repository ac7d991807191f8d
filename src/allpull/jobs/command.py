"""From a user's command to a job that observes it: ``allpull run``, and the ``env`` lines of a batch script."""

from __future__ import annotations

import errno
import json
import os
import shutil
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from allpull.config.load import Spelling, as_set_option, bare_spec
from allpull.errors import BadInput, MissingPart
from allpull.jobs.placement import Notify, check_restarts, check_submittable, need_torch, place_ranks
from allpull.launch import detect
from allpull.launch.carried_code import select, working_folder
from allpull.launch.command import env_script
from allpull.launch.command.command_line import as_rank, title
from allpull.launch.command.missing_ranks import ProcessWatch
from allpull.launch.command.wrapped import LAUNCHER, CannotStart, Wrapped
from allpull.launch.execute import execute
from allpull.launch.job import Job, prepare, prospect
from allpull.launch.launcher import Launcher, choose
from allpull.launch.slurm import launcher as slurm
from allpull.rundir.job_file import JOB_VARIABLE
from allpull.rundir.read.headers import USER_STARTED
from allpull.schema.run import RunRecord
from allpull.schema.spec import RunSpec, to_plain

RANK_OPTIONS = ("launch", "ssh", "slurm", "kubernetes", "container")  # parts of a specification that need -n
TRAINER_OPTIONS = ("data", "model", "train")
SETTABLE = (
    "options here: observe.… and watch.…; with a number of ranks (-n) also launch.…, ssh.…, slurm.…, kubernetes.…, "
    "container.…"
)
NO_RANKS = "omit the number of ranks (-n), and the command runs unchanged"
OTHER_TORCH = "with the torch of another environment, run torchrun --nproc-per-node N train.py from there, without -n"


@dataclass(frozen=True, slots=True, kw_only=True)
class CommandRequest:
    """A command as a user asks for it; ``sets`` are overrides such as ``observe.counters=false``.

    ``ranks`` None: the command runs unchanged and starts its own ranks. ``spelling``: how messages name an override.
    """

    command: tuple[str, ...]
    ranks: int | None = None
    launcher: str | None = None
    name: str | None = None
    sets: tuple[str, ...] = ()
    spelling: Spelling = as_set_option


@dataclass(frozen=True, slots=True, kw_only=True)
class ObservedCommand:
    """A checked request: the command as the user wrote it, ``program`` as each rank runs it, and its specification."""

    command: tuple[str, ...]
    program: tuple[str, ...]
    spec: RunSpec


def request_of(options: Mapping[str, Any], *, spelling: Spelling = as_set_option) -> CommandRequest:
    """The request that JSON carries as ``options``: the fields of a ``CommandRequest`` but ``spelling``."""
    words = {"command": tuple(options["command"]), "sets": tuple(options["sets"])}
    return CommandRequest(**{**options, **words, "spelling": spelling})


def resolve(request: CommandRequest, *, notify: Notify = lambda _: None) -> ObservedCommand:
    """``request``, checked.

    Raises:
        BadInput: it makes no sense, or cannot work here; nothing was started.
        MissingPart: ranks are requested, and torch is not installed in allpull's environment.
    """
    command = request.command
    if not command:
        raise BadInput("no command was given", hint="give one, such as torchrun --nproc-per-node 4 train.py")
    check_unobserved(os.environ)
    spec = specification(request)
    if request.ranks is None:
        return ObservedCommand(command=command, program=command, spec=unlaunched(spec, LAUNCHER))
    try:
        need_torch()
    except MissingPart:
        raise MissingPart(
            "torch's own agent starts the ranks, and torch is not installed in allpull's environment", hint=OTHER_TORCH
        ) from None
    spec = place_ranks(spec, os.environ, request.sets, notify=notify)
    check_restarts(spec)
    if spec.slurm.array:
        raise BadInput(
            "slurm.array repeats a training of allpull's own with other seeds, which it cannot pass to your command",
            hint="leave it out; in a batch script of your own, allpull run works inside each task of an array",
        )
    if not all(word.isascii() or word.isprintable() for word in command):
        raise BadInput("the command has bytes that are not UTF-8, or unprintable characters", hint=NO_RANKS)
    choose(spec.launch.launcher)
    if spec.ssh.carry:
        _announce_carried(spec, command, notify)
    here = not spec.launch.launcher.startswith(("ssh", "kubernetes"))
    return ObservedCommand(command=command, program=as_rank(command, check_files=here), spec=spec)


def specification(request: CommandRequest) -> RunSpec:
    """The specification that the options of ``request`` make, with every fault listed.

    Raises:
        BadInput: a fault, or an option of allpull's own trainer.
    """
    given = {"name": request.name, "launch.launcher": request.launcher}
    overrides = [f"{key}={json.dumps(value)}" for key, value in given.items() if value is not None]
    if request.ranks is not None:
        overrides.append(f"launch.ranks={request.ranks}")
    spec = bare_spec([*request.sets, *overrides], spelling=request.spelling)
    _refuse(spec, TRAINER_OPTIONS, "an option of allpull's own trainer has no effect on your command")
    if any(text.partition("=")[0].strip() == "name" for text in [*request.sets, *overrides]):
        return spec
    shown = "".join(character for character in title(request.command) if character.isprintable())
    return replace(spec, name=shown[:100] or "run")


def unlaunched(spec: RunSpec, launcher: str) -> RunSpec:
    """``spec`` for a command that starts its own ranks, recorded under ``launcher``, which users cannot choose.

    Raises:
        BadInput: an option says how ranks are to be started.
    """
    if spec.launch.launcher != detect.AUTO:
        raise BadInput(
            f"launcher {spec.launch.launcher} without a number of ranks: only ranks started by allpull have a launcher",
            hint="give a number of ranks (-n); or omit the launcher, and the command runs unchanged",
        )
    _refuse(spec, RANK_OPTIONS, "it is for ranks that allpull starts; give their number (-n), or leave it out")
    return replace(spec, launch=replace(spec.launch, launcher=launcher))


def check_unobserved(environ: Mapping[str, str]) -> None:
    """Check that the command is not observed already, and that allpull was started once, not once per rank.

    Raises:
        BadInput: it is not so.
    """
    if environ.get(JOB_VARIABLE):
        raise BadInput(
            f"already observed: {JOB_VARIABLE} is set, by `allpull env` or another `allpull run` around this one",
            hint="leave one of the two out",
        )
    try:
        detect.check_alone(environ)
    except BadInput as error:
        raise BadInput(error.message, hint="put it in front: allpull run -- srun …, not srun … allpull run") from None


def command_plan(observed: ObservedCommand, out: Path, command: Sequence[str]) -> str:
    """The script that ``observe`` would run now; nothing is started or written.

    Raises:
        AllpullError: it cannot be started here, as far as that shows beforehand.
    """
    job = prospect(observed.spec, kind="run", program=observed.program, command=command, out=out)
    return launcher_of(observed).plan(job)


def command_script(
    observed: ObservedCommand, out: Path, command: Sequence[str], *, companion: Sequence[str] = ()
) -> Path:
    """Make a run directory with a batch script in it, for manual submission; returns the script's path.

    ``companion``: see ``Job``.

    Raises:
        BadInput: the launcher is not Slurm, or the script cannot be made.
    """
    spec, program = observed.spec, observed.program
    check_submittable(prospect(spec, kind="run", program=program, command=command, out=out))
    job = prepare(spec, kind="run", program=program, command=command, out=out)
    return slurm.prepare_script(replace(job, companion=tuple(companion)))


def observe(
    observed: ObservedCommand,
    out: Path,
    command: Sequence[str],
    *,
    notify: Notify,
    on_directory: Callable[[Path], None] = lambda _: None,
    summary: Callable[[Path], Iterable[str]] = lambda _: (),
) -> int:
    """Run a command to its end, observed; its exit code. ``command`` is recorded as the origin of the run.

    ``on_directory`` receives the run directory before the command starts; ``summary`` says what was recorded in it
    by a command that succeeded.

    Raises:
        AllpullError: it could not be started.
    """
    launcher = launcher_of(observed)
    if isinstance(launcher, Wrapped) and shutil.which(observed.program[0]) is None:
        return _not_started(CannotStart(observed.program[0], _missing_program(observed.program[0])), notify)
    job = prepare(observed.spec, kind="run", program=observed.program, command=command, out=out)
    try:
        record = execute(job, launcher, lambda: None, notify, lambda: on_directory(job.directory))
    except CannotStart as error:
        code = _not_started(error, notify)
    else:
        for sentence in closing_messages(record, job, launcher, observed.command):
            notify(f"allpull: {sentence}")
        code = record.exit.code if record.exit else 0
        for line in summary(job.directory) if code == 0 else ():
            notify(line)
    notify(f"run directory: {job.directory}")
    return code


def closing_messages(record: RunRecord, job: Job, launcher: Launcher, command: Sequence[str]) -> list[str]:
    """What to say of a command that has ended, beyond what it printed itself."""
    exit_, messages = record.exit, []
    if record.status == "cancelled" and record.launcher in USER_STARTED:
        code = f" with code {exit_.code}" if exit_ is not None and exit_.code else ""
        messages.append(f"interrupted: the command was asked to end, and ended{code}")
    elif exit_ is not None and exit_.code and (exit_.rank is not None or exit_.reason):
        messages.append(exit_.describe())
    elif record.status == "cancelled" and record.launcher not in USER_STARTED:
        messages.append("cancelled: every process of the job was ended")
    began = exit_ is None or exit_.code == 0 or exit_.rank is not None  # else ranks may not have been started at all
    watch = ProcessWatch(command, job.directory) if began else None
    if isinstance(launcher, Wrapped):
        watch = launcher.watch
    if watch is not None:
        messages += [sentence for sentence in (watch.why(), watch.twice()) if sentence is not None]
    return messages


def launcher_of(observed: ObservedCommand) -> Launcher:
    """The launcher of a command."""
    return Wrapped() if observed.spec.launch.launcher == LAUNCHER else choose(observed.spec.launch.launcher)


def open_script(request: CommandRequest, shell: str, out: Path, command: Sequence[str]) -> tuple[str, Path]:
    """Open a run for a batch script that cannot be wrapped: the lines for its shell, and the run directory.

    Raises:
        BadInput: an option makes no sense, or the directory cannot be made.
    """
    batch = next((os.environ[key] for key in ("SLURM_JOB_NAME", "PBS_JOBNAME", "LSB_JOBNAME") if key in os.environ), "")
    spec = specification(replace(request, command=(batch or "script",)))
    env_script.check_shell(shell)
    job = prepare(unlaunched(spec, env_script.LAUNCHER), kind="run", program=(), command=command, out=out)
    lines = env_script.lines(job, shell, os.environ)
    env_script.open_run(job, lines)
    return lines, job.directory


def _refuse(spec: RunSpec, parts: Sequence[str], reason: str) -> None:
    """Refuse options of ``parts`` that differ from their defaults."""
    plain, defaults = to_plain(spec), to_plain(RunSpec())
    for part in parts:
        for name, value in plain[part].items():
            if value != defaults[part][name]:
                raise BadInput(f"{part}.{name}: {reason}", hint=SETTABLE)


def _announce_carried(spec: RunSpec, command: Sequence[str], notify: Notify) -> None:
    """Say which code is copied to other hosts, and what is left out.

    Raises:
        BadInput: nothing can be copied, or the command would not find the copy.
    """
    if not spec.launch.launcher.startswith("ssh"):
        raise BadInput(
            f"ssh.carry copies a program to hosts that ssh reaches, and the launcher is {spec.launch.launcher}",
            hint="leave it out",
        )
    folder, _ = working_folder(spec.ssh.carry)
    code = select(folder)
    for word in command:
        if Path(word).is_absolute() and word in {str(folder / name) for name in code.files}:
            raise BadInput(
                f"{word} is copied to another folder on other hosts, where this path does not lead to it",
                hint="give its path from the working directory",
            )
    notify(f"allpull: {code}")


def _missing_program(word: str) -> OSError:
    """Why a shell would not run ``word``, of which no program was found."""
    number = errno.EACCES if "/" in word and Path(word).exists() else errno.ENOENT
    return OSError(number, os.strerror(number))


def _not_started(error: CannotStart, notify: Notify) -> int:
    notify(f"allpull: {error}")
    return error.exit_code
