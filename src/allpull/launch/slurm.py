"""Run a job with Slurm: a batch script that sbatch takes, or one srun where we are inside an allocation already.

The run directory must lie where every host of the job sees it. The batch job belongs to Slurm once it is submitted:
it lives on if we are killed, and ends when we are asked to end.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import time
from collections.abc import Mapping, Sequence

from allpull.errors import BadInput, MissingPart
from allpull.launch.detect import in_allocation
from allpull.launch.endings import read_all_ended
from allpull.launch.hostlist import compress, expand
from allpull.launch.job import Job, environment
from allpull.launch.outcome import Ended, log_tail
from allpull.launch.processes import Started
from allpull.launch.script import SLURM_LOG, port_of, python_of, sbatch_script, shell_script, srun_options
from allpull.launch.verdict import JobFacts, from_sacct, from_scontrol, in_words, verdict
from allpull.rundir import layout

ANSWER_S = 30.0  # a controller under load takes seconds
FIRST_LOOK_S, LONGEST_LOOK_S, SLOWER = 1.0, 15.0, 1.3  # centres ask not to be polled often
NEAR_END_S = 0.5  # once a host has written how it ended
PEEK_S = 1.0  # between looks at what hosts have written
SETTLE_S = 5.0  # shared file systems show another host's file some seconds late
CANCEL_EXTRA_S = 60.0  # Slurm's own KillWait (30 s unless changed), and its book-keeping
KEPT_VARIABLES = frozenset({"SLURM_CONF", "SLURM_CLUSTERS", "SLURM_JWT"})
"""Of the variables of a job that we are in, those that also say how to reach Slurm."""


class Slurm:
    """The launcher of a cluster that Slurm governs."""

    def plan(self, job: Job) -> str:
        """The batch script, or the srun command where we are inside an allocation."""
        if in_allocation(os.environ):
            return shell_script(job, environment(job.spec, {}), step_command(job, os.environ))
        return sbatch_script(job)

    def submit(self, job: Job) -> BatchJob | StepJob:
        """Submit ``job``, or start it inside our allocation.

        Raises:
            MissingPart: Slurm is not here.
            BadInput: sbatch refuses it, the allocation has too few hosts, or a path cannot stand in a script.
        """
        if in_allocation(os.environ):
            return StepJob(job, step_command(job, os.environ), os.environ["SLURM_JOB_ID"])
        return BatchJob(job, submit_script(sbatch_script(job), os.environ))


class BatchJob:
    """A job in Slurm's queue or on its hosts; ``name`` is its number, with ";cluster" behind it on a federation."""

    def __init__(self, job: Job, name: str) -> None:
        self._job = job
        self._number, _, cluster = name.partition(";")
        self._cluster = [f"--clusters={cluster}"] if cluster else []
        self._facts = JobFacts(state="PENDING")
        self._wait_s = FIRST_LOOK_S
        self._look_at = time.monotonic() + FIRST_LOOK_S
        self._peek_at = 0.0
        self._over_since: float | None = None

    def state(self) -> str:
        """Where the job is, in one line."""
        return in_words(self._number, self._facts)

    def poll(self) -> list[Ended] | None:
        """How each host ended, or None while the job waits or runs. Slurm is asked now and then only."""
        now = time.monotonic()
        if now < self._look_at and not self._end_shows(now):
            return None
        told = read_all_ended(self._job.directory)
        before = self._facts
        self._facts = self._ask() or before
        if self._facts.is_over:
            self._over_since = self._over_since or now
            if self._is_settled(told, now - self._over_since):
                return self._verdict(told)
        near = self._facts.is_over or (told and self._facts.state in {"RUNNING", "COMPLETING"})
        same = (before.state, before.reason) == (self._facts.state, self._facts.reason)
        self._wait_s = min(LONGEST_LOOK_S, self._wait_s * SLOWER) if same else FIRST_LOOK_S
        self._look_at = time.monotonic() + (NEAR_END_S if near else self._wait_s)
        return None

    def cancel(self, grace_s: float) -> None:
        """Cancel the job; after ``grace_s`` seconds kill what is left. Returns when Slurm says that it is over."""
        self._scancel()
        started = time.monotonic()
        killed = False
        while time.monotonic() - started < grace_s + CANCEL_EXTRA_S:
            facts = self._ask()
            if facts is not None and facts.is_over:
                return
            if not killed and time.monotonic() - started >= grace_s:
                self._scancel("--signal=KILL", "--full")
                killed = True
            time.sleep(NEAR_END_S)

    def _scancel(self, *options: str) -> None:
        ask(["scancel", *self._cluster, *options, self._number])

    def _end_shows(self, now: float) -> bool:
        """Whether a host of the running job has written how it ended; looked at more often than Slurm is asked."""
        if now < self._peek_at or self._facts.state != "RUNNING":
            return False
        self._peek_at = now + PEEK_S
        return any((self._job.directory / layout.ENDED).iterdir())

    def _is_settled(self, told: Sequence[Ended], since_s: float) -> bool:
        known = len(told) == self._job.spec.launch.hosts or any(host.failures for host in told)
        begun = self._facts.state == "COMPLETED" or any((self._job.directory / "hosts").iterdir())
        return known or not begun or self._facts.state not in {"COMPLETED", "FAILED"} or since_s > SETTLE_S

    def _verdict(self, told: Sequence[Ended]) -> list[Ended]:
        tail = log_tail(self._job.directory / SLURM_LOG)
        return verdict(self._facts, told, hosts=self._job.spec.launch.hosts, log_tail=tail)

    def _ask(self) -> JobFacts | None:
        """What Slurm knows of the job; None where it does not answer. A job that it forgot is over."""
        answer = ask(["scontrol", *self._cluster, "show", "job", self._number])
        if answer is None:
            return None
        if answer.returncode == 0:
            return from_scontrol(answer.stdout)
        if "Invalid job id" not in answer.stderr + answer.stdout:
            return None  # the controller restarts, say
        columns = ["--noheader", "--parsable2", "--allocations", "--format=State,ExitCode"]
        kept = ask(["sacct", *self._cluster, *columns, f"--jobs={self._number}"])
        known = from_sacct(kept.stdout) if kept is not None and kept.returncode == 0 else None
        return known or JobFacts(state="COMPLETED", reason="Slurm has forgotten the job")


class StepJob:
    """A job as one step of the allocation that we are in."""

    def __init__(self, job: Job, command: Sequence[str], allocation: str) -> None:
        self._job = job
        self._allocation = allocation
        variables = environment(job.spec, os.environ)
        self._srun = Started(command, log=job.directory / SLURM_LOG, environment=variables)

    def poll(self) -> list[Ended] | None:
        """How each host ended, or None while the step runs."""
        code = self._srun.poll()
        if code is None:
            return None
        facts = JobFacts(state="FAILED" if code else "COMPLETED", exit_code=code)
        tail = log_tail(self._job.directory / SLURM_LOG)
        return verdict(facts, read_all_ended(self._job.directory), hosts=self._job.spec.launch.hosts, log_tail=tail)

    def cancel(self, grace_s: float) -> None:
        """End the step politely, through Slurm, because srun passes no signal on without killing; then not."""
        deadline = time.monotonic() + grace_s
        if grace_s > 0:
            for step in self._steps():
                ask(["scancel", "--signal=TERM", step])
        while time.monotonic() < deadline and self._srun.poll() is None:
            time.sleep(NEAR_END_S)
        self._srun.cancel(CANCEL_EXTRA_S)

    def _steps(self) -> list[str]:
        """Numbers of the steps of our allocation that are this job."""
        answer = ask(["squeue", "--noheader", "--steps", f"--jobs={self._allocation}", "--format=%i|%j"])
        lines = answer.stdout.splitlines() if answer is not None else []
        return [number for number, _, name in (line.partition("|") for line in lines) if name == step_name(self._job)]


def step_name(job: Job) -> str:
    """The name of the step, by which it is found again: that of the run directory."""
    return job.directory.name


def step_command(job: Job, environ: Mapping[str, str]) -> list[str]:
    """The srun command that runs ``job`` on the first hosts of the allocation that ``environ`` describes.

    Raises:
        BadInput: the allocation has fewer hosts, or its host list does not parse.
    """
    wanted = job.spec.launch.hosts
    names = expand(environ.get("SLURM_JOB_NODELIST", ""))
    if len(names) < wanted:
        raise BadInput(
            f"launch.hosts: {wanted} asked for, and Slurm job {environ.get('SLURM_JOB_ID')} has {len(names)}",
            hint="ask for as many as the allocation has, or submit from outside of it",
        )
    options = [*srun_options(job.spec), f"--nodelist={compress(names[:wanted])}", f"--job-name={step_name(job)}"]
    agent = [*python_of(job), "-m", "allpull.observe.agent", str(job.file), "--from-slurm"]
    if wanted > 1:
        number = environ.get("SLURM_JOB_ID", "")
        port = job.spec.launch.port or port_of(int(number) if number.isdecimal() else 0)
        agent += ["--master", job.spec.slurm.master.replace("{host}", names[0]), "--port", str(port)]
    return ["srun", *options, *agent]


def submit_script(script: str, environ: Mapping[str, str]) -> str:
    """Hand ``script`` to sbatch; the number of the job.

    Raises:
        MissingPart: there is no sbatch here.
        BadInput: sbatch refuses it; its own words are in the message.
    """
    inside = "SLURM_JOB_ID" in environ  # then our own job's variables would change what the new one is given
    clean = {k: v for k, v in environ.items() if not (inside and k.startswith("SLURM_") and k not in KEPT_VARIABLES)}
    try:
        sbatch = subprocess.Popen(
            ["sbatch", "--parsable"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
            env=clean, start_new_session=True,
        )  # fmt: skip
    except FileNotFoundError:
        raise MissingPart(
            "launcher slurm: there is no sbatch on this machine", hint="run it on a login host, or use another launcher"
        ) from None
    try:
        said, complaint = sbatch.communicate(script)
    except BaseException:  # we are asked to stop, and the job may have been taken already
        with contextlib.suppress(subprocess.TimeoutExpired):
            said, _ = sbatch.communicate(timeout=ANSWER_S)
            if said.strip():
                ask(["scancel", said.strip().partition(";")[0]])
        raise
    if sbatch.returncode != 0:
        words = "; ".join(line.strip() for line in complaint.splitlines() if line.strip()) or "no reason given"
        raise BadInput(f"sbatch refused the job: {words}", hint="change the options of [slurm], or see --dry-run")
    return said.strip()


def ask(command: Sequence[str]) -> subprocess.CompletedProcess[str] | None:
    """Run one of Slurm's commands; None where it is missing or does not answer."""
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=ANSWER_S, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
