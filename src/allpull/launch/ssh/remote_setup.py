"""Hand a job to hosts over ssh: each says where it will write and with which versions, or why it cannot.

Nothing has started then. Where one cannot, or we are asked to stop meanwhile, all leave again: what was made for the
job, its nonce included, is removed.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path

import allpull
from allpull.errors import BadInput
from allpull.launch import container
from allpull.launch.job import Job
from allpull.launch.ssh.connection import NOT_FOUND, Remote, shell_text, ship_code
from allpull.rundir.job_file import JobFile
from allpull.schema.spec import ContainerSpec

AT_ONCE = 32  # hosts that are talked to in parallel


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadyHost:
    """A host that has taken the job: where it writes, and the process of ours that runs it."""

    remote: Remote
    directory: str
    shared: bool
    job_file: str
    port: int
    versions: dict[str, str | None]


def arrive(names: Sequence[str], job: Job) -> list[ReadyHost]:
    """Hand ``job`` to the hosts called ``names``; in their order.

    Raises:
        BadInput: a host cannot take it, or they differ in versions; every one of them has left again.
    """
    file = JobFile.read(str(job.file))
    remotes = [_remote(name, job) for name in names]  # one after the other: homes that are shared take one copy at once
    arriving: list[Future[ReadyHost | BadInput]] = []
    try:
        with ThreadPoolExecutor(min(AT_ONCE, len(names))) as pool:
            try:
                arriving += [pool.submit(_arrive, remote, file, job.spec.container) for remote in remotes]
                answers = [one.result() for one in arriving]
            except BaseException:
                pool.shutdown(wait=False, cancel_futures=True)
                raise
        problems = [answer for answer in answers if isinstance(answer, BadInput)]
        if problems:
            raise BadInput("; ".join(problem.message for problem in problems), hint=problems[0].hint)
        hosts = [answer for answer in answers if isinstance(answer, ReadyHost)]
        check_versions(hosts)
    except BaseException:  # Ctrl-C too: a host that was on its way has arrived by now
        told = [one.result() for one in arriving if not one.cancelled() and not one.exception()]
        leave([answer for answer in told if isinstance(answer, ReadyHost)])
        raise
    return hosts


def leave(hosts: Sequence[ReadyHost]) -> None:
    """Remove, from those that have one of their own, the folder that was made for the job."""
    with ThreadPoolExecutor(AT_ONCE) as pool:
        for host in hosts:
            if not host.shared:
                pool.submit(host.remote.leave, host.directory)  # one that cannot be reached any more keeps it


def check_versions(hosts: Sequence[ReadyHost]) -> None:
    """All hosts must have torch, and the same torch, Python and allpull.

    Raises:
        BadInput: one has not.
    """
    first = hosts[0]
    for host in hosts:
        if host.versions.get("torch") is None:
            raise BadInput(f"host {host.remote.name} has no torch", hint=f"install it for {host.remote.python} there")
        for package, theirs in host.versions.items():
            ours = first.versions.get(package)
            if theirs != ours:
                raise BadInput(
                    f"hosts differ: {package} is {ours} on {first.remote.name} and {theirs} on {host.remote.name}",
                    hint="give all hosts the same environment; --set ssh.python=… names another Python",
                )


def _remote(name: str, job: Job) -> Remote:
    """How allpull is run on host ``name``: the Python that was named, or the path of ours; code shipped if asked.

    Raises:
        BadInput: code was to be shipped and could not.
    """
    python = job.spec.ssh.python or sys.executable
    code = ship_code(name, Path(allpull.__file__).parent) if job.spec.ssh.ship else None
    return Remote(name=name, python=python, code=code)


def _arrive(remote: Remote, file: JobFile, box: ContainerSpec) -> ReadyHost | BadInput:
    try:
        told = remote.arrive(file)
        host = ReadyHost(
            remote=remote,
            directory=str(told["directory"]),
            shared=bool(told["shared"]),
            job_file=str(told["job_file"]),
            port=int(told["port"]),
            versions={str(name): value for name, value in told["versions"].items()},
        )
        return _inside(host, box) if box.image else host
    except BadInput as error:
        return error
    except (KeyError, TypeError, ValueError, AttributeError):
        return BadInput(f"host {remote.name} runs another allpull", hint="install the same version everywhere")


def _inside(host: ReadyHost, box: ContainerSpec) -> ReadyHost | BadInput:
    """The host with the versions that its container has; one whose container cannot be used has left again."""
    try:
        answer = host.remote.ask(shell_text({}, container.question(box)), b"", patience_s=container.ANSWER_S)
        if answer.returncode == NOT_FOUND:
            raise BadInput(
                f"container.runtime: no {box.runtime} on its PATH", hint="see what ssh says of it: echo $PATH"
            )
        return replace(host, versions=container.versions(box, answer))
    except BadInput as error:
        leave([host])
        return BadInput(f"host {host.remote.name}: {error.message}", hint=f"on that host: {error.hint}")
