"""Say why a command of the user's left no rank, from what could be seen of its processes while it ran.

Python takes no start-up hook with ``-I``, ``-S`` or ``-E``, or without our PYTHONPATH; and processes that another
host runs cannot be seen at all. Looking costs a little, so it ends with the first rank that records something.
"""

from __future__ import annotations

import os
import shlex
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import psutil

from allpull.launch.command.command_line import closed, is_python
from allpull.rundir import layout, redact
from allpull.rundir.read.headers import process_records, rank_files

FIRST_LOOK_S, LONGEST_LOOK_S = 0.2, 30.0  # between looks, longer each time: what is started is started early
ELSEWHERE = frozenset({"srun", "mpirun", "mpiexec", "mpiexec.hydra", "ssh", "pdsh", "jsrun", "aprun", "prun", "flux"})
SHOWN = 120  # characters of a command


class ProcessWatch:
    """Looks at the process ``pid`` of a command and its descendants now and then, until run ``directory`` has a rank.

    Without ``pid`` it only knows the words of the command, and what ranks have left.
    """

    def __init__(self, words: Sequence[str], directory: Path, *, pid: int | None = None) -> None:
        self._directory = directory
        self._hook = os.fspath(directory / layout.HOOK)
        self._closed: dict[str, str] = {}
        self._elsewhere: set[str] = set()
        self._pid = pid
        self._done = pid is None
        self._pause_s = FIRST_LOOK_S
        self._due = time.monotonic() + self._pause_s
        self._judge(words, None)

    def look(self) -> None:
        """Look, if it is time."""
        if self._done or time.monotonic() < self._due:
            return
        self._done = rank_files(self._directory) > 0
        for process in self._family():
            try:
                self._judge(process.cmdline(), process)
            except (psutil.Error, OSError):
                continue  # it has ended, or is another user's
        self._pause_s = min(LONGEST_LOOK_S, 2 * self._pause_s)
        self._due = time.monotonic() + self._pause_s

    def why(self) -> str | None:
        """Why there is no rank, in one sentence; None: there is one."""
        if rank_files(self._directory):
            return None
        # polars would be imported with it, which changes the environment that a command is to have untouched
        from allpull.rundir.read.gaps import why_no_rank  # noqa: PLC0415

        processes = process_records(self._directory)
        if self._closed:  # what else imported torch may be what started it
            reason, command = next(iter(self._closed.items()))
            others = f"; {why_no_rank(processes)}" if processes else ""
            return f"nothing was recorded: {reason}: {command}{others}"
        if self._elsewhere and not processes:
            names = ", ".join(sorted(self._elsewhere))
            return (
                f"nothing was recorded: {names} may have started processes on hosts that do not see {self._directory},"
                " or without our variables (OpenMPI's mpirun takes -x PYTHONPATH -x ALLPULL_JOB)"
            )
        if not processes and self._pid is not None:
            return "nothing was recorded: no Python process that imports torch was seen"
        not_linux = "" if sys.platform.startswith("linux") else f" (allpull has not been tried on {sys.platform})"
        return f"nothing was recorded: {why_no_rank(processes)}{not_linux}"

    def twice(self) -> str | None:
        """That a rank's number was claimed again, in one sentence; None: it was not."""
        refused = [process for process in process_records(self._directory) if process.refused_rank is not None]
        if not refused:
            return None
        many = len(refused) > 1
        return (
            f"{len(refused):,} process{'es' * many} had the number of a rank that was recorded already, and "
            f"{'were' if many else 'was'} left out: one run directory holds one training"
        )

    def _family(self) -> list[psutil.Process]:
        if self._done:
            return []
        try:
            head = psutil.Process(self._pid)
            return [head, *head.children(recursive=True)]
        except psutil.Error:
            return []

    def _judge(self, words: Sequence[str], process: psutil.Process | None) -> None:
        """Note what is odd about a process; None stands for one that was not looked at, only started."""
        if not words:
            return
        name = Path(words[0]).name
        if name in ELSEWHERE:
            self._elsewhere.add(name)
        calls = [words] if process is not None else (words[at:] for at, word in enumerate(words) if is_python(word))
        flag = next(filter(None, map(closed, calls)), None)  # srun python -I …: that process may be out of sight
        if flag is not None:
            self._note(f"Python was started with {flag}, which keeps the start-up hook out", words)
        elif not is_python(name):
            return
        elif process is not None and self._hook not in process.environ().get("PYTHONPATH", "").split(os.pathsep):
            self._note("Python was started without our PYTHONPATH, which the command replaces or clears", words)

    def _note(self, reason: str, words: Sequence[str]) -> None:
        clean, _ = redact.arguments(words)
        self._closed.setdefault(reason, shlex.join(clean)[:SHOWN])
