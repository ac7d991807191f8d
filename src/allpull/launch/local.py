"""Run a job on this machine: one agent process, which starts the ranks and ends with them."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import psutil

from allpull.errors import BadInput
from allpull.launch.job import Job, environment
from allpull.launch.outcome import TAIL_BYTES, Ended, RankFailure, log_tail
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
        return [ended(self._job.directory, 128 - code if code < 0 else code)]

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


def ended(directory: Path, code: int) -> Ended:
    """How the ranks of this host ended, from what the agent and the ranks wrote."""
    host = socket.gethostname()
    try:
        told: dict[str, Any] = json.loads((directory / layout.ended_file(host)).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        told = {}
    failures = tuple(_failure(directory, host, item) for item in told.get("failures", []))
    return Ended(host=host, code=code, failures=failures)


def _failure(directory: Path, host: str, told: dict[str, Any]) -> RankFailure:
    rank = int(told["rank"])
    exception, raised_ns = _exception(directory / layout.events_file(rank))
    return RankFailure(
        rank=rank,
        host=host,
        exit_code=int(told["exit_code"]),
        exception=exception,
        raised_ns=raised_ns,
        log_tail=log_tail(directory / layout.log_file(rank)),
    )


def _exception(events: Path) -> tuple[str | None, int | None]:
    """The last exception that a rank recorded, as "type: message" and the time, or nothing."""
    try:
        with events.open("rb") as file:
            file.seek(max(0, events.stat().st_size - TAIL_BYTES))
            lines = file.read(TAIL_BYTES).splitlines()
    except OSError:
        return None, None
    for line in reversed(lines):
        if b'"exception"' in line:
            with contextlib.suppress(ValueError, KeyError, TypeError):
                event = json.loads(line)
                return f"{event['type']}: {event['message']}", int(event["t_ns"])
    return None, None
