"""Become one rank of the user's command: bind CPUs, change folder, add the start-up hook, then execute the command.

``python -m allpull.observe.rank.command JOB.json`` is started for each rank by an agent. The command replaces this
process, with the hook on its path. Standard library only.
"""

from __future__ import annotations

import os
import signal
import sys
from typing import Dict, List, Mapping, NoReturn, Sequence

from allpull.observe.affinity import bind
from allpull.observe.hook_install import MPI_LIST, variables
from allpull.observe.identity import numbers
from allpull.observe.process import end_with_parent
from allpull.rundir.job_file import SECRETS_VARIABLE, JobFile

PYTHON = "{python}"  # represents the Python of the agent, whose path differs between hosts
CANNOT_START = 126  # as a shell: the program exists and cannot be executed
NOT_FOUND = 127  # as a shell: there is no such program


def become(job_file: str) -> NoReturn:
    """Become the command of the job in ``job_file``, as the rank that the environment names."""
    job = JobFile.read(job_file)
    _, _, local_rank = numbers(os.environ)
    bind(job.bind, local_rank, int(os.environ.get("LOCAL_WORLD_SIZE", "1")))
    os.environ.pop(SECRETS_VARIABLE, None)  # a program may print its environment, and its secrets are its arguments
    environ = environment(os.environ, job.directory, job_file)
    command = command_of(job.command or ())
    try:
        os.chdir(job.cwd)
        os.execvpe(command[0], command, environ)  # noqa: S606  no shell is wanted
    except OSError as error:
        sys.stderr.write(f"allpull: cannot start {command[0]} in {job.cwd}: {error.strerror}\n")
        sys.stderr.flush()
        os._exit(NOT_FOUND if isinstance(error, FileNotFoundError) else CANNOT_START)


def command_of(command: Sequence[str]) -> List[str]:
    """The command of a job as this host runs it.

    >>> command_of(["python3.11", "train.py"])
    ['python3.11', 'train.py']
    """
    program, *arguments = command
    return [sys.executable if program == PYTHON else program, *arguments]


def environment(environ: Mapping[str, str], directory: str, job_file: str) -> Dict[str, str]:
    """``environ`` with the start-up hook in it.

    Paths on PYTHONPATH become absolute: they are relative to the folder of this process, not to that of the command.
    """
    paths = [os.path.abspath(path) for path in environ.get("PYTHONPATH", "").split(os.pathsep) if path]
    moved = {**environ, "PYTHONPATH": os.pathsep.join(paths)}
    ours = variables(directory, job_file, moved)
    del ours[MPI_LIST]  # ranks start no further ranks, and mpirun refuses -x in combination with it
    return {**moved, **ours}


if __name__ == "__main__":
    end_with_parent(signal.SIGTERM)
    become(sys.argv[1])
