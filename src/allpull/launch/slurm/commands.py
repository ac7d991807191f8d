"""Slurm's own commands about one job: scontrol and sacct say how it is, scancel signals and cancels it."""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
import time
from collections.abc import Callable, Sequence

from allpull.errors import BadInput
from allpull.launch.job_array import indices
from allpull.launch.slurm.outcome import JobFacts, from_sacct, from_scontrol

ANSWER_S = 30.0  # a controller under load takes seconds
NEAR_END_S = 0.5  # once a host has written how it ended
CANCEL_EXTRA_S = 60.0  # Slurm's own KillWait (30 s unless changed), and its book-keeping

_TASK = re.compile(r"JobId=[0-9]+ ArrayJobId=[0-9]+ ArrayTaskId=(\S+) ")


class SlurmHandle:
    """A job, or one run of an array, as Slurm's commands name it: its ``number`` and its ``cluster``."""

    def __init__(self, name: str, index: int | None = None) -> None:
        number, _, cluster = name.partition(";")
        self.number = number if index is None else f"{number}_{index}"
        self.name = f"{self.number};{cluster}" if cluster else self.number
        self.cluster = [f"--clusters={cluster}"] if cluster else []

    def facts(self) -> JobFacts | None:
        """What Slurm knows about the job; None: no answer. A job that Slurm has forgotten is over."""
        text = self._show()
        if text is None or text:
            return from_scontrol(text) if text else None
        columns = ["--noheader", "--parsable2", "--allocations", "--format=State,ExitCode"]
        sacct = run_slurm(["sacct", *self.cluster, *columns, f"--jobs={self.number}"])
        facts = from_sacct(sacct.stdout) if sacct is not None and sacct.returncode == 0 else None
        return facts or JobFacts(state="COMPLETED", reason="Slurm has forgotten the job")

    def facts_by_index(self) -> dict[int, JobFacts] | None:
        """What Slurm knows about the runs of an array, without those that it has forgotten; None: no answer."""
        text = self._show()
        return None if text is None else by_index(text)

    def _show(self) -> str | None:
        """The output of ``scontrol show job``; empty: Slurm knows no such job; None: no answer."""
        answer = run_slurm(["scontrol", *self.cluster, "show", "job", self.number])
        if answer is None or answer.returncode == 0:
            return (answer and answer.stdout) or None
        return (
            "" if "Invalid job id" in answer.stderr + answer.stdout else None
        )  # no answer: the controller restarts, say

    def signal(self, name: str) -> None:
        """Send a signal to the steps of the job, not to its script."""
        run_slurm(["scancel", *self.cluster, f"--signal={name}", self.number])

    def cancel(self, grace_s: float, is_over: Callable[[], bool]) -> None:
        """Cancel the job; after ``grace_s`` seconds kill it; returns when ``is_over``."""
        run_slurm(["scancel", *self.cluster, self.number])
        started = time.monotonic()
        killed = False
        while time.monotonic() - started < grace_s + CANCEL_EXTRA_S and not is_over():
            if not killed and time.monotonic() - started >= grace_s:
                run_slurm(["scancel", *self.cluster, "--signal=KILL", "--full", self.number])
                killed = True
            time.sleep(NEAR_END_S)


def by_index(text: str) -> dict[int, JobFacts]:
    """The facts in the output of ``scontrol show job`` for an array, by index; waiting runs share one paragraph."""
    facts_of: dict[int, JobFacts] = {}
    for paragraph in re.split(r"^(?=JobId=)", text, flags=re.MULTILINE):
        match, facts = _TASK.match(paragraph), from_scontrol(paragraph)
        if match and facts:
            with contextlib.suppress(BadInput):  # a truncated list; those runs are queried one by one
                facts_of.update(dict.fromkeys(indices(match.group(1)), facts))
    return facts_of


def run_slurm(command: Sequence[str]) -> subprocess.CompletedProcess[str] | None:
    """Run one of Slurm's commands; None: it is missing or does not answer."""
    environment = {**os.environ, "SLURM_BITSTR_LEN": "0"}  # else Slurm truncates long lists of indices
    try:
        return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=ANSWER_S, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
