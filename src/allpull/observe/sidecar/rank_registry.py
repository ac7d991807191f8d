"""Know which processes of a host are ranks: by what they said themselves, else by what started them.

A process that runs under the start-up hook says in ``job/processes/`` that it became a rank, so of such a process
nothing else counts: launchers, loader workers and helpers have the variables of ranks too. Without the hook, the
variables of what starts ranks tell. Standard library only.
"""

from __future__ import annotations

import json
import os
import re
from typing import Any, Dict, Mapping, Optional, Set

from ...rundir import layout
from ...rundir.job_file import JOB_VARIABLE
from ..identity import started_as

MAX_ENTRIES = 100_000  # of the folder that are looked at
MAX_RANKS = 10_000_000  # as readers have it
MAX_NEW = 4096  # files that are read at one look
MAX_BYTES = 1 << 17  # of a file: 50 arguments of 1,000 characters and a bit
LOOKS_AFTER_A_CHANGE = 3  # a folder's time may be coarse: what came within a second of a look shows no other time


class Roster:
    """The ranks of ``host`` that said so in the run directory ``directory``."""

    def __init__(self, directory: str, host: str) -> None:
        self._run = os.path.realpath(directory)
        self._folder = os.path.join(directory, layout.PROCESSES)
        self._host = host
        self._ours = re.compile(re.escape(layout.slug(host)) + r"-[1-9][0-9]{0,9}\.json")
        self._read: Set[str] = set()
        self._changed_ns = 0
        self._looks_left = 0

    def news(self) -> Dict[int, int]:
        """Process id → rank of what was said since the last call; each file is read once, soon after it came.

        The id may have gone to another process since: ``is_of_job`` tells those that are none of this job's.
        """
        ranks: Dict[int, int] = {}
        for name in self._new_names():
            self._read.add(name)
            said = _read_json(os.path.join(self._folder, name))
            pid, rank = said.get("pid"), said.get("rank")
            if type(pid) is int and type(rank) is int and pid > 0 <= rank and said.get("host") == self._host:
                ranks[pid] = rank
        return ranks

    def is_of_job(self, environ: Mapping[str, str]) -> bool:
        """Whether a process with ``environ`` runs under the hook of this very job."""
        job_file = environ.get(JOB_VARIABLE)
        return job_file is not None and os.path.dirname(os.path.dirname(os.path.realpath(job_file))) == self._run

    def _new_names(self) -> Set[str]:
        try:
            changed_ns = os.stat(self._folder).st_mtime_ns
            if changed_ns != self._changed_ns:
                self._changed_ns, self._looks_left = changed_ns, LOOKS_AFTER_A_CHANGE
            if not self._looks_left:
                return set()
            self._looks_left -= 1
            with os.scandir(self._folder) as entries:
                names = {entry.name for entry, _ in zip(entries, range(MAX_ENTRIES))}  # noqa: B905  of unequal length
        except OSError:
            return set()
        new = sorted(name for name in names - self._read if self._ours.fullmatch(name))
        if len(new) > MAX_NEW:
            self._looks_left = LOOKS_AFTER_A_CHANGE
        return set(new[:MAX_NEW])


def rank_by_variables(environ: Mapping[str, str], above: Mapping[str, str]) -> Optional[int]:
    """The rank of a process with ``environ``, started below one with ``above``; None: it says none.

    RANK alone is enough. What tasks of mpirun and srun have is only believed where it came below that process: an
    agent that srun started has it too, and so have all its helpers.

    >>> rank_by_variables({"RANK": "3"}, {}), rank_by_variables({"RANK": "3", "ALLPULL_JOB": "spec.json"}, {})
    (3, None)
    """
    if JOB_VARIABLE in environ:
        return None
    if re.fullmatch(r"[0-9]{1,7}", environ.get("RANK", "")):
        return int(environ["RANK"])
    try:
        started = started_as(environ)
    except ValueError:
        return None  # digits, and no number
    return started[0] if started is not None and started[0] < MAX_RANKS and started != started_as(above) else None


def _read_json(path: str) -> Dict[str, Any]:
    try:
        with open(path, "rb") as file:
            value = json.loads(file.read(MAX_BYTES))
    except (OSError, ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}
