"""The launcher interface, and the table of launchers."""

from __future__ import annotations

import inspect
from typing import Protocol, cast

from allpull.errors import BadInput
from allpull.launch.job import Job
from allpull.launch.running import Running
from allpull.registry import Table


class Launcher(Protocol):
    """A place where ranks run. A launcher that takes an argument (``ssh:HOSTS``) is a class of one parameter."""

    def plan(self, job: Job) -> str:
        """What ``submit`` would start, as text to read: a shell script wherever it can be one.

        It starts nothing and writes nothing, and works on a job that was not prepared (``job.prospect``).

        Raises:
            AllpullError: as ``submit``, as far as it can be known beforehand.
        """
        ...

    def submit(self, job: Job) -> Running:
        """Start ``job``; its records go into its run directory.

        Raises:
            AllpullError: it cannot be started here, and nothing was.
        """
        ...


LAUNCHERS = Table(
    kind="launcher",
    group="allpull.launchers",
    builtin={
        "kubernetes": "allpull.launch.kubernetes.launcher:Kubernetes",
        "local": "allpull.launch.local:Local",
        "mpi": "allpull.launch.mpi:Mpi",
        "slurm": "allpull.launch.slurm.launcher:Slurm",
        "rehearse": "allpull.rehearse.launcher:Rehearse",
        "ssh": "allpull.launch.ssh.launcher:Ssh",
    },
)
"""Name → class of ``Launcher``."""


def choose(text: str) -> Launcher:
    """The launcher that ``text`` names: a name, or a name and its argument, as in ``ssh:node[01-04]``.

    Raises:
        UnknownName: no such launcher.
        BadInput: it takes no argument, or does not understand this one.
    """
    name, colon, argument = text.partition(":")
    kind = LAUNCHERS.load(name)
    if inspect.signature(kind).parameters:
        return cast("Launcher", kind(argument))
    if colon:
        raise BadInput(f"launcher '{name}' takes no argument", hint=f"write {name}")
    return cast("Launcher", kind())
