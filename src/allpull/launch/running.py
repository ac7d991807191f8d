"""What a launcher returns: a running job, and what it can be requested to do."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence

from allpull.launch.echo import Log
from allpull.launch.host_endings import HostEnding


class Running(ABC):
    """A job that was submitted.

    Every launcher knows when its job has ended, and can end it. The rest has a default, which says that there is
    nothing of the kind: a launcher overrides what it has, so that no caller needs to know the kind of job.
    """

    output: Sequence[Log] = ()
    """Logs that keep what the user's program prints, where it cannot go to the user directly."""
    queue_numbers: Sequence[str] = ()
    """Numbers of its runs in a queue that is not ours, in the order of the runs."""

    @abstractmethod
    def poll(self) -> list[HostEnding] | None:
        """How each host ended, or None while the job runs."""

    @abstractmethod
    def cancel(self, grace_s: float) -> None:
        """Ask every process of the job to end, and kill it after ``grace_s``; returns when none is left."""

    def warn(self) -> bool:
        """Ask the ranks to write a checkpoint and stop, without waiting for it; False: this launcher cannot."""
        return False

    def state(self) -> str:
        """Where a job that may have to wait in a queue is, in one line; empty: it does not wait."""
        return ""

    def ended_runs(self) -> Mapping[int, list[HostEnding]]:
        """Of an array of runs, how those have ended that did, by their place in ``Job.tasks``."""
        return {}

    def missing_records(self) -> Sequence[str]:
        """Of a job whose records are brought home at its end, which were not: a sentence for each host."""
        return ()
