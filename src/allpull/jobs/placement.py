"""Where the ranks of a job run: its launcher, its number of hosts, and whether both work here."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from allpull.errors import BadInput, MissingPart
from allpull.launch import detect
from allpull.launch.job import Job
from allpull.launch.mpi import hosts_of
from allpull.launch.slurm.batch_script import sbatch_script
from allpull.schema.spec import RunSpec

HERE = ("local", "rehearse")
"""Launchers whose ranks use the devices and files of this machine."""

NO_RESTARTS = {
    "kubernetes": "a job of several pods fails as a whole when one of them does",
    "mpi": "an MPI job ends as a whole when one of its ranks does",
    "rehearse": "a rank that fails on a virtual cluster ends the job, as a planted fault should",
}
"""Launchers whose ranks have no agent that could restart them, and why."""

Notify = Callable[[str], None]
"""Receives one line for the user."""


def need_torch() -> None:
    """Check that torch is installed, without importing it.

    Raises:
        MissingPart: it is not.
    """
    if importlib.util.find_spec("torch") is None:
        raise MissingPart(
            "training needs torch, which is not installed",
            hint="pip install torch (on machines without a GPU: a CPU build, see the README), then try again",
        )


def is_here(spec: RunSpec) -> bool:
    """Whether ranks run on this machine, so that the files they need can be checked before they start."""
    return spec.launch.launcher.partition(":")[0] in HERE


def place_ranks(
    spec: RunSpec, environ: Mapping[str, str], sets: Sequence[str] = (), *, notify: Notify = lambda _: None
) -> RunSpec:
    """``spec`` with the launcher that ``auto`` means here, and with the number of hosts that were found.

    ``sets`` are the user's ``key=value`` overrides: ``launch.hosts`` among them limits the hosts that are used.

    Raises:
        BadInput: the ranks cannot be divided evenly over the hosts, or several copies of allpull were started.
    """
    detect.check_alone(environ)
    detected = find_hosts(spec.launch.launcher, environ)
    if detected.reason:
        notify(f"launcher {detected.launcher}: {detected.reason}")
    given = spec.launch.hosts > 1 or any(text.partition("=")[0].strip() == "launch.hosts" for text in sets)
    hosts = spec.launch.hosts if given else detected.hosts
    if spec.launch.ranks % hosts:
        raise BadInput(
            f"{spec.launch.ranks} rank{'s' * (spec.launch.ranks != 1)} cannot be divided evenly over {hosts} hosts",
            hint=f"take a multiple of {hosts}, or fewer hosts: launch.hosts=1",
        )
    return replace(spec, launch=replace(spec.launch, launcher=detected.launcher, hosts=hosts))


def find_hosts(launcher: str, environ: Mapping[str, str]) -> detect.DetectedLauncher:
    """What ``launcher`` means here, and its number of hosts: those of the surrounding job, or of its host file.

    Raises:
        BadInput: its host file cannot be read, or names no host.
    """
    name, _, argument = launcher.partition(":")
    if launcher == detect.AUTO or (launcher == "slurm" and detect.in_allocation(environ)):
        return detect.find(environ)
    names = hosts_of(argument, environ) if name == "mpi" else []
    if len(names) < 2:
        return detect.DetectedLauncher(launcher=launcher, reason="")
    where = f"the file {argument}" if argument else "the job that we are in"
    return detect.DetectedLauncher(launcher=launcher, reason=f"{len(names)} hosts, those of {where}", hosts=len(names))


def check_restarts(spec: RunSpec) -> None:
    """Check that the launcher can restart ranks, where restarts are requested.

    Raises:
        BadInput: it cannot; the message says why.
    """
    launcher = spec.launch.launcher.partition(":")[0]
    if spec.launch.max_restarts and launcher in NO_RESTARTS:
        raise BadInput(
            f"launch.max_restarts has no effect with launcher {launcher}: {NO_RESTARTS[launcher]}",
            hint="leave it out; the run can be resumed from its last checkpoint",
        )


def check_submittable(job: Job) -> None:
    """Check that ``job`` can be submitted manually, before anything is written.

    Raises:
        BadInput: its launcher is not Slurm, or no batch script can be made of it.
    """
    spec = job.spec
    if spec.launch.launcher != "slurm":
        raise BadInput(
            f"--prepare makes a batch script for sbatch, and the launcher is {spec.launch.launcher}",
            hint="add --launcher slurm; what other launchers would run is shown by --dry-run",
        )
    sbatch_script(job)
