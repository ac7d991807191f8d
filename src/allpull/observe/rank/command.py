"""Become one rank of the user's own command: its CPUs, its folder and the start-up hook, then the command itself.

``python -m allpull.observe.rank.command JOB.json`` is what an agent starts for each rank. Nothing of ours stays in the
process: the command takes its place, with the hook on its path. Standard library only.
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
from allpull.rundir.job_file import JobFile

PYTHON = "{python}"  # first word of a command that runs in the agent's own Python, wherever that is on its host
CANNOT_START = 126  # as a shell says it of a program that is there and cannot be run
NOT_FOUND = 127  # and of one that is not


def become(job_file: str) -> NoReturn:
    """Become the command of the job in ``job_file``, as the rank that the variables of this process say."""
    job = JobFile.read(job_file)
    _, _, local_rank = numbers(os.environ)
    bind(job.bind, local_rank, int(os.environ.get("LOCAL_WORLD_SIZE", "1")))
    environ = environment(os.environ, job.directory, job_file)
    command = command_of(job.command or ())
    try:
        os.chdir(job.cwd)
        os.execvpe(command[0], command, environ)  # noqa: S606  no shell is wanted
    except OSError as error:
        sys.stderr.write(f"allpull: cannot start {command[0]} in {job.cwd}: {error.strerror}\n")
        sys.stderr.flush()
        os._exit(NOT_FOUND if isinstance(error, FileNotFoundError) else CANNOT_START)


def command_of(words: Sequence[str]) -> List[str]:
    """The command of a job as this host runs it.

    >>> command_of(["python3.11", "train.py"])
    ['python3.11', 'train.py']
    """
    program, *arguments = words
    return [sys.executable if program == PYTHON else program, *arguments]


def environment(environ: Mapping[str, str], directory: str, job_file: str) -> Dict[str, str]:
    """``environ`` with the start-up hook in it.

    What stands on PYTHONPATH was meant from the folder that this process began in, and not every host begins in the
    command's own.
    """
    paths = [os.path.abspath(path) for path in environ.get("PYTHONPATH", "").split(os.pathsep) if path]
    moved = {**environ, "PYTHONPATH": os.pathsep.join(paths)}
    ours = variables(directory, job_file, moved)
    del ours[MPI_LIST]  # a rank that starts MPI itself starts no ranks of ours, and -x beside a list is an error
    return {**moved, **ours}


if __name__ == "__main__":
    end_with_parent(signal.SIGTERM)
    become(sys.argv[1])
