"""Set hosts up for a job over ssh: each replies where it will write and with which versions, or why it cannot.

Nothing has started by then. If one host cannot take the job, or the user stops it meanwhile, every host is cleaned up:
what was made for the job, its nonce included, is removed.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path

from allpull.errors import BadInput
from allpull.launch import carried_code, container
from allpull.launch.carried_code import CarriedCode
from allpull.launch.job import Job
from allpull.launch.ssh.connection import NOT_FOUND, Remote, send_code, shell_text, ship_code
from allpull.rundir import layout
from allpull.rundir.job_file import JobFile
from allpull.schema.spec import ContainerSpec

PACKAGE = Path(__file__).resolve().parents[2]  # the folder of allpull
AT_ONCE = 32  # hosts that are talked to in parallel


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadyHost:
    """A host that is set up for the job: where it writes, and which versions it has."""

    remote: Remote
    directory: str
    shared: bool
    job_file: str
    port: int
    secrets: str
    """Path of the private file that its agent removes; empty where the secrets stand beside the job file."""
    versions: dict[str, str | None]


def set_up_hosts(names: Sequence[str], job: Job) -> list[ReadyHost]:
    """Hand ``job`` to the hosts called ``names``; in their order.

    Raises:
        BadInput: a host cannot take it, or versions differ; every host has been cleaned up.
    """
    file = JobFile.read(str(job.file), "")
    remotes = [
        _remote(name, job) for name in names
    ]  # one after the other: hosts may share a home, which takes one copy at a time
    carry = job.spec.ssh.carry
    code = carried_code.select(carried_code.working_folder(carry)[0]) if carry else None
    pending: list[Future[ReadyHost | BadInput]] = []
    try:
        with ThreadPoolExecutor(min(AT_ONCE, len(names))) as pool:
            try:
                pending += [pool.submit(_set_up, remote, file, job, code) for remote in remotes]
                results = [one.result() for one in pending]
            except BaseException:
                pool.shutdown(wait=False, cancel_futures=True)
                raise
        problems = [answer for answer in results if isinstance(answer, BadInput)]
        if problems:
            raise BadInput("; ".join(problem.message for problem in problems), hint=problems[0].hint)
        hosts = [answer for answer in results if isinstance(answer, ReadyHost)]
        check_same_versions(hosts)
    except BaseException:  # Ctrl-C too: a host that was being set up is ready by now
        answered = [one.result() for one in pending if not one.cancelled() and not one.exception()]
        clean_up([answer for answer in answered if isinstance(answer, ReadyHost)])
        raise
    return hosts


def clean_up(hosts: Sequence[ReadyHost]) -> None:
    """Remove the folder that was made for the job, on hosts that do not share ours."""
    with ThreadPoolExecutor(AT_ONCE) as pool:
        for host in hosts:
            if not host.shared:
                pool.submit(host.remote.clean_up, host.directory)  # an unreachable host keeps it


def check_same_versions(hosts: Sequence[ReadyHost]) -> None:
    """Check that all hosts have torch, and the same torch, Python and allpull.

    Raises:
        BadInput: they do not.
    """
    first = hosts[0]
    for host in hosts:
        if host.versions.get("torch") is None:
            raise BadInput(f"host {host.remote.name} has no torch", hint=f"install it for {host.remote.python} there")
        for package, version in host.versions.items():
            expected = first.versions.get(package)
            if version != expected:
                raise BadInput(
                    f"hosts differ: {package} is {expected} on {first.remote.name} and {version} on {host.remote.name}",
                    hint="give all hosts the same environment; --set ssh.python=… names another Python",
                )


def _remote(name: str, job: Job) -> Remote:
    """How to run allpull on host ``name``: with the configured Python, or our own path; ships the code if requested.

    Raises:
        BadInput: code was to be shipped and could not.
    """
    python = job.spec.ssh.python or sys.executable
    code = ship_code(name, PACKAGE) if job.spec.ssh.ship else None
    return Remote(name=name, python=python, code=code)


def _set_up(remote: Remote, file: JobFile, job: Job, code: CarriedCode | None) -> ReadyHost | BadInput:
    box = job.spec.container
    try:
        reply = remote.set_up(file, job.secrets)
        host = ReadyHost(
            remote=remote,
            directory=str(reply["directory"]),
            shared=bool(reply["shared"]),
            job_file=str(reply["job_file"]),
            port=int(reply["port"]),
            secrets=str(reply["secrets"]),
            versions={str(name): value for name, value in reply["versions"].items()},
        )
        if code is not None and not host.shared:
            _send(code, host)
        return _with_container_versions(host, box) if box.image else host
    except BadInput as error:
        return error
    except (KeyError, TypeError, ValueError, AttributeError):
        return BadInput(f"host {remote.name} runs another allpull", hint="install the same version everywhere")


def _send(code: CarriedCode, host: ReadyHost) -> None:
    """Copy ``code`` into the folder of the job on ``host``; if that fails, the host is cleaned up.

    Raises:
        BadInput: it failed.
    """
    try:
        send_code(code, host.remote.name, f"{host.directory}/{layout.CARRIED}")
    except BaseException:
        clean_up([host])
        raise


def _with_container_versions(host: ReadyHost, box: ContainerSpec) -> ReadyHost | BadInput:
    """The host with the versions of its container; if the container cannot be used, the host is cleaned up."""
    try:
        answer = host.remote.run(shell_text({}, container.question(box)), b"", patience_s=container.ANSWER_S)
        if answer.returncode == NOT_FOUND:
            raise BadInput(
                f"container.runtime: no {box.runtime} on its PATH", hint="see what ssh says of it: echo $PATH"
            )
        return replace(host, versions=container.versions(box, answer))
    except BadInput as error:
        clean_up([host])
        return BadInput(f"host {host.remote.name}: {error.message}", hint=f"on that host: {error.hint}")
