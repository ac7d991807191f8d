"""Find the launcher that the environment makes obvious: inside a Slurm job it is Slurm, else this machine."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from allpull.errors import BadInput

AUTO = "auto"
FIRST_SPECIAL_STEP = 4_294_967_290  # slurm.h: interactive, batch and extern steps have the highest numbers
COPIES = (("OMPI_COMM_WORLD_SIZE", "mpirun"), ("PMI_SIZE", "mpiexec"), ("SLURM_STEP_NUM_TASKS", "srun"))
"""Variable that counts the processes of a parallel start → the command that made them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DetectedLauncher:
    """A launcher, why it was chosen (empty: the default), and how many hosts it has."""

    launcher: str
    reason: str
    hosts: int = 1


def find(environ: Mapping[str, str]) -> DetectedLauncher:
    """The launcher that ``environ`` makes obvious.

    >>> find({"SLURM_JOB_ID": "7", "SLURM_JOB_NUM_NODES": "2"})
    DetectedLauncher(launcher='slurm', reason='inside Slurm job 7 on 2 hosts', hosts=2)

    Raises:
        BadInput: allpull itself was started several times in parallel.
    """
    check_alone(environ)
    if in_allocation(environ):
        hosts = _count(environ, "SLURM_JOB_NUM_NODES")
        return DetectedLauncher(
            launcher="slurm",
            reason=f"inside Slurm job {environ['SLURM_JOB_ID']} on {hosts} host{'s' * (hosts != 1)}",
            hosts=hosts,
        )
    if "SLURM_JOB_ID" in environ:
        return DetectedLauncher(launcher="local", reason="inside a step of a Slurm job, which has this host only")
    if "PBS_NODEFILE" in environ:
        return DetectedLauncher(
            launcher="local",
            reason="inside a PBS job: this host only; launcher ssh:$PBS_NODEFILE takes all of its hosts",
        )
    return DetectedLauncher(launcher="local", reason="")


def in_allocation(environ: Mapping[str, str]) -> bool:
    """Whether we are in the script or shell of a Slurm job, where we may start steps; not in a task of a step."""
    return bool(environ.get("SLURM_JOB_ID")) and not _in_step(environ)


def _in_step(environ: Mapping[str, str]) -> bool:
    step = environ.get("SLURM_STEP_ID", "")
    return step.isdecimal() and int(step) < FIRST_SPECIAL_STEP


def check_alone(environ: Mapping[str, str]) -> None:
    """Check that allpull was started once, not once per rank.

    Raises:
        BadInput: it was started in parallel.
    """
    for variable, command in COPIES:
        copies = _count(environ, variable)
        stale = command == "srun" and not _in_step(environ)  # a job submitted from inside a step inherits its variables
        if copies > 1 and not stale:
            raise BadInput(
                f"allpull itself was started {copies} times by {command}",
                hint=f"start it once, with {copies} ranks (-n {copies}): it starts them itself",
            )


def _count(environ: Mapping[str, str], variable: str) -> int:
    text = environ.get(variable, "")
    return int(text) if text.isdecimal() and len(text) < 10 else 1
