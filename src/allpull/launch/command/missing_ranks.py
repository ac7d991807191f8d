"""Why a user's command recorded no ranks, from watching its processes while it ran.

Python runs no start-up hook with ``-I``, ``-S`` or ``-E``, or without our PYTHONPATH; and processes on other hosts
cannot be seen. Looking costs a little CPU, so it stops once a rank records something.
"""

from __future__ import annotations

import os
import shlex
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import psutil

from allpull.launch.command.command_line import hook_blocking_flag, is_python
from allpull.rundir import layout, redact
from allpull.rundir.read.headers import process_records, rank_files

FIRST_LOOK_S, LONGEST_LOOK_S = 0.2, 30.0  # between looks, longer each time: what is started is started early
ELSEWHERE = frozenset({"srun", "mpirun", "mpiexec", "mpiexec.hydra", "ssh", "pdsh", "jsrun", "aprun", "prun", "flux"})
SHOWN = 120  # characters of a command


class ProcessWatch:
    """Looks at process ``pid`` of a command and its descendants regularly, until run ``directory`` has a rank.

    Without ``pid`` it only knows the command line, and what ranks recorded.
    """

    def __init__(self, arguments: Sequence[str], directory: Path, *, pid: int | None = None) -> None:
        self._directory = directory
        self._hook = os.fspath(directory / layout.HOOK)
        self._closed: dict[str, str] = {}
        self._elsewhere: set[str] = set()
        self._pid = pid
        self._done = pid is None
        self._pause_s = FIRST_LOOK_S
        self._due = time.monotonic() + self._pause_s
        self._judge(arguments, None)

    def look(self) -> None:
        """Look at the processes, if it is time."""
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
        """Why there is no rank, in one sentence; None: there are ranks."""
        if rank_files(self._directory):
            return None
        # importing polars changes the environment, which the command must get unchanged
        from allpull.rundir.read.gaps import why_no_rank  # noqa: PLC0415

        processes = process_records(self._directory)
        if self._closed:  # other processes that imported torch may have started it
            reason, command = next(iter(self._closed.items()))
            torch_processes = f"; {why_no_rank(processes)}" if processes else ""
            return f"nothing was recorded: {reason}: {command}{torch_processes}"
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
        """A sentence about processes whose rank number was already taken; None: there were none."""
        # as in ``why``
        from allpull.rundir.read.gaps import of_processes  # noqa: PLC0415

        return next((gap.text for gap in of_processes(process_records(self._directory))), None)

    def _family(self) -> list[psutil.Process]:
        if self._done:
            return []
        try:
            head = psutil.Process(self._pid)
            return [head, *head.children(recursive=True)]
        except psutil.Error:
            return []

    def _judge(self, arguments: Sequence[str], process: psutil.Process | None) -> None:
        """Note why a process would not be observed; ``process`` None: only its command line is known."""
        if not arguments:
            return
        name = Path(arguments[0]).name
        if name in ELSEWHERE:
            self._elsewhere.add(name)
        if process is not None:
            calls = [arguments]
        else:  # srun python -I …: that process may be out of sight
            calls = [arguments[at:] for at, word in enumerate(arguments) if is_python(word)]
        flag = next(filter(None, map(hook_blocking_flag, calls)), None)
        if flag is not None:
            self._note(f"Python was started with {flag}, which keeps the start-up hook out", arguments)
        elif not is_python(name):
            return
        elif process is not None and self._hook not in process.environ().get("PYTHONPATH", "").split(os.pathsep):
            self._note("Python was started without our PYTHONPATH, which the command replaces or clears", arguments)

    def _note(self, reason: str, arguments: Sequence[str]) -> None:
        masked, _ = redact.arguments(arguments)
        self._closed.setdefault(reason, shlex.join(masked)[:SHOWN])
