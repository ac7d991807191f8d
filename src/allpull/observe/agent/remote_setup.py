"""What a host does when a job arrives over SSH: take the job file, find a place for the records, say what is here.

``python -m allpull.observe.agent.remote_setup`` reads the job file on standard input and answers with a line of JSON.
Where the job's own run directory is visible (a shared file system, known by the job's nonce) the records go there;
else into a folder of this host's own, which is collected when the job has ended.
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

from allpull.observe.hook_install import stage
from allpull.rundir import layout
from allpull.rundir.job_file import JobFile
from allpull.rundir.write import private_folder

PREFIX = "allpull-"  # of the folders that are made here, and the only ones that are removed again
MAX_JOB_BYTES = 1 << 20


def arrive(job: JobFile) -> Dict[str, Any]:
    """Make this host ready for ``job``; says where, and with which versions.

    Raises:
        OSError: no place for the records can be made.
    """
    shared = is_shared(job)
    directory = job.directory if shared else tempfile.mkdtemp(prefix=PREFIX)
    job_file = os.path.join(directory, layout.SPEC)
    if not shared:
        for folder in layout.FOLDERS:
            private_folder(os.path.join(directory, folder))
        replace(job, directory=directory).write(job_file)
        if job.command:
            stage(directory)
    return {
        "directory": directory,
        "shared": shared,
        "job_file": job_file,
        "port": free_port(),
        "versions": {"python": platform.python_version(), "torch": installed("torch"), "allpull": installed("allpull")},
    }


def is_shared(job: JobFile) -> bool:
    """Whether the run directory of ``job`` is this host's to see: the job file there has the same nonce."""
    try:
        return JobFile.read(os.path.join(job.directory, layout.SPEC)).nonce == job.nonce
    except (OSError, ValueError):
        return False


def leave(directory: str) -> None:
    """Remove a folder that ``arrive`` made; any other is left alone."""
    if os.path.basename(directory).startswith(PREFIX) and os.path.dirname(directory) == tempfile.gettempdir():
        shutil.rmtree(directory, ignore_errors=True)


def free_port() -> int:
    """A port that nobody listens on at this moment."""
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
        leave(sys.argv[2])
    else:
        print(json.dumps(arrive(JobFile.from_plain(json.loads(sys.stdin.read(MAX_JOB_BYTES))))), flush=True)  # noqa: T201  the answer
