"""What a launcher is, and the table of those there are."""

from __future__ import annotations

from typing import Protocol

from allpull.launch.job import Job
from allpull.launch.outcome import Ended
from allpull.registry import Table


class Running(Protocol):
    """A job that was submitted."""

    def poll(self) -> list[Ended] | None:
        """How each host ended, or None while the job runs."""
        ...

    def cancel(self, grace_s: float) -> None:
        """End every process of the job, politely and after ``grace_s`` not; returns when none is left."""
        ...


class Launcher(Protocol):
    """A place where ranks run."""

    def submit(self, job: Job) -> Running:
        """Start ``job``; its records go into its run directory.

        Raises:
            AllpullError: it cannot be started here, and nothing was.
        """
        ...


LAUNCHERS = Table(
    kind="launcher",
    group="allpull.launchers",
    builtin={"local": "allpull.launch.local:Local"},
)
"""Name → class of ``Launcher``."""
