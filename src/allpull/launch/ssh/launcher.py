"""Run a job on hosts that ssh reaches: one agent a host, records collected at the end.

Hosts need not share a file system with this one or each other. Each first replies where it will write and with which
versions; nothing starts until all have replied.
"""

from __future__ import annotations

import contextlib
import os
import shlex
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Collection, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

from allpull.errors import BadInput
from allpull.launch import container
from allpull.launch.echo import STDOUT, Log
from allpull.launch.host_endings import HostEnding, read_host_ending
from allpull.launch.hostfile import entries
from allpull.launch.hostlist import expand
from allpull.launch.job import RECORDED_VARIABLES, Job, environment
from allpull.launch.running import Running
from allpull.launch.ssh.collect import Copies
from allpull.launch.ssh.connection import KEEP_ALIVE, OPTIONS, SSH_FAILED, Remote, resolve, shell_text
from allpull.launch.ssh.remote_setup import AT_ONCE, ReadyHost, clean_up, set_up_hosts
from allpull.rundir import layout, redact

AFTERMATH_S = 10.0  # from the first failed host to stopping the others, which may still write why they failed
LOST = 124  # our code for a host whose connection broke


class Ssh:
    """The launcher of a host list: names, ranges such as ``node[01-04]``, or a file of them, a host a line."""

    def __init__(self, hosts: str) -> None:
        self._names = read_hosts(hosts)

    def plan(self, job: Job) -> str:
        """The ssh command of each host; what only a host knows is a ``$NAME``."""
        divide(job.spec.launch.ranks, self._names)
        remotes = [Remote(name=name, python=job.spec.ssh.python or sys.executable) for name in self._names]
        commands = agent_commands(
            job, remotes, master="$ADDRESS_OF_FIRST", port=job.spec.launch.port or "$FREE_PORT", hosts=None
        )
        lines = [shlex.join(["ssh", "-tt", *OPTIONS, *KEEP_ALIVE, "--", name, command])
                 for name, command in zip(self._names, commands, strict=True)]  # fmt: skip
        return "\n".join(["#!/bin/sh", *(f"{line} &" for line in lines), "wait", ""])

    def submit(self, job: Job) -> SshJob:
        """Set every host up for the job, then start it on all.

        Raises:
            BadInput: ranks cannot be divided over the hosts, or a host cannot take the job; nothing was started.
        """
        divide(job.spec.launch.ranks, self._names)
        hosts = set_up_hosts(self._names, job)
        try:
            return SshJob(job, hosts, resolve(self._names[0]))
        except BaseException:  # Ctrl-C too
            clean_up(hosts)
            raise


class SshJob(Running):
    """A job that runs on several hosts."""

    def __init__(self, job: Job, hosts: Sequence[ReadyHost], master: str) -> None:
        self._job = job
        self._hosts = list(hosts)
        self._failed_at: float | None = None
        self._lost: set[str] = set()
        self._stopping = False
        self._home: dict[str, str | None] = {}
        commands = agent_commands(
            job,
            [host.remote for host in self._hosts],
            master=master,
            port=job.spec.launch.port or self._hosts[0].port,
            hosts=self._hosts,
        )
        logs = [job.directory / layout.agent_log(host.remote.name) for host in self._hosts]
        self.output = [Log(path=log, stream=STDOUT, is_terminal=True) for log in logs if job.program is not None]
        self._clients: list[subprocess.Popen[bytes]] = []
        try:
            for host, command, log in zip(self._hosts, commands, logs, strict=True):
                self._clients.append(host.remote.start(command, log))
        except BaseException:
            self._end_clients(0)
            raise

    def missing_records(self) -> list[str]:
        """Which records could not be collected, and why: one sentence per host."""
        return [
            f"records of host {host.remote.name} were not all collected ({trouble}): they are in {host.directory} there"
            for host in self._hosts
            if (trouble := self._home.get(host.remote.name)) is not None
        ]

    def poll(self) -> list[HostEnding] | None:
        """How each host ended, or None while one runs; a host that fails ends the others."""
        codes = [client.poll() for client in self._clients]
        if not self._stopping:  # clients that we end have the same exit code
            self._lost |= {h.remote.name for h, code in zip(self._hosts, codes, strict=True) if code == SSH_FAILED}
        if any(code not in (None, 0) for code in codes) and None in codes:
            now = time.monotonic()
            self._failed_at = self._failed_at or now
            if now - self._failed_at > AFTERMATH_S:
                self._end_clients(self._job.spec.launch.grace_s)
            return None
        return None if None in codes else self._close()

    def cancel(self, grace_s: float) -> None:
        """End all hosts: closing a connection hangs up on its agent, which ends its ranks.

        Records are still collected, unless ``grace_s`` is 0.
        """
        self._end_clients(grace_s)
        if grace_s > 0:
            self._close()
        for host in self._hosts:
            if not host.shared:
                self._home.setdefault(host.remote.name, "the job was ended at once")

    def warn(self) -> bool:
        """Have the ranks write a checkpoint and stop: each host's agent gets the signal and passes it on."""
        for host in self._hosts:
            threading.Thread(target=_warn, args=(host,), daemon=True).start()
        return True

    def _end_clients(self, grace_s: float) -> None:
        self._stopping = True
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

    def _close(self) -> list[HostEnding]:
        unshared = [host for host in self._hosts if not host.shared and host.remote.name not in self._home]
        copies = Copies(self._job.directory)
        if unshared:
            with ThreadPoolExecutor(min(AT_ONCE, len(unshared))) as pool:
                try:
                    list(pool.map(lambda host: self._bring_home(host, copies), unshared))
                except BaseException:
                    copies.break_off()
                    raise
        ended = []
        for host, client in zip(self._hosts, self._clients, strict=True):
            code = client.returncode
            code = LOST if code == SSH_FAILED or code < 0 else code
            ended.append(read_host_ending(self._job.directory, host.remote.name, code))
        ended = blame_lost_host(ended, self._lost)
        if not self.missing_records():
            return ended
        own_reason = next((host.reason for host in ended if host.reason), None)
        reason = "; ".join(filter(None, [own_reason, *self.missing_records()]))
        return [replace(ended[0], reason=reason), *ended[1:]]

    def _bring_home(self, host: ReadyHost, copies: Copies) -> None:
        self._wait_for_ending(host)
        trouble = copies.collect(host.remote, host.directory)
        if trouble is None:
            clean_up([host])
        if not copies.broken_off:
            self._home[host.remote.name] = trouble

    def _wait_for_ending(self, host: ReadyHost) -> None:
        """Wait until an agent that lost its terminal has ended its ranks and written so; not if it never started."""
        ended, began = (
            shlex.quote(f"{host.directory}/{name}")
            for name in (layout.ended_file(host.remote.name), layout.host_file(host.remote.name))
        )
        wait = f"[ -e {began} ] || exit 0; for i in $(seq 50); do [ -e {ended} ] && exit 0; sleep 0.2; done"
        with contextlib.suppress(BadInput):
            host.remote.run(wait, b"")


def blame_lost_host(ended: list[HostEnding], lost: Collection[str]) -> list[HostEnding]:
    """How the hosts ended, of which some were ``lost``: a lost host without a failure of its own made the others fail.

    >>> [(host.code, host.reason) for host in blame_lost_host([HostEnding(host="n1", code=1)], {"n1"})]
    [(124, 'host n1 was lost: its agent was killed, or the connection to it broke')]
    """
    lost_host = next((host.host for host in ended if host.host in lost and not host.failures), None)
    if lost_host is None:
        return ended
    reason = f"host {lost_host} was lost: its agent was killed, or the connection to it broke"
    return [replace(host, code=LOST, failures=(), reason=reason) for host in ended]


def divide(ranks: int, names: Sequence[str]) -> int:
    """Ranks of each host.

    Raises:
        BadInput: the number would differ between hosts.
    """
    if ranks % len(names):
        nearest = len(names) * max(1, ranks // len(names))
        raise BadInput(
            f"{ranks} ranks cannot be divided evenly over {len(names)} hosts",
            hint=f"take a multiple: {nearest}",
        )
    return ranks // len(names)


def agent_commands(
    job: Job, remotes: Sequence[Remote], *, master: str, port: int | str, hosts: Sequence[ReadyHost] | None
) -> list[str]:
    """The shell text that starts the agent on each host, in its container if it has one."""
    variables, box = forwarded(job), job.spec.container
    commands = []
    for index, remote in enumerate(remotes):
        directory = str(job.directory) if hosts is None else hosts[index].directory
        agent = ["-m", "allpull.observe.agent", f"{directory}/{layout.SPEC}"]
        agent += ["--host-index", str(index), "--hosts", str(len(remotes))]
        agent += ["--master", master, "--port", str(port), "--name", remote.name]
        if hosts is not None and hosts[index].secrets:
            agent += ["--secrets", hosts[index].secrets]
        in_container = container.wrap(box, [container.python(box), *agent], shown=[Path(directory)])
        agent_command = shell_text(variables, container.attended(box, in_container))
        commands.append(agent_command if box.image else remote.python_command(variables, *agent))
    return commands


def read_hosts(text: str) -> list[str]:
    """Host names from a hostfile or a host list.

    In a file each line is a name or a range; further words (``slots=4``) and comments are ignored.

    Raises:
        BadInput: nothing was given, the file cannot be read, a list does not parse, or a host is named twice.
    """
    if not text:
        raise BadInput("launcher ssh needs hosts", hint="write ssh:node[01-04], or ssh:HOSTFILE")
    is_file = os.path.isfile(text)  # noqa: PTH113  says no where pathlib raises: a list longer than a path may be
    names = [name for entry in entries(text) for name in expand(entry)] if is_file else expand(text)
    twice = sorted(name for name, count in Counter(names).items() if count > 1)
    if twice or not names:
        what = f"host {twice[0]} is named twice" if twice else "it names no host"
        raise BadInput(f"host list '{text[:200]}': {what}", hint="ranks are divided evenly; name each host once")
    invalid = next((name for name in names if name.startswith("-") or not name.isprintable()), None)
    if invalid is not None:
        raise BadInput(f"host list '{text[:200]}': {invalid!r} is no host name", hint="check the host list")
    return names


def forwarded(job: Job) -> dict[str, str]:
    """The variables that are sent along: threads, and what the user set for libraries, without secrets."""
    everything = environment(job.spec, os.environ)
    kept = {name: value for name, value in everything.items() if name.startswith(RECORDED_VARIABLES)}
    masked, _ = redact.mapping(kept)
    return {name: value for name, value in kept.items() if masked[name] == value and name not in LOCAL_ONLY}


LOCAL_ONLY = frozenset({"PYTHONPATH", "PYTHONHOME", "MASTER_ADDR", "MASTER_PORT"})
"""Variables that are about this machine, and wrong on another."""


def _warn(host: ReadyHost) -> None:
    with contextlib.suppress(BadInput):  # a host that does not answer; one warned host is enough
        host.remote.warn(host.job_file)
