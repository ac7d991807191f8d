"""From a command of the user's to a finished run directory: what ``run`` does, and ``env`` in part."""

from __future__ import annotations

import errno
import json
import os
import re
import shutil
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from allpull.cli.say import note
from allpull.config.load import bare_spec
from allpull.errors import BadInput, MissingPart
from allpull.launch import detect
from allpull.launch.command import env_script
from allpull.launch.command.command_line import as_rank, title
from allpull.launch.command.missing_ranks import ProcessWatch
from allpull.launch.command.wrapped import LAUNCHER, CannotStart, Wrapped
from allpull.launch.execute import execute
from allpull.launch.job import Job, prepare, prospect
from allpull.launch.launcher import Launcher, choose
from allpull.launch.slurm import launcher as slurm
from allpull.rehearse.cluster.faults import AcceleratorFault
from allpull.rehearse.launcher import Rehearse
from allpull.report.plain import printable
from allpull.rundir.job_file import JOB_VARIABLE
from allpull.rundir.read.headers import COUNTED
from allpull.schema.run import RunRecord
from allpull.schema.spec import RunSpec, to_plain

RANKS_ONLY = ("launch", "ssh", "slurm", "container")  # parts of a specification that need -n
TRAINERS = ("data", "model", "train")

_PAIR = re.compile(r"(every|steps|first)=([0-9]{1,12})")
_RANGE = re.compile(r"([0-9]{0,12}):([0-9]{0,12})")


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """What the command line of ``run`` says; ``sets`` are overrides such as ``observe.counters=false``."""

    words: tuple[str, ...]
    ranks: int | None = None
    launcher: str | None = None
    name: str | None = None
    sets: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Ready:
    """What is to be run: as the user wrote it, as it is started, and how."""

    words: tuple[str, ...]
    program: tuple[str, ...]
    spec: RunSpec


def trace_options(text: str | None) -> list[str]:
    """The overrides that ``--trace`` stands for.

    >>> trace_options("every=500,steps=3")
    ['watch.trace_every=500', 'watch.trace_steps=3']

    Raises:
        BadInput: it is written otherwise.
    """
    if text is None:
        return []
    pairs = [_PAIR.fullmatch(part.strip()) for part in text.split(",")]
    names = [pair.group(1) for pair in pairs if pair]
    if None in pairs or "every" not in names or len(set(names)) < len(names):
        raise BadInput(f"--trace {text[:80]!r} cannot be read", hint="write it as --trace every=500,steps=3,first=5")
    return [f"watch.trace_{pair.group(1)}={int(pair.group(2))}" for pair in pairs if pair]


def step_options(text: str | None) -> list[str]:
    """The overrides that ``--steps`` stands for; an end that is left out is the program's own.

    >>> step_options("100:200"), step_options("100:")
    (['watch.first_step=100', 'watch.last_step=200'], ['watch.first_step=100'])

    Raises:
        BadInput: it is written otherwise, or there is no step in it.
    """
    if text is None:
        return []
    match = _RANGE.fullmatch(text.strip())
    if match is None or text.strip() == ":" or (match.group(2) and int(match.group(2)) <= int(match.group(1) or 0)):
        raise BadInput(
            f"--steps {text[:80]!r} cannot be read", hint="write it as --steps 100:200, which records steps 100 to 199"
        )
    names = ("first_step", "last_step")
    return [f"watch.{name}={int(end)}" for name, end in zip(names, match.groups(), strict=True) if end]


def resolve(asked: Asked) -> Ready:
    """What ``asked`` means.

    Raises:
        BadInput: it makes no sense, or cannot work here; nothing was started.
    """
    if not asked.words:
        raise BadInput("no command was given", hint="allpull run -- torchrun --nproc-per-node 4 train.py")
    check_free(os.environ)
    spec = specification(asked)
    if asked.ranks is None:
        return Ready(words=asked.words, program=asked.words, spec=as_it_is(spec, LAUNCHER))
    from allpull.cli import running  # noqa: PLC0415  as this knows the models, it takes longer to import

    try:
        running.need_torch()
    except MissingPart:
        raise MissingPart(
            "-n starts ranks with torch's own agent, and torch is not installed beside allpull", hint=OTHER_TORCH
        ) from None
    spec = running.settle(spec, os.environ, asked.sets)
    running.check_restarts(spec)
    if spec.slurm.array:
        raise BadInput(
            "slurm.array repeats a training of allpull's own with other seeds, which it cannot tell your command",
            hint="leave it out; in a batch script of your own, allpull run works inside each task of an array",
        )
    if not all(word.isascii() or word.isprintable() for word in asked.words):
        raise BadInput("the command has bytes in it that are not UTF-8, or signs that cannot be shown", hint=NO_RANKS)
    choose(spec.launch.launcher)
    here = not spec.launch.launcher.startswith("ssh")
    return Ready(words=asked.words, program=as_rank(asked.words, check_files=here), spec=spec)


NO_RANKS = "leave -n out, and the command is run as it is"
OTHER_TORCH = "with the torch of another environment: allpull run -- torchrun --nproc-per-node N train.py, from there"


def specification(asked: Asked) -> RunSpec:
    """The specification that the options of ``asked`` make, with every fault said.

    Raises:
        BadInput: a fault, or an option of allpull's own trainer.
    """
    given = {"name": asked.name, "launch.launcher": asked.launcher}
    overrides = [f"{key}={json.dumps(value)}" for key, value in given.items() if value is not None]
    if asked.ranks is not None:
        overrides.append(f"launch.ranks={asked.ranks}")
    spec = bare_spec([*asked.sets, *overrides])
    _refuse(spec, TRAINERS, "an option of allpull's own trainer says nothing to your command")
    if any(text.partition("=")[0].strip() == "name" for text in [*asked.sets, *overrides]):
        return spec
    shown = "".join(character for character in title(asked.words) if character.isprintable())
    return replace(spec, name=shown[:100] or "run")


def as_it_is(spec: RunSpec, launcher: str) -> RunSpec:
    """``spec`` for what starts its own ranks, under the name of no ``launcher`` that can be chosen.

    Raises:
        BadInput: an option says how ranks are to be started.
    """
    if spec.launch.launcher != detect.AUTO:
        raise BadInput(
            f"--launcher {spec.launch.launcher} without -n: only ranks that allpull starts have a launcher",
            hint="give -n RANKS; or leave --launcher out, and the command is run as it is",
        )
    _refuse(spec, RANKS_ONLY, "it is for ranks that allpull starts; give -n RANKS, or leave it out")
    return replace(spec, launch=replace(spec.launch, launcher=launcher))


def check_free(environ: os._Environ[str] | dict[str, str]) -> None:
    """Make sure that we are the only ones who observe, and were started once, not once a rank.

    Raises:
        BadInput: we are not.
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


def plan(ready: Ready, out: Path) -> str:
    """What ``observe`` would start now, as a script; nothing is started or written.

    Raises:
        AllpullError: it cannot be started here, as far as that shows beforehand.
    """
    job = prospect(ready.spec, kind="run", program=ready.program, command=own_command(), out=out)
    return "\n".join(printable(line) for line in launcher_of(ready).plan(job).splitlines())


def prepare_script(ready: Ready, out: Path) -> Path:
    """Make a run directory for what is ready with a batch script in it, for submission by hand; the script's path.

    Raises:
        BadInput: the launcher is not Slurm, or the script cannot be made.
    """
    from allpull.cli import running  # noqa: PLC0415  as this knows the models, it takes longer to import

    spec, program = ready.spec, ready.program
    running.check_prepared(prospect(spec, kind="run", program=program, command=own_command(), out=out))
    return slurm.prepare_script(prepare(spec, kind="run", program=program, command=own_command(), out=out))


def observe(ready: Ready, out: Path) -> int:
    """Run what is ready to its end; the exit code, which is the command's own.

    Raises:
        AllpullError: it could not be started.
    """
    launcher = launcher_of(ready)
    idle = sorted({fault.kind for fault in idle_faults(launcher)})
    if idle:
        note(f"faults of the virtual accelerator do not act on a command of yours: {', '.join(idle)}")
    if isinstance(launcher, Wrapped) and shutil.which(ready.program[0]) is None:
        return _not_started(CannotStart(ready.program[0], _trouble(ready.program[0])))
    job = prepare(ready.spec, kind="run", program=ready.program, command=own_command(), out=out)
    try:
        record = execute(job, launcher, lambda: None, note)
    except CannotStart as error:
        code = _not_started(error)
    else:
        for sentence in last_words(record, job, launcher, ready.words):
            note(f"allpull: {sentence}")
        code = record.exit.code if record.exit else 0
    note(f"run directory: {job.directory}")
    return code


def last_words(record: RunRecord, job: Job, launcher: Launcher, words: Sequence[str]) -> list[str]:
    """What there is to say when a command has ended, beside what it said itself."""
    exit_, said = record.exit, []
    if exit_ is not None and exit_.code and (exit_.rank is not None or exit_.reason):
        said.append(exit_.describe())
    elif record.status == "cancelled" and record.launcher not in COUNTED:
        said.append("cancelled: every process of the job was ended")
    began = exit_ is None or exit_.code == 0 or exit_.rank is not None  # else ranks may not have been started at all
    witness = ProcessWatch(words, job.directory) if began else None
    if isinstance(launcher, Wrapped):
        witness = launcher.watch
    if witness is not None:
        said += [sentence for sentence in (witness.why(), witness.twice()) if sentence is not None]
    return said


def launcher_of(ready: Ready) -> Launcher:
    """The launcher of what is ready."""
    return Wrapped() if ready.spec.launch.launcher == LAUNCHER else choose(ready.spec.launch.launcher)


def idle_faults(launcher: Launcher) -> list[AcceleratorFault]:
    """The faults of a cluster file that act in the training of its virtual accelerator alone."""
    planted = launcher.cluster.faults if isinstance(launcher, Rehearse) else ()
    return [fault for fault in planted if isinstance(fault, AcceleratorFault)]


def own_command() -> list[str]:
    """Our own command line, as text that can be written down."""
    return [word.encode("utf-8", "backslashreplace").decode() for word in sys.argv]


def _refuse(spec: RunSpec, parts: Sequence[str], why: str) -> None:
    """Refuse options of ``parts`` that differ from what they are unasked."""
    plain, unasked = to_plain(spec), to_plain(RunSpec())
    for part in parts:
        for name, value in plain[part].items():
            if value != unasked[part][name]:
                raise BadInput(f"{part}.{name}: {why}", hint="allpull run --help lists what can be set")


def _trouble(word: str) -> OSError:
    """Why a shell would not run ``word``, of which no program was found."""
    number = errno.EACCES if "/" in word and Path(word).exists() else errno.ENOENT
    return OSError(number, os.strerror(number))


def _not_started(error: CannotStart) -> int:
    note(f"allpull: {error}")
    return error.exit_code


def open_script(options: Sequence[str], *, name: str | None, shell: str, out: Path) -> tuple[str, Path]:
    """Open a run for a script that cannot be wrapped: the lines that it is to take in, and the run directory.

    Raises:
        BadInput: an option makes no sense, or the directory cannot be made.
    """
    batch = next((os.environ[key] for key in ("SLURM_JOB_NAME", "PBS_JOBNAME", "LSB_JOBNAME") if key in os.environ), "")
    spec = specification(Asked(words=(batch or "script",), name=name, sets=tuple(options)))
    env_script.check_shell(shell)
    job = prepare(as_it_is(spec, env_script.LAUNCHER), kind="run", program=(), command=own_command(), out=out)
    lines = env_script.lines(job, shell, os.environ)
    env_script.open_run(job, lines)
    return lines, job.directory
