"""Run a job on hosts that ssh reaches: one agent a host, records collected at the end.

Hosts need not share a file system with this one or each other. Each says first where it will write and with which
versions; only when all have answered does anything start.
"""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import allpull
from allpull.errors import BadInput
from allpull.launch.endings import read_ended
from allpull.launch.hostlist import expand
from allpull.launch.job import RECORDED_VARIABLES, Job, environment
from allpull.launch.outcome import Ended
from allpull.launch.remote import SSH_FAILED, Remote, resolve, ship_code
from allpull.rundir import layout, redact

AFTERMATH_S = 10.0  # from the first host that failed to asking the others to stop: they may still say why themselves
LOST = 124  # our code for a host whose connection broke
MAX_HOSTFILE_BYTES = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Arrived:
    """A host that has taken the job: where it writes, and the process of ours that runs it."""

    remote: Remote
    directory: str
    shared: bool
    job_file: str
    port: int
    versions: dict[str, str | None]


class Ssh:
    """The launcher of a host list: names, ranges such as ``node[01-04]``, or a file of them, a host a line."""

    def __init__(self, hosts: str) -> None:
        self._names = read_hosts(hosts)

    def submit(self, job: Job) -> SshJob:
        """Hand the job to every host, then start it on all.

        Raises:
            BadInput: ranks cannot be divided over the hosts, or a host cannot take the job; nothing was started.
        """
        ranks = job.spec.launch.ranks
        if ranks % len(self._names):
            raise BadInput(
                f"{ranks} ranks cannot be divided evenly over {len(self._names)} hosts",
                hint=f"take a multiple: -n {len(self._names) * max(1, ranks // len(self._names))}",
            )
        remotes = [make_remote(name, job) for name in self._names]
        asked = json.loads(job.file.read_text(encoding="utf-8"))
        with ThreadPoolExecutor(max_workers=min(32, len(remotes))) as pool:
            arrived = list(pool.map(lambda remote: _arrive(remote, asked), remotes))
        problems = [item for item in arrived if isinstance(item, BadInput)]
        hosts = [item for item in arrived if isinstance(item, Arrived)]
        try:
            if problems:
                raise BadInput("; ".join(problem.message for problem in problems), hint=problems[0].hint)
            check_versions(hosts)
            return SshJob(job, hosts, resolve(self._names[0]))
        except BadInput:
            for host in hosts:
                if not host.shared:
                    host.remote.leave(host.directory)
            raise


class SshJob:
    """A job that runs on several hosts."""

    def __init__(self, job: Job, hosts: Sequence[Arrived], master: str) -> None:
        self._job = job
        self._hosts = list(hosts)
        self._failed_at: float | None = None
        variables = forwarded(job)
        self._clients = [
            host.remote.start(
                host.remote.python_command(
                    variables, "-m", "allpull.observe.agent", host.job_file,
                    "--host-index", str(index), "--hosts", str(len(self._hosts)),
                    "--master", master, "--port", str(job.spec.launch.port or self._hosts[0].port),
                    "--name", host.remote.name,
                ),
                job.directory / f"{layout.LOGS}/agent-{layout.slug(host.remote.name)}.log",
            )
            for index, host in enumerate(self._hosts)
        ]  # fmt: skip

    def poll(self) -> list[Ended] | None:
        """How each host ended, or None while one runs; a host that fails ends the others."""
        codes = [client.poll() for client in self._clients]
        if any(code not in (None, 0) for code in codes) and None in codes:
            now = time.monotonic()
            self._failed_at = self._failed_at or now
            if now - self._failed_at > AFTERMATH_S:
                self._end_clients(self._job.spec.launch.grace_s)
            return None
        return None if None in codes else self._close()

    def cancel(self, grace_s: float) -> None:
        """End all hosts: their connections are closed, which hangs up on the agents, and they end their ranks."""
        self._end_clients(grace_s)
        self._close()

    def _end_clients(self, grace_s: float) -> None:
        for client in self._clients:
            if client.poll() is None:
                client.terminate()
        deadline = time.monotonic() + grace_s
        for client in self._clients:
            with contextlib.suppress(subprocess.TimeoutExpired):
                client.wait(max(0.1, deadline - time.monotonic()))
        for client in self._clients:
            if client.poll() is None:
                client.kill()
                client.wait()

    def _close(self) -> list[Ended]:
        ended = []
        for host, client in zip(self._hosts, self._clients, strict=True):
            if not host.shared:
                self._wait_for_ending(host)
                trouble = host.remote.collect(host.directory, self._job.directory)
                if trouble is None:
                    host.remote.leave(host.directory)
            code = client.returncode
            code = LOST if code == SSH_FAILED or code < 0 else code
            ended.append(read_ended(self._job.directory, host.remote.name, code))
        return ended

    def _wait_for_ending(self, host: Arrived) -> None:
        """An agent that was hung up on needs a moment to end its ranks and say so."""
        path = f"{host.directory}/{layout.ended_file(host.remote.name)}"
        quoted = redact_free_quote(path)
        host.remote.ask(f"for i in $(seq 50); do [ -e {quoted} ] && exit 0; sleep 0.2; done", b"")


def redact_free_quote(path: str) -> str:
    """``path`` for a POSIX shell."""
    import shlex  # noqa: PLC0415

    return shlex.quote(path)
