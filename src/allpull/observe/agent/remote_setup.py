"""Set up a host for a job that is started over SSH: take the job file, find a folder for the records, report versions.

``python -m allpull.observe.agent.remote_setup`` reads the job file on standard input and answers with a line of JSON.
Where the run directory of the job is visible (a shared file system, recognised by the job's id) the records go there;
elsewhere into a folder of this host, which is collected when the job has ended. The secrets of the job are never in
either: they go into a private file, which the agent removes as it starts.
"""

from __future__ import annotations

import json
import os
import platform
import shutil
import socket
import sys
import tempfile
from dataclasses import replace
from importlib.metadata import PackageNotFoundError, version
from typing import Any, Dict, Optional

from allpull.observe import scratch
from allpull.observe.hook_install import install_hook
from allpull.rundir import layout
from allpull.rundir.job_file import JobFile
from allpull.rundir.write import private_folder, whole_file

PREFIX = "allpull-"  # of the folders made here, the only ones that are removed again
MAX_JOB_BYTES = 1 << 20


def set_up(job: JobFile, secrets: str) -> Dict[str, Any]:
    """Make this host ready for ``job``; returns the folder of its records, the versions here, and a free port.

    ``secrets`` (``JobFile.secrets``) go into a file that the agent removes; its path is returned too.

    Raises:
        OSError: the folder for the records cannot be made.
    """
    shared = is_shared(job)
    directory = job.directory if shared else tempfile.mkdtemp(prefix=PREFIX)
    job_file = os.path.join(directory, layout.SPEC)
    in_container = bool(job.spec.get("container", {}).get("image"))  # which sees this folder and none of ours
    if not shared:
        for folder in layout.FOLDERS:
            private_folder(os.path.join(directory, folder))
        cwd = job.cwd if job.carried is None else os.path.join(directory, layout.CARRIED, job.carried)
        replace(job, directory=directory, cwd=cwd).write(job_file)
        if in_container:
            whole_file(os.path.join(directory, layout.SECRETS), secrets)
        if job.command:
            install_hook(directory)
    return {
        "directory": directory,
        "shared": shared,
        "job_file": job_file,
        "port": free_port(),
        "secrets": "" if in_container else private_file(secrets),
        "versions": {"python": platform.python_version(), "torch": installed("torch"), "allpull": installed("allpull")},
    }


def private_file(content: str) -> str:
    """The path of a new file with ``content``, which only this user can read.

    Raises:
        OSError: it cannot be written.
    """
    descriptor, path = tempfile.mkstemp(prefix=PREFIX)
    with os.fdopen(descriptor, "w", encoding="utf-8") as file:
        file.write(content)
    return path


def is_shared(job: JobFile) -> bool:
    """Whether this host sees the run directory of ``job``: the job file there has the same id."""
    try:
        return JobFile.read(os.path.join(job.directory, layout.SPEC)).id == job.id
    except (OSError, ValueError):
        return False


def remove(directory: str) -> None:
    """Remove a folder that ``set_up`` made; any other is left alone."""
    if os.path.basename(directory).startswith(PREFIX) and os.path.dirname(directory) == tempfile.gettempdir():
        shutil.rmtree(directory, ignore_errors=True)


def free_port() -> int:
    """A port that is free at this moment."""
    with socket.socket() as probe:
        probe.bind(("", 0))
        port: int = probe.getsockname()[1]
    return port


def installed(package: str) -> Optional[str]:
    """The version of ``package`` here, or None."""
    try:
        return version(package)
    except PackageNotFoundError:
        return None


if __name__ == "__main__":
    if sys.argv[1:2] == ["--leave"]:
        remove(sys.argv[2])
        scratch.remove(scratch.path_of(*sys.argv[2:4]))  # of an agent that was killed
    else:
        received = json.loads(sys.stdin.read(MAX_JOB_BYTES))
        print(json.dumps(set_up(JobFile.from_plain(received), received["secrets"])), flush=True)  # noqa: T201  answer
