"""A submitted batch job, or an array of them: polled, cancelled and warned.

A batch job belongs to Slurm once it is submitted: it survives if we are killed, and is cancelled if we are stopped.
"""

from __future__ import annotations

import functools
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence

from allpull.launch.echo import STDOUT, Log
from allpull.launch.host_endings import SETTLE_S, HostEnding, read_host_endings
from allpull.launch.job import Job
from allpull.launch.job_array import indices
from allpull.launch.running import Running
from allpull.launch.slurm.commands import NEAR_END_S, SlurmHandle
from allpull.launch.slurm.outcome import JobFacts, decide_endings, describe_state
from allpull.rundir import layout
from allpull.rundir.read.lenient import file_names, log_tail

FIRST_LOOK_S, LONGEST_LOOK_S, SLOWER = 1.0, 15.0, 1.3  # sites ask users not to poll often
PEEK_S = 1.0  # between looks at what hosts have written
ARRAY_FRESH_S = 3.0  # one answer of Slurm's serves all runs of an array for so long

Facts = Callable[[], JobFacts | None]
"""Returns what Slurm knows about a job; None: Slurm does not answer."""


class BatchJob(Running):
    """A batch job; ``name`` is its number, followed by ";cluster" in a federation. ``facts`` asks Slurm about it."""

    def __init__(self, job: Job, name: str, facts: Facts | None = None) -> None:
        self._job = job
        self.output = [] if job.program is None else [Log(path=job.directory / layout.SLURM_LOG, stream=STDOUT)]
        self._slurm = SlurmHandle(name)
        self.queue_numbers = [name]
        self._read_facts = facts or self._slurm.facts
        self.facts = JobFacts(state="PENDING")
        self._wait_s = FIRST_LOOK_S
        self._look_at = time.monotonic() + FIRST_LOOK_S
        self._peek_at = 0.0
        self._over_since: float | None = None

    def state(self) -> str:
        """Where the job is, in one line."""
        return describe_state(self._slurm.number, self.facts)

    def poll(self) -> list[HostEnding] | None:
        """How each host ended, or None while the job waits or runs. Slurm is polled at growing intervals."""
        now = time.monotonic()
        if now < self._look_at and not self._end_shows(now):
            return None
        endings = read_host_endings(self._job.directory)
        before = self.facts
        self.facts = self._read_facts() or before
        if self.facts.is_over:
            self._over_since = self._over_since or now
            if self._is_settled(endings, now - self._over_since):
                return self._endings(endings)
        near_end = self.facts.is_over or (endings and self.facts.state in {"RUNNING", "COMPLETING"})
        unchanged = (before.state, before.reason) == (self.facts.state, self.facts.reason)
        self._wait_s = min(LONGEST_LOOK_S, self._wait_s * SLOWER) if unchanged else FIRST_LOOK_S
        self._look_at = time.monotonic() + (NEAR_END_S if near_end else self._wait_s)
        return None

    def cancel(self, grace_s: float) -> None:
        """Cancel the job; after ``grace_s`` seconds, kill it. Returns when Slurm says that it is over."""
        self._slurm.cancel(grace_s, self.is_over)

    def warn(self) -> bool:
        """Have the ranks write a checkpoint and stop; a job that may be requeued is requeued then."""
        self._slurm.signal("USR1")
        return True

    def is_over(self) -> bool:
        """Whether Slurm says, now, that the job has ended."""
        facts = self._read_facts()
        return facts is not None and facts.is_over

    def _end_shows(self, now: float) -> bool:
        """Whether a host of the running job has written how it ended; checked more often than Slurm is polled."""
        if now < self._peek_at or self.facts.state != "RUNNING":
            return False
        self._peek_at = now + PEEK_S
        return bool(file_names(self._job.directory, layout.ENDED, ".json"))

    def _is_settled(self, endings: Sequence[HostEnding], since_s: float) -> bool:
        is_known = len(endings) == self._job.spec.launch.hosts or any(host.failures for host in endings)
        has_begun = self.facts.state == "COMPLETED" or file_names(self._job.directory, layout.HOSTS, ".json")
        return is_known or not has_begun or self.facts.state not in {"COMPLETED", "FAILED"} or since_s > SETTLE_S

    def _endings(self, endings: Sequence[HostEnding]) -> list[HostEnding]:
        tail = log_tail(self._job.directory, layout.SLURM_LOG)
        return decide_endings(self.facts, endings, hosts=self._job.spec.launch.hosts, log_tail=tail)


class ArrayJob(Running):
    """The runs of an array, each a batch job."""

    def __init__(self, job: Job, name: str) -> None:
        self._slurm = SlurmHandle(name)
        self._answer: dict[int, JobFacts] | None = None
        self._fresh_until = 0.0
        self._runs: dict[int, BatchJob] = {}
        for task, index in zip(job.tasks, indices(job.spec.slurm.array), strict=True):
            handle = SlurmHandle(name, index)
            self._runs[index] = BatchJob(task, handle.name, functools.partial(self._facts, index, handle))
        self.queue_numbers = [number for run in self._runs.values() for number in run.queue_numbers]
        self._ended: dict[int, list[HostEnding]] = {}

    def state(self) -> str:
        """Where the runs are, in one line."""
        states = Counter(run.facts.state.lower() for run in self._runs.values())
        return f"Slurm array {self._slurm.number}: " + ", ".join(f"{n} {state}" for state, n in sorted(states.items()))

    def poll(self) -> list[HostEnding] | None:
        """How each host of each run ended, or None while any waits or runs."""
        for place, run in enumerate(self._runs.values()):
            if place not in self._ended and (ended := run.poll()) is not None:
                self._ended[place] = ended
        if len(self._ended) < len(self._runs):
            return None
        return [host for _, hosts in sorted(self._ended.items()) for host in hosts]

    def ended_runs(self) -> Mapping[int, list[HostEnding]]:
        """How those runs have ended that did, by their place in ``job.tasks``."""
        return self._ended

    def cancel(self, grace_s: float) -> None:
        """Cancel all runs; after ``grace_s`` seconds, kill them. Returns when Slurm says that all are over."""
        self._slurm.cancel(grace_s, lambda: all(run.is_over() for run in self._runs.values()))

    def warn(self) -> bool:
        """Have the ranks of running jobs write a checkpoint and stop."""
        self._slurm.signal("USR1")
        return True

    def _facts(self, index: int, handle: SlurmHandle) -> JobFacts | None:
        """What Slurm knows about the run of ``index``, from a recent answer about the whole array."""
        now = time.monotonic()
        if now >= self._fresh_until:
            self._fresh_until = now + ARRAY_FRESH_S
            self._answer = self._slurm.facts_by_index()
        if self._answer is None:
            return None
        return self._answer.get(index) or handle.facts()
