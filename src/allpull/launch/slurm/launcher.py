"""Run a job with Slurm: a batch script that sbatch takes, or one srun where we are inside an allocation already.

Every host of the job must share the run directory.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from allpull.errors import BadInput, MissingPart
from allpull.launch.detect import in_allocation
from allpull.launch.echo import STDERR, Log
from allpull.launch.host_endings import HostEnding, read_host_endings
from allpull.launch.hostlist import compress, expand
from allpull.launch.job import Job, environment
from allpull.launch.ports import port_of
from allpull.launch.process_tree import ProcessTree
from allpull.launch.running import Running
from allpull.launch.shell_script import python_of, shell_script
from allpull.launch.slurm.batch_job import ArrayJob, BatchJob
from allpull.launch.slurm.batch_script import sbatch_script, srun_options
from allpull.launch.slurm.commands import ANSWER_S, CANCEL_EXTRA_S, NEAR_END_S, run_slurm
from allpull.launch.slurm.outcome import JobFacts, decide_endings
from allpull.rundir import layout
from allpull.rundir.read.lenient import log_tail
from allpull.rundir.write import private_folder, whole_file

KEPT_VARIABLES = frozenset({"SLURM_CONF", "SLURM_CLUSTERS", "SLURM_JWT"})
"""Variables of the job that we run in which also say how to reach Slurm."""


class Slurm:
    """The launcher of a Slurm cluster."""

    def plan(self, job: Job) -> str:
        """The batch script, or the srun command where we are inside an allocation."""
        if in_allocation(os.environ):
            return shell_script(job, environment(job.spec, {}), step_command(job, os.environ))
        return sbatch_script(job)

    def submit(self, job: Job) -> BatchJob | ArrayJob | StepJob:
        """Submit ``job``, or start it inside our allocation.

        Raises:
            MissingPart: Slurm is not installed here.
            BadInput: sbatch refuses it, the allocation has too few hosts, or a path cannot be written into a script.
        """
        if in_allocation(os.environ):
            return StepJob(job, step_command(job, os.environ), os.environ["SLURM_JOB_ID"])
        name = submit_script(sbatch_script(job), os.environ)
        return ArrayJob(job, name) if job.tasks else BatchJob(job, name)


def prepare_script(job: Job) -> Path:
    """Write the batch script of a prepared ``job`` into its run directory, to be edited and submitted manually.

    Returns its path. Nothing in it is masked, so that it can run; secrets are masked when the run is closed.

    Raises:
        BadInput: a path or option cannot be written into a script, or the file cannot be written.
    """
    text = sbatch_script(job)
    path = job.directory / layout.SCRIPT
    try:
        private_folder(str(path.parent))  # the directory of an array has no such folder yet
        for run in (job, *job.tasks):
            whole_file(str(run.directory / layout.SCRIPT), text)
    except OSError as error:
        raise BadInput(f"cannot write {path}: {error.strerror or error}", hint="is there room on the disk?") from error
    return path


class StepJob(Running):
    """A job as one step of the allocation that we run in."""

    def __init__(self, job: Job, command: Sequence[str], allocation: str) -> None:
        self._job = job
        self._allocation = allocation
        variables = environment(job.spec, os.environ)
        log, shown = job.directory / layout.SLURM_LOG, () if job.program is None else ("stdout",)
        self.output = [Log(path=log, stream=STDERR)] if shown else []
        self._srun = ProcessTree(command, log=log, environment=variables, shown=shown)

    def poll(self) -> list[HostEnding] | None:
        """How each host ended, or None while the step runs."""
        code = self._srun.poll()
        if code is None:
            return None
        facts = JobFacts(state="FAILED" if code else "COMPLETED", exit_code=code)
        tail = log_tail(self._job.directory, layout.SLURM_LOG)
        return decide_endings(
            facts, read_host_endings(self._job.directory), hosts=self._job.spec.launch.hosts, log_tail=tail
        )

    def warn(self) -> bool:
        """Have the ranks write a checkpoint and stop."""
        for step in self._steps():
            run_slurm(["scancel", "--signal=USR1", step])
        return True

    def cancel(self, grace_s: float) -> None:
        """Send SIGTERM to the step through Slurm, because srun kills what it signals; after ``grace_s`` kill it."""
        deadline = time.monotonic() + grace_s
        if grace_s > 0:
            for step in self._steps():
                run_slurm(["scancel", "--signal=TERM", step])
        while time.monotonic() < deadline and self._srun.poll() is None:
            time.sleep(NEAR_END_S)
        self._srun.cancel(CANCEL_EXTRA_S)

    def _steps(self) -> list[str]:
        """Numbers of the steps of our allocation that belong to this job."""
        answer = run_slurm(["squeue", "--noheader", "--steps", f"--jobs={self._allocation}", "--format=%i|%j"])
        lines = answer.stdout.splitlines() if answer is not None else []
        return [number for number, _, name in (line.partition("|") for line in lines) if name == step_name(self._job)]


def step_name(job: Job) -> str:
    """The name of the step, to find it again: that of the run directory."""
    return job.directory.name


def step_command(job: Job, environ: Mapping[str, str]) -> list[str]:
    """The srun command that runs ``job`` on the first hosts of the allocation that ``environ`` describes.

    Raises:
        BadInput: the allocation has fewer hosts, its host list does not parse, or the job is an array.
    """
    hosts = job.spec.launch.hosts
    if job.spec.slurm.array:
        raise BadInput(
            f"slurm.array = {job.spec.slurm.array}: inside an allocation nothing is submitted, so there is no array",
            hint="leave it out, or submit from outside of the allocation",
        )
    names = expand(environ.get("SLURM_JOB_NODELIST", ""))
    if len(names) < hosts:
        raise BadInput(
            f"launch.hosts: {hosts} requested, and Slurm job {environ.get('SLURM_JOB_ID')} has {len(names)}",
            hint="request as many as the allocation has, or submit from outside of it",
        )
    options = [*srun_options(job.spec), f"--nodelist={compress(names[:hosts])}", f"--job-name={step_name(job)}"]
    agent = [*python_of(job), "-m", "allpull.observe.agent", str(job.file), "--from-slurm"]
    if hosts > 1:
        number = environ.get("SLURM_JOB_ID", "")
        port = job.spec.launch.port or port_of(int(number) if number.isdecimal() else 0)
        agent += ["--master", job.spec.slurm.master.replace("{host}", names[0]), "--port", str(port)]
    return ["srun", *options, *agent]


def submit_script(script: str, environ: Mapping[str, str]) -> str:
    """Submit ``script`` with sbatch; returns the number of the job.

    Raises:
        MissingPart: there is no sbatch here.
        BadInput: sbatch refuses it; the message quotes it.
    """
    in_job = "SLURM_JOB_ID" in environ  # then our own job's variables would change the new job
    variables = {
        k: v for k, v in environ.items() if not (in_job and k.startswith("SLURM_") and k not in KEPT_VARIABLES)
    }

    def run_sbatch() -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            ["sbatch", "--parsable"], input=script, capture_output=True, text=True, check=False, env=variables,
            start_new_session=True,
        )  # fmt: skip

    with ThreadPoolExecutor(1) as pool:  # a thread of its own, so that its answer is not lost when we are stopped
        answer = pool.submit(run_sbatch)
        try:
            sbatch = answer.result()
        except FileNotFoundError:
            raise MissingPart(
                "launcher slurm: there is no sbatch on this machine",
                hint="run it on a login host, or use another launcher",
            ) from None
        except BaseException:  # we are stopped, and Slurm may have accepted the job already
            with contextlib.suppress(OSError, TimeoutError):
                number = answer.result(ANSWER_S).stdout.strip()
                if number:
                    run_slurm(["scancel", number.partition(";")[0]])
            raise
    if sbatch.returncode != 0:
        refusal = "; ".join(line.strip() for line in sbatch.stderr.splitlines() if line.strip()) or "no reason given"
        raise BadInput(f"sbatch refused the job: {refusal}", hint="change the options of [slurm], or see --dry-run")
    return sbatch.stdout.strip()
