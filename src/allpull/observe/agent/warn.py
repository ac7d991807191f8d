"""Warn the agent of a job on this host, which forwards the warning to its ranks: they save and stop.

``python -m allpull.observe.agent.warn JOB.json`` sends SIGUSR1 to the processes of this user that run
``allpull.observe.agent`` with that file. It serves launchers that have no process on this host: ssh forwards no
signals. Linux only, as it reads ``/proc``. Standard library only.
"""

from __future__ import annotations

import os
import signal
import sys
from contextlib import suppress
from typing import List

AGENT = "allpull.observe.agent"


def agents(job_file: str) -> List[int]:
    """Process ids of this user's agents of the job in ``job_file``."""
    pids = []
    for name in os.listdir("/proc") if os.path.isdir("/proc") else []:
        if not name.isdigit():
            continue
        try:
            owner = os.stat(f"/proc/{name}").st_uid
            with open(f"/proc/{name}/cmdline", "rb") as file:
                arguments = set(file.read().split(b"\0"))
        except OSError:
            continue  # it has ended
        if owner == os.getuid() and {AGENT.encode(), os.fsencode(job_file)} <= arguments:
            pids.append(int(name))
    return pids


if __name__ == "__main__":
    for pid in agents(sys.argv[1]):
        with suppress(ProcessLookupError):  # it has just ended
            os.kill(pid, signal.SIGUSR1)
