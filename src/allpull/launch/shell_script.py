"""What a job would run, as a few lines of shell that people can read and keep."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence

from allpull.launch import container
from allpull.launch.job import Job
from allpull.version import __version__


def shell_script(job: Job, variables: Mapping[str, str], command: Sequence[str]) -> str:
    """A script that runs ``command`` with ``variables`` added to the environment."""
    exports = [f"export {name}={shlex.quote(value)}" for name, value in sorted(variables.items())]
    return "\n".join(["#!/bin/sh", made_for(job), *exports, shlex.join(["exec", *command]), ""])


def made_for(job: Job) -> str:
    """The comment that names our version and the command that the user typed."""
    command = shlex.join(job.record.command)
    return f"# Made by allpull {__version__} for: " + "".join(c if c.isprintable() else "?" for c in command)


def python_of(job: Job) -> list[str]:
    """The words that start the Python of the job's processes, inside its container if it has one.

    Raises:
        BadInput: the container cannot be given the path of the run directory.
    """
    box = job.spec.container
    return container.wrap(box, [container.python(box)], shown=[job.directory])
