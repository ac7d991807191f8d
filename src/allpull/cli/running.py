"""From a recipe to a finished run directory: what ``train`` and ``demo`` share."""

from __future__ import annotations

import importlib.util
import os
import signal
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import typer

from allpull.cli.progress import follow
from allpull.cli.say import note
from allpull.config.load import load_spec
from allpull.data.loader import open_feed as feed
from allpull.errors import BadInput, MissingPart, UnknownName
from allpull.launch import detect
from allpull.launch.execute import execute
from allpull.launch.job import Job, prepare, prospect
from allpull.launch.launcher import choose
from allpull.launch.mpi import hosts_of
from allpull.launch.outcome import describe
from allpull.launch.script import sbatch_script
from allpull.launch.slurm.launcher import prepare_script
from allpull.report.plain import printable
from allpull.schema.run import RunRecord
from allpull.schema.spec import RunSpec
from allpull.train.models import LIBRARIES, MODELS

TRAINER = "allpull.train"


def need_torch() -> None:
    """Make sure that torch is installed, without importing it.

    Raises:
        MissingPart: it is not.
    """
    if importlib.util.find_spec("torch") is None:
        raise MissingPart(
            "training needs torch, which is not installed",
            hint="pip install torch (on machines without a GPU: a CPU build, see the README), then try again",
        )


def resolve(
    recipe: str,
    sets: Sequence[str],
    *,
    ranks: int | None = None,
    launcher: str | None = None,
    resume: Path | None = None,
) -> RunSpec:
    """The specification of a recipe with what the command line changed.

    Raises:
        BadInput: unknown recipe, option, launcher or data set, with every fault listed.
    """
    spec = settle(load_spec(recipe, [*sets, *_overrides(ranks, launcher, resume)]), os.environ, sets)
    choose(spec.launch.launcher)
    check_restarts(spec)
    check_parts(spec)
    return spec


def check_restarts(spec: RunSpec) -> None:
    """Make sure that ranks are not asked to start again where they cannot.

    Raises:
        BadInput: they are; the message says why not.
    """
    launcher = spec.launch.launcher.partition(":")[0]
    if spec.launch.max_restarts and launcher in NO_RESTARTS:
        raise BadInput(
            f"launch.max_restarts says nothing with --launcher {launcher}: {NO_RESTARTS[launcher]}",
            hint="leave it out; --resume RUN goes on from the last checkpoint",
        )


HERE = ("local", "rehearse")
"""Launchers whose ranks have the devices of this machine."""

NO_RESTARTS = {
    "mpi": "an MPI job ends as a whole when one of its ranks does",
    "rehearse": "a rank that fails on a virtual cluster ends the job, as a planted fault should",
}
"""Launchers whose ranks have no agent that could start them again, and why."""


def check_parts(spec: RunSpec) -> None:
    """Make sure that what a rank would look for is there, before any rank is started.

    Raises:
        BadInput: no such model or data set, files of either are missing, or data damaged, or there is nothing to go on
            from.
        MissingPart: ranks would be here, and no device here computes in what was asked for.
    """
    if spec.model.name.partition(":")[0] not in (*MODELS.names(), *LIBRARIES):
        raise UnknownName("model", spec.model.name, MODELS.names())
    feed.check(spec.data)
    if spec.model.weights and not spec.train.resume and not Path(spec.model.weights).is_file():
        raise BadInput(
            f"model.weights: no file {spec.model.weights}", hint="give a state_dict with torchvision's names, or none"
        )
    if spec.train.precision == "tf32" and spec.launch.launcher.partition(":")[0] in HERE:
        from allpull.train.numerics.precision import check_here  # noqa: PLC0415  torch takes seconds, and few ask for tf32

        check_here(spec.train.precision)
    if spec.train.resume and not Path(spec.train.resume).exists():
        raise BadInput(f"cannot go on from {spec.train.resume}: no such file or directory", hint="give a run directory")


def settle(spec: RunSpec, environ: Mapping[str, str], sets: Sequence[str] = ()) -> RunSpec:
    """The specification with its launcher named, where it says ``auto``, and with the number of hosts that there are.

    ``sets`` are the ``--set`` of the command line: one of them may say how many hosts to take of those.

    Raises:
        BadInput: the ranks cannot be divided over the hosts that were found, or allpull was started in parallel.
    """
    detect.check_alone(environ)
    found = find_hosts(spec.launch.launcher, environ)
    if found.reason:
        note(f"launcher {found.launcher}: {found.reason}")
    given = spec.launch.hosts > 1 or any(text.partition("=")[0].strip() == "launch.hosts" for text in sets)
    hosts = spec.launch.hosts if given else found.hosts
    if spec.launch.ranks % hosts:
        raise BadInput(
            f"{spec.launch.ranks} rank{'s' * (spec.launch.ranks != 1)} cannot be divided evenly over {hosts} hosts",
            hint=f"take a multiple of {hosts} with -n, or fewer hosts: --set launch.hosts=1",
        )
    return replace(spec, launch=replace(spec.launch, launcher=found.launcher, hosts=hosts))


def find_hosts(launcher: str, environ: Mapping[str, str]) -> detect.Found:
    """What ``launcher`` stands for here, and how many hosts it has: those of the job that we are in, or of its file.

    Raises:
        BadInput: its file of hosts cannot be read, or names none.
    """
    name, _, argument = launcher.partition(":")
    if launcher == detect.AUTO or (launcher == "slurm" and detect.in_allocation(environ)):
        return detect.find(environ)
    names = hosts_of(argument, environ) if name == "mpi" else []
    if len(names) < 2:
        return detect.Found(launcher=launcher, reason="")
    where = f"the file {argument}" if argument else "the job that we are in"
    return detect.Found(launcher=launcher, reason=f"{len(names)} hosts, those of {where}", hosts=len(names))


def _overrides(ranks: int | None, launcher: str | None, resume: Path | None) -> list[str]:
    given = {"launch.ranks": ranks, "launch.launcher": launcher, "train.resume": resume and resume.resolve()}
    return [f"{key}={value}" for key, value in given.items() if value is not None]


def run_training(spec: RunSpec, out: Path) -> tuple[RunRecord, Path]:
    """Run one training to its end, with progress on stderr; its final record and its run directory.

    Raises:
        AllpullError: it could not be started.
    """
    need_torch()
    job = prepare(spec, kind="train", module=TRAINER, command=[*sys.argv], out=out)
    with follow(job.directory, spec) as look:
        record = execute(job, choose(spec.launch.launcher), look, note)
    return record, job.directory


def plan_training(spec: RunSpec, out: Path) -> str:
    """What ``run_training`` would start now, as a script; nothing is started or written.

    Raises:
        AllpullError: it cannot be started here, as far as that shows beforehand.
    """
    job = prospect(spec, kind="train", module=TRAINER, command=[*sys.argv], out=out)
    return "\n".join(printable(line) for line in choose(spec.launch.launcher).plan(job).splitlines())


def prepare_training(spec: RunSpec, out: Path) -> Path:
    """Make the run directory of a training with a batch script in it, for submission by hand; the script's path.

    Raises:
        BadInput: the launcher is not Slurm, or the script cannot be made.
    """
    check_prepared(prospect(spec, kind="train", module=TRAINER, command=[*sys.argv], out=out))
    return prepare_script(prepare(spec, kind="train", module=TRAINER, command=[*sys.argv], out=out))


def check_prepared(job: Job) -> None:
    """Make sure that ``job`` can be submitted by hand, before anything is made.

    Raises:
        BadInput: it cannot.
    """
    spec = job.spec
    if spec.launch.launcher != "slurm":
        raise BadInput(
            f"--prepare makes a batch script for sbatch, and the launcher is {spec.launch.launcher}",
            hint="add --launcher slurm; what other launchers would run is shown by --dry-run",
        )
    sbatch_script(job)


def pass_on(record: RunRecord) -> None:
    """Say how a job ended that did not end well, and leave with its exit code."""
    if record.exit is None or record.exit.code == 0:
        return
    if record.status == "cancelled":
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # one more Ctrl-C while Python ends would change our exit code
        note("cancelled: every process of the job was ended")
    else:
        note(f"allpull: {describe(record.exit)}")
        for line in record.exit.log_tail:
            note(f"  | {line}")
    raise typer.Exit(record.exit.code)


def with_ranks(spec: RunSpec, ranks: int) -> RunSpec:
    """The same specification on another number of ranks."""
    return replace(spec, launch=replace(spec.launch, ranks=ranks))
