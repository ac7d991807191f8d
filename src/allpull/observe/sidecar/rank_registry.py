"""Know which processes of a host are ranks: by their own registration, else by the variables of their launcher.

A process under the start-up hook registers in ``job/processes/`` when it becomes a rank, and for such a process nothing
else counts: launchers, loader workers and helpers have the variables of ranks too. Without the hook the variables of
the launcher decide. Standard library only.
"""

from __future__ import annotations

import json
import os
import re
from typing import Any, Dict, Mapping, Optional, Set

from ...rundir import layout
from ...rundir.job_file import JOB_VARIABLE
from ..identity import started_as

MAX_ENTRIES = 100_000  # of the folder that are listed
MAX_RANKS = 10_000_000  # the limit of the readers too
MAX_NEW = 4096  # files that are read per sample
MAX_BYTES = 1 << 17  # of a file: 50 arguments of 1,000 characters and a bit
READS_AFTER_A_CHANGE = 3  # folder times may be coarse: a file added within a second may not change the time


class RankRegistry:
    """The ranks of ``host`` that registered in run directory ``directory``."""

    def __init__(self, directory: str, host: str) -> None:
        self._run = os.path.realpath(directory)
        self._folder = os.path.join(directory, layout.PROCESSES)
        self._host = host
        self._ours = re.compile(re.escape(layout.slug(host)) + r"-[1-9][0-9]{0,9}\.json")
        self._read: Set[str] = set()
        self._changed_ns = 0
        self._reads_left = 0

    def news(self) -> Dict[int, int]:
        """Process id → rank of the registrations since the last call; each file is read once.

        The id may belong to another process by now: ``is_of_job`` checks that it is one of this job.
        """
        ranks: Dict[int, int] = {}
        for name in self._new_names():
            self._read.add(name)
            entry = _read_json(os.path.join(self._folder, name))
            pid, rank = entry.get("pid"), entry.get("rank")
            if type(pid) is int and type(rank) is int and pid > 0 <= rank and entry.get("host") == self._host:
                ranks[pid] = rank
        return ranks

    def is_of_job(self, environ: Mapping[str, str]) -> bool:
        """Whether a process with ``environ`` runs under the hook of this job."""
        job_file = environ.get(JOB_VARIABLE)
        return job_file is not None and os.path.dirname(os.path.dirname(os.path.realpath(job_file))) == self._run

    def _new_names(self) -> Set[str]:
        try:
            changed_ns = os.stat(self._folder).st_mtime_ns
            if changed_ns != self._changed_ns:
                self._changed_ns, self._reads_left = changed_ns, READS_AFTER_A_CHANGE
            if not self._reads_left:
                return set()
            self._reads_left -= 1
            with os.scandir(self._folder) as entries:
                names = {entry.name for entry, _ in zip(entries, range(MAX_ENTRIES))}  # noqa: B905  of unequal length
        except OSError:
            return set()
        new = sorted(name for name in names - self._read if self._ours.fullmatch(name))
        if len(new) > MAX_NEW:
            self._reads_left = READS_AFTER_A_CHANGE
        return set(new[:MAX_NEW])


def rank_by_variables(environ: Mapping[str, str], above: Mapping[str, str]) -> Optional[int]:
    """The rank of a process with ``environ``, a descendant of one with ``above``; None: it is no rank.

    RANK alone is enough. Variables of mpirun and srun count only if they differ from those of the ancestor: an agent
    that srun started has them too, and so have all its helpers.

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
        return None  # digits that are not a number
    return started[0] if started is not None and started[0] < MAX_RANKS and started != started_as(above) else None


def _read_json(path: str) -> Dict[str, Any]:
    try:
        with open(path, "rb") as file:
            value = json.loads(file.read(MAX_BYTES))
    except (OSError, ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}
