"""The variables that have a command observed, and how they get to where its ranks are: other hosts, containers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from allpull.launch.job import Job
from allpull.observe.hook_install import BINDS, CONTAINERS, MPI_LIST, variables

SIDECAR_VARIABLE = "ALLPULL_SIDECAR"
OPENMPI = frozenset({"mpirun", "mpiexec", "orterun", "oshrun"})


def hook_variables(job: Job, environ: Mapping[str, str]) -> dict[str, str]:
    """What the command of ``job`` is given besides ``environ``; each host's first rank is to start a sidecar there."""
    found = {**variables(str(job.directory), str(job.file), environ), SIDECAR_VARIABLE: "hook"}
    found |= {prefix + SIDECAR_VARIABLE: "hook" for prefix in CONTAINERS}
    if lists_variables(job.program or ()):
        found[MPI_LIST] += f";{SIDECAR_VARIABLE}"
    else:
        del found[MPI_LIST]
    if any(sign in str(job.directory) for sign in ":,"):
        for name in BINDS:
            del found[name]  # a container's runtime would take it apart there
    return found


def lists_variables(words: Sequence[str]) -> bool:
    """Whether OpenMPI may be told of variables in its list: a job that names others with -x would abort.

    >>> lists_variables(["mpirun", "-np", "4", "python", "train.py"]), lists_variables(["mpirun", "-x", "A", "a.out"])
    (True, False)
    >>> lists_variables(["bash", "job.sh"])
    False
    """
    return bool(words) and Path(words[0]).name in OPENMPI and not {"-x", "--x"} & set(words)
