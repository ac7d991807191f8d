"""Run a job on this machine: one agent process, which starts the ranks and ends with them."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys

import psutil

from allpull.errors import BadInput
from allpull.launch.endings import read_ended
from allpull.launch.job import Job, environment
from allpull.launch.outcome import Ended
from allpull.rundir import layout

AGENT_EXTRA_S = 5.0  # the agent gives its ranks the grace time, and then has its own books to close
AGENT_LOG = f"{layout.LOGS}/agent.log"


class Local:
    """The launcher of this machine."""

    def submit(self, job: Job) -> LocalJob:
        """Start the agent of ``job``.

        Raises:
            BadInput: the port that was asked for is in use.
        """
        check_port(job.spec.launch.port)
        return LocalJob(job)


class LocalJob:
    """A job that runs here."""

    def __init__(self, job: Job) -> None:
        self._job = job
        with (job.directory / AGENT_LOG).open("ab") as log:
            self._agent = subprocess.Popen(
                [sys.executable, "-m", "allpull.observe.agent", str(job.file), "--port", str(job.spec.launch.port)],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=environment(job.spec, os.environ),
                start_new_session=True,  # Ctrl-C is ours to pass on, once, and politely
            )
        self._family = {self._agent.pid: psutil.Process(self._agent.pid)}

    def poll(self) -> list[Ended] | None:
        """How this host ended, or None while ranks run."""
        self._remember()
        code = self._agent.poll()
        if code is None:
            return None
        self._kill_leftovers()
        return [read_ended(self._job.directory, socket.gethostname(), 128 - code if code < 0 else code)]

    def cancel(self, grace_s: float) -> None:
        """Ask the agent to end its ranks; after ``grace_s`` seconds and a bit kill whatever is left."""
        self._remember()
        if self._agent.poll() is None and grace_s > 0:
            self._agent.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._agent.wait(grace_s + AGENT_EXTRA_S)
        self._kill_leftovers()
        self._agent.wait()

    def _remember(self) -> None:
        with contextlib.suppress(psutil.Error):
            children = self._family[self._agent.pid].children(recursive=True)
            self._family.update({child.pid: child for child in children})

    def _kill_leftovers(self) -> None:
        for process in self._family.values():
            with contextlib.suppress(psutil.Error):
                if process.is_running() and process.status() != psutil.STATUS_ZOMBIE:
                    process.kill()
        psutil.wait_procs(list(self._family.values()), timeout=5)


def check_port(port: int) -> None:
    """Make sure that ``port`` can be listened on here; 0 always can.

    Raises:
        BadInput: it is in use or not ours to open.
    """
    if port == 0:
        return
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
            probe.listen()
        except OSError as error:
            raise BadInput(
                f"port {port}: {error.strerror}", hint="leave launch.port out, and a free one is chosen"
            ) from error
