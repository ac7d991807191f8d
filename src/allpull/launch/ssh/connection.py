"""One host over the user's OpenSSH: set it up for a job, start the job, warn it, clean up.

Host keys are checked as the user's configuration says, agents and ports are not forwarded, and nothing prompts for a
password. Everything that a remote shell sees is quoted, whatever a path contains.
"""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from allpull.errors import BadInput
from allpull.launch.carried_code import CarriedCode
from allpull.observe.process import end_with_parent
from allpull.rundir.job_file import JobFile
from allpull.rundir.write import no_follow

OPTIONS = ("-a", "-x", "-o", "BatchMode=yes", "-o", "ClearAllForwardings=yes", "-o", "ConnectTimeout=15")
KEEP_ALIVE = ("-o", "ServerAliveInterval=10", "-o", "ServerAliveCountMax=3")  # a lost host is noticed in 30 s
SSH_FAILED = 255
NOT_FOUND = 127
ANSWER_S = 120.0
COPY_S = 600.0
RSYNC_OPTIONS = ("-a", "--mkpath", "-e", shlex.join(["ssh", *OPTIONS]))


@dataclass(frozen=True, slots=True, kw_only=True)
class Remote:
    """One host: its name for ssh, and the Python that runs allpull there.

    ``code`` is a folder on that host with allpull's own code, if it was shipped, else None.
    """

    name: str
    python: str
    code: str | None = None

    def python_command(self, variables: dict[str, str], *arguments: str) -> str:
        """Shell text that runs Python there with ``variables`` and ``arguments``; the shell expands nothing in it."""
        path = {"PYTHONPATH": self.code} if self.code else {}
        return shell_text({**variables, **path}, [self.python, *arguments])

    def set_up(self, job: JobFile, secrets: str) -> dict[str, Any]:
        """Hand over ``job`` and its ``secrets``, and return the reply of ``observe.agent.remote_setup``.

        Raises:
            BadInput: the host cannot be reached, refuses us, or lacks Python or allpull.
        """
        command = self.python_command({}, "-m", "allpull.observe.agent.remote_setup")
        answer = self.run(command, json.dumps({**job.to_plain(), "secrets": secrets}).encode())
        if answer.returncode != 0:
            raise BadInput(self._trouble(answer), hint=self._remedy(answer))
        try:
            reply: dict[str, Any] = json.loads(answer.stdout.splitlines()[-1])
        except (ValueError, IndexError):
            raise BadInput(
                f"host {self.name} gave an unreadable answer: {answer.stdout[:200].decode('utf-8', 'replace')!r}",
                hint="does its shell print something on start? it should be silent for ssh commands",
            ) from None
        return reply

    def start(self, command: str, log: Path) -> subprocess.Popen[bytes]:
        """Start ``command`` there, its output in ``log`` here; it ends with the connection, and that with this process.

        This needs a terminal: without one the remote process would outlive its connection.
        """
        with open(log, "ab", opener=no_follow) as output:
            return subprocess.Popen(
                ["ssh", "-tt", *OPTIONS, *KEEP_ALIVE, "--", self.name, command],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
                preexec_fn=end_with_us,  # noqa: PLW1509  no thread of ours holds a lock while jobs start
            )

    def clean_up(self, directory: str) -> None:
        """Remove the folder that ``set_up`` made."""
        self.run(
            self.python_command({}, "-m", "allpull.observe.agent.remote_setup", "--leave", directory, self.name), b""
        )

    def warn(self, job_file: str) -> None:
        """Send SIGUSR1 to the agent of ``job_file`` there."""
        self.run(self.python_command({}, "-m", "allpull.observe.agent.warn", job_file), b"")

    def connection(self, command: str) -> list[str]:
        """The command line that runs ``command`` there, with our standard streams and no terminal."""
        return ["ssh", "-T", *OPTIONS, *KEEP_ALIVE, "--", self.name, command]

    def run(self, command: str, text: bytes, patience_s: float = ANSWER_S) -> subprocess.CompletedProcess[bytes]:
        """Run ``command`` there with ``text`` on its standard input and wait for it.

        Ctrl-C does not reach it: a lost answer could leave a folder that is never removed.

        Raises:
            BadInput: ssh is not installed here, or there is no answer in time.
        """
        arguments = self.connection(command)
        try:
            return subprocess.run(
                arguments, input=text, capture_output=True, timeout=patience_s, check=False, start_new_session=True
            )
        except FileNotFoundError:
            raise BadInput("there is no ssh on this machine", hint="install OpenSSH's client") from None
        except subprocess.TimeoutExpired:
            raise BadInput(f"host {self.name} gave no answer in {patience_s:.0f} s", hint="is it busy?") from None

    def _trouble(self, answer: subprocess.CompletedProcess[bytes]) -> str:
        lines = answer.stderr.decode("utf-8", "replace").strip().splitlines()
        return f"host {self.name}: {lines[-1] if lines else f'exit code {answer.returncode}'}"

    def _remedy(self, answer: subprocess.CompletedProcess[bytes]) -> str:
        if answer.returncode == SSH_FAILED:
            return f"this must work without a question: ssh {shlex.quote(self.name)} true"
        if answer.returncode == NOT_FOUND:
            return f"no {self.python} there; name its Python with --set ssh.python=…"
        if b"No module named 'allpull'" in answer.stderr or b"No module named allpull" in answer.stderr:
            return "install allpull there, or ship it with --set ssh.ship=true"
        return "see the host's message above"


def shell_text(variables: Mapping[str, str], command: Sequence[str]) -> str:
    """Shell text that replaces the shell by ``command`` with ``variables``; the shell expands nothing in it."""
    settings = [f"{name}={value}" for name, value in sorted(variables.items())]
    return shlex.join(["exec", "env", *settings, *command])


def end_with_us() -> None:
    """In a forked child: have it end when this process ends, however that ends."""
    end_with_parent(signal.SIGTERM)


def resolve(name: str) -> str:
    """The address that ssh connects to for ``name``, by the user's configuration.

    Raises:
        BadInput: ssh is not installed here, or rejects the name.
    """
    try:
        answer = subprocess.run(["ssh", "-G", "--", name], capture_output=True, text=True, timeout=15, check=False)
    except (FileNotFoundError, subprocess.TimeoutExpired):
        raise BadInput("there is no ssh on this machine", hint="install OpenSSH's client") from None
    for line in answer.stdout.splitlines():
        if line.startswith("hostname "):
            return line.removeprefix("hostname ")
    raise BadInput(f"ssh does not take '{name}' as a host: {answer.stderr.strip()}", hint="check the host list")


def ship_code(name: str, package: Path, rsync: Sequence[str] = ("rsync",)) -> str:
    """Copy the code of ``package`` to host ``name`` with rsync; returns the folder there to import it from.

    Raises:
        BadInput: rsync is missing on one side, or the host cannot be reached.
    """
    options = ("--delete", "--exclude=__pycache__", f"{package}/", f"{name}:{SHIPPED}/{package.name}/")
    _copy_code(name, [*rsync, *RSYNC_OPTIONS, *options])
    return SHIPPED


def send_code(code: CarriedCode, name: str, target: str) -> None:
    """Copy ``code`` to folder ``target`` of host ``name``, which is made.

    Raises:
        BadInput: rsync is missing on one side, the disk there is full, or the host cannot be reached.
    """
    options = ("--copy-unsafe-links", "--from0", "--files-from=-", f"{code.folder}/", f"{name}:{target}/")
    _copy_code(name, ["rsync", *RSYNC_OPTIONS, *options], b"\0".join(map(os.fsencode, code.files)))


def _copy_code(name: str, command: Sequence[str], names: bytes = b"") -> None:
    """Run rsync with ``names`` of files on its standard input.

    Raises:
        BadInput: it fails.
    """
    try:
        answer = subprocess.run(
            command, input=names, capture_output=True, timeout=COPY_S, check=False, start_new_session=True
        )
    except (FileNotFoundError, subprocess.TimeoutExpired) as error:
        raise BadInput(f"cannot copy code to {name}: {error}", hint="install rsync here and there") from None
    if answer.returncode != 0:
        last = (answer.stderr.decode("utf-8", "replace").strip().splitlines() or ["rsync failed"])[-1]
        raise BadInput(f"cannot copy code to {name}: {last}", hint="install rsync here and there; is a disk full?")


SHIPPED = ".cache/allpull/code"
"""Folder into which code is shipped; relative, so that the remote shell's home is meant."""
