"""The launcher that the environment makes obvious, and how one is asked for by name."""

from __future__ import annotations

import pytest

from allpull.errors import BadInput, UnknownName
from allpull.launch.detect import check_alone, find, in_allocation
from allpull.launch.launcher import choose
from allpull.launch.local import Local
from allpull.launch.mpi import Mpi

BATCH = {"SLURM_JOB_ID": "12", "SLURM_JOB_NUM_NODES": "2", "SLURM_PROCID": "0", "SLURM_NTASKS": "2"}
SHELL = {**BATCH, "SLURM_STEP_ID": "4294967290", "SLURM_STEP_NUM_TASKS": "1"}  # salloc with use_interactive_step
TASK = {**BATCH, "SLURM_STEP_ID": "0", "SLURM_STEP_NUM_TASKS": "1"}


@pytest.mark.parametrize(
    ("environ", "launcher", "hosts", "reason"),
    [
        ({}, "local", 1, ""),
        ({"SLURM_CONF": "/etc/slurm.conf"}, "local", 1, ""),
        (BATCH, "slurm", 2, "inside Slurm job 12 on 2 hosts"),
        (SHELL, "slurm", 2, "inside Slurm job 12 on 2 hosts"),
        ({"SLURM_JOB_ID": "12"}, "slurm", 1, "inside Slurm job 12 on 1 host"),
        (TASK, "local", 1, "inside a step of a Slurm job"),
        ({"PBS_NODEFILE": "/var/x"}, "local", 1, "inside a PBS job"),
        ({"OMPI_COMM_WORLD_SIZE": "1"}, "local", 1, ""),
        ({**BATCH, "SLURM_JOB_NUM_NODES": "many"}, "slurm", 1, "inside Slurm job 12"),
    ],
)
def test_what_is_obvious(environ: dict[str, str], launcher: str, hosts: int, reason: str) -> None:
    found = find(environ)
    assert (found.launcher, found.hosts) == (launcher, hosts)
    assert found.reason.startswith(reason)
    assert bool(found.reason) == bool(reason)


@pytest.mark.parametrize(
    ("environ", "command"),
    [
        ({"OMPI_COMM_WORLD_SIZE": "4"}, "mpirun"),
        ({"PMI_SIZE": "4"}, "mpiexec"),
        ({**TASK, "SLURM_STEP_NUM_TASKS": "4"}, "srun"),
    ],
)
def test_allpull_started_in_parallel_is_one_clear_error(environ: dict[str, str], command: str) -> None:
    with pytest.raises(BadInput, match=f"started 4 times by {command}") as caught:
        find(environ)
    assert "-n 4" in caught.value.hint


def test_variables_that_a_job_inherited_from_a_step_mislead_nobody() -> None:
    check_alone({**BATCH, "SLURM_STEP_NUM_TASKS": "4"})
    assert in_allocation({**BATCH, "SLURM_STEP_NUM_TASKS": "4"})


def test_a_name_may_carry_an_argument() -> None:
    assert isinstance(choose("local"), Local)
    assert isinstance(choose("mpi"), Mpi)
    assert isinstance(choose("mpi:some/hosts:file"), Mpi)


def test_an_argument_that_nobody_takes_is_refused() -> None:
    with pytest.raises(BadInput, match="launcher 'local' takes no argument"):
        choose("local:4")


@pytest.mark.parametrize("text", ["slrum", "slrum:x", "", ":", "LOCAL"])
def test_an_unknown_launcher_is_said_with_those_there_are(text: str) -> None:
    with pytest.raises(UnknownName, match="local, mpi"):
        choose(text)
