"""Run a job on this machine: one agent process, which starts the ranks and ends with them."""

from __future__ import annotations

import os
import signal
import socket
from dataclasses import replace

from allpull.errors import BadInput
from allpull.launch import container
from allpull.launch.host_endings import KILLED, HostEnding, read_host_ending
from allpull.launch.job import Job, environment, with_secrets
from allpull.launch.memory_check import check_memory
from allpull.launch.ports import check_port
from allpull.launch.process_tree import ProcessTree
from allpull.launch.running import Running
from allpull.launch.shell_script import python_of, shell_script
from allpull.observe import scratch
from allpull.observe.out_of_memory import OomKills
from allpull.rundir import layout

AGENT_EXTRA_S = 5.0  # the agent gives its ranks the grace time, and then writes its last records


class Local:
    """The launcher of this machine."""

    def plan(self, job: Job) -> str:
        """The agent's command, with what it adds to the environment."""
        check_memory(job)
        return shell_script(job, environment(job.spec, {}), command(job))

    def submit(self, job: Job) -> LocalJob:
        """Start the agent of ``job``.

        Raises:
            BadInput: it is for several hosts, has more ranks than fit in memory, its port is in use, or the container
                cannot be used.
            MissingPart: the container's runtime is not installed.
        """
        check_memory(job)
        check_port(job.spec.launch.port)
        container.check(job.spec.container)
        return LocalJob(job)


class LocalJob(Running):
    """A job that runs here."""

    def __init__(self, job: Job) -> None:
        self._job = job
        self._out_of_memory = OomKills()
        variables = with_secrets(job, environment(job.spec, os.environ))
        shown = () if job.program is None else ("stdout", "stderr")
        self._agent = ProcessTree(
            command(job), log=job.directory / layout.AGENT_LOG, environment=variables, shown=shown
        )

    def poll(self) -> list[HostEnding] | None:
        """How this host ended, or None while ranks run."""
        code = self._agent.poll()
        if code is None:
            return None
        host = socket.gethostname()
        private = scratch.path_of(str(self._job.directory), host)
        ending = read_host_ending(self._job.directory, host, code, private=private)
        scratch.remove(private)  # also of an agent that was killed
        if code == KILLED and not ending.failures and (why := self._out_of_memory.sentence(host)):
            ending = replace(ending, reason=f"{ending.reason}: {why}")
        return [ending]

    def warn(self) -> bool:
        """Have the ranks write a checkpoint and stop; the agent passes the signal on, and gives them the grace time."""
        self._agent.signal(signal.SIGUSR1)
        return True

    def cancel(self, grace_s: float) -> None:
        """Ask the agent to end its ranks; a little after ``grace_s`` seconds, kill what is left."""
        self._agent.cancel(grace_s + AGENT_EXTRA_S if grace_s > 0 else 0)
        scratch.remove(scratch.path_of(str(self._job.directory), socket.gethostname()))


def command(job: Job) -> list[str]:
    """The command that runs ``job`` here.

    Raises:
        BadInput: the job is for several hosts.
    """
    launch = job.spec.launch
    if launch.hosts > 1:
        raise BadInput(
            f"launch.hosts: launcher local is this one host, not {launch.hosts}",
            hint="choose one that has several: ssh:HOSTS, slurm or mpi:HOSTFILE",
        )
    python = container.guarded(job.spec.container, python_of(job))
    return [*python, "-m", "allpull.observe.agent", str(job.file), "--port", str(launch.port)]
