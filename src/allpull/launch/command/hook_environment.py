"""The variables that make a command observed, also on other hosts and in containers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from allpull.launch.job import Job
from allpull.observe.hook_install import BINDS, CONTAINERS, MPI_LIST, variables

SIDECAR_VARIABLE = "ALLPULL_SIDECAR"
OPENMPI = frozenset({"mpirun", "mpiexec", "orterun", "oshrun"})


def hook_variables(job: Job, environ: Mapping[str, str]) -> dict[str, str]:
    """Variables for the command of ``job`` besides ``environ``; the first rank of each host starts a sidecar there."""
    hooked = {**variables(str(job.directory), str(job.file), environ), SIDECAR_VARIABLE: "hook"}
    hooked |= {prefix + SIDECAR_VARIABLE: "hook" for prefix in CONTAINERS}
    if lists_variables(job.program or ()):
        hooked[MPI_LIST] += f";{SIDECAR_VARIABLE}"
    else:
        del hooked[MPI_LIST]
    if any(sign in str(job.directory) for sign in ":,"):
        for name in BINDS:
            del hooked[name]  # a container's runtime splits paths there
    return hooked


def lists_variables(arguments: Sequence[str]) -> bool:
    """Whether OpenMPI may get variables by its list: a job that also uses -x would abort.

    >>> lists_variables(["mpirun", "-np", "4", "python", "train.py"]), lists_variables(["mpirun", "-x", "A", "a.out"])
    (True, False)
    >>> lists_variables(["bash", "job.sh"])
    False
    """
    return bool(arguments) and Path(arguments[0]).name in OPENMPI and not {"-x", "--x"} & set(arguments)
